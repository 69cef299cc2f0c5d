//! Workers: threads that each have a loop and optionally their own descriptor table.
#![expect(
    unsafe_code,
    reason = "a thread's own descriptor table is outside what I/O safety covers"
)]

use std::any::Any;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{Builder, JoinHandle};
use std::{fmt, io};

use rustix::thread::{CpuSet, UnshareFlags};

/// The table of a worker's descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Descriptors {
    /// The table of the process. All workers together may open `RLIMIT_NOFILE`.
    #[default]
    Shared,
    /// The worker's own table: a copy, made at its start, of only the standard streams and the listed descriptors. It
    /// may open `RLIMIT_NOFILE` by itself, and opening takes no lock that other threads contend for.
    ///
    /// From then on a number may be different files in different threads. A descriptor opened in one thread must be
    /// used and dropped in that thread; descriptors that threads share (listeners, doorbells, log files) must be opened
    /// before the workers start, and listed.
    Own(Vec<RawFd>),
}

/// Configuration of workers.
#[derive(Clone, Debug, Default)]
pub struct WorkerConfig {
    /// The table of their descriptors.
    pub descriptors: Descriptors,
    /// Pin each worker to a core: worker `i` to the `i`th core that the process may use, counted again from the first
    /// when there are more workers than cores.
    pub pin: bool,
    /// Prefix of the threads' names; the worker's index follows. The kernel shows at most 15 bytes.
    pub name: String,
}

/// Result of a worker.
#[derive(Debug)]
pub enum Exit<T> {
    /// Its function returned.
    Returned(T),
    /// It panicked, with this message. What it owned was dropped, including its connections; other workers are not
    /// affected.
    Panicked(String),
    /// It could not start: the kernel rejected the descriptor table (Linux 5.9 suffices), the signal mask or the core.
    Failed(io::Error),
}

/// Running workers. Dropping it leaves them running.
pub struct Workers<T> {
    config: WorkerConfig,
    main: Arc<dyn Fn(usize) -> T + Send + Sync>,
    threads: Vec<Option<JoinHandle<()>>>,
    ended: Receiver<(usize, Exit<T>)>,
    end: Sender<(usize, Exit<T>)>,
}

/// Starts `count` threads that each run `main` with their index. All process signals are blocked in them, so that the
/// thread that registered for them receives them.
///
/// # Errors
///
/// Those of creating a thread. Threads already started continue to run.
pub fn spawn_workers<T: Send + 'static>(
    count: usize,
    config: &WorkerConfig,
    main: impl Fn(usize) -> T + Send + Sync + 'static,
) -> io::Result<Workers<T>> {
    let (end, ended) = mpsc::channel();
    let mut workers = Workers {
        config: config.clone(),
        main: Arc::new(main),
        threads: (0..count).map(|_| None).collect(),
        ended,
        end,
    };
    for index in 0..count {
        workers.start(index)?;
    }
    Ok(workers)
}

impl<T: Send + 'static> Workers<T> {
    /// Returns the number of workers, running or not.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Returns true when there are no workers.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Returns true when no thread is running.
    pub fn all_ended(&self) -> bool {
        self.threads.iter().all(Option::is_none)
    }

    /// Waits until a worker ends and returns its index and result. `None` when all have ended.
    pub fn wait(&mut self) -> Option<(usize, Exit<T>)> {
        if self.all_ended() {
            return None;
        }
        let (index, exit) = self.ended.recv().ok()?;
        self.reap(index);
        Some((index, exit))
    }

    /// As [`Workers::wait`], without waiting.
    pub fn try_wait(&mut self) -> Option<(usize, Exit<T>)> {
        let (index, exit) = self.ended.try_recv().ok()?;
        self.reap(index);
        Some((index, exit))
    }

    /// Restarts a worker that has ended.
    ///
    /// # Errors
    ///
    /// Those of creating a thread; `AlreadyExists` when the worker is running.
    ///
    /// # Panics
    ///
    /// If there is no worker with that index.
    pub fn start(&mut self, index: usize) -> io::Result<()> {
        if self.threads[index].is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (config, main, end) = (self.config.clone(), Arc::clone(&self.main), self.end.clone());
        let thread = Builder::new().name(format!("{}{index}", config.name)).spawn(move || {
            let exit = match settle_in(index, &config) {
                Ok(()) => match catch_unwind(AssertUnwindSafe(|| main(index))) {
                    Ok(value) => Exit::Returned(value),
                    Err(payload) => Exit::Panicked(message(&*payload)),
                },
                Err(error) => Exit::Failed(error),
            };
            // The `Workers` may have been dropped.
            let _ = end.send((index, exit));
        })?;
        self.threads[index] = Some(thread);
        Ok(())
    }

    fn reap(&mut self, index: usize) {
        if let Some(thread) = self.threads[index].take() {
            // The thread catches its panics.
            let _ = thread.join();
        }
    }
}

impl<T> fmt::Debug for Workers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Exit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Returned(_) => f.write_str("returned"),
            Exit::Panicked(message) => write!(f, "panicked: {message}"),
            Exit::Failed(error) => write!(f, "could not start: {error}"),
        }
    }
}

fn settle_in(index: usize, config: &WorkerConfig) -> io::Result<()> {
    crate::core::signal::block_all()?;
    if let Descriptors::Own(keep) = &config.descriptors {
        // SAFETY: the thread has not opened any descriptor yet, so none of its own changes meaning; the descriptors
        // that the closure has captured are documented to be listed.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES)? };
        close_all_but(keep)?;
    }
    if config.pin {
        pin(Some(index))?;
    }
    Ok(())
}

/// Pins the calling thread to one of the cores that the process may use, counted from 0 and again from the first if
/// there are fewer; `None` allows all of them again.
///
/// # Errors
/// Those of `sched_setaffinity`.
pub fn pin(index: Option<usize>) -> io::Result<()> {
    // The mask of the main thread, which is never pinned. The allowed cores need not be the first ones.
    let allowed = rustix::thread::sched_getaffinity(Some(rustix::process::getpid()))?;
    let set = match index {
        None => allowed,
        Some(index) => {
            let is_allowed = |&core: &usize| allowed.is_set(core);
            let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(is_allowed).collect();
            let mut set = CpuSet::new();
            set.set(cores[index % cores.len()]);
            set
        }
    };
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Closes the copies of all descriptors except the standard streams and those listed. A copy would keep the file open
/// after its owner has closed it: a peer would wait for a FIN that never comes.
fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|&fd| u32::try_from(fd).ok()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.into_iter().filter(|&fd| fd >= 3).chain([u32::MAX]) {
        if first < fd {
            let last = if fd == u32::MAX { fd } else { fd - 1 };
            // SAFETY: the table belongs to this thread alone and nothing was opened in it; the closed descriptors
            // belong to other threads, which keep theirs.
            let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = fd.saturating_add(1).max(first);
    }
    Ok(())
}

fn message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(message), _) => (*message).to_owned(),
        (_, Some(message)) => message.clone(),
        _ => "no message".to_owned(),
    }
}
