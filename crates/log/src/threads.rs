//! The threads of a log.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::ReadError;
use crate::log::Log;
use crate::read::{ReadRange, ReadResult};

/// Reads that wait for their turn.
const READS_MAX: usize = 4096;
/// How often the segments are looked after.
const MAINTENANCE: Duration = Duration::from_millis(250);

/// One thread writes, one syncs and takes care of the segments, one reads. A disk that takes seconds for a sync delays neither
/// what is only to be written nor reads.
pub struct Threads {
    log: Arc<Log>,
    reads: Option<SyncSender<Read>>,
    handles: Vec<JoinHandle<()>>,
    ends: Arc<AtomicBool>,
}

struct Read {
    stream: Box<str>,
    range: ReadRange,
    done: ReadDone,
}

/// Called with the result of a read, on the thread that reads.
pub type ReadDone = Box<dyn FnOnce(Result<ReadResult, ReadError>) + Send>;

/// Starts reads from any thread.
#[derive(Clone)]
pub struct Reads(SyncSender<Read>);

impl Reads {
    /// Reads a part of a stream on the log's thread for that.
    ///
    /// # Errors
    /// [`ReadError::Busy`] if too many wait, with what was to be called.
    pub fn start(&self, stream: &str, range: ReadRange, done: ReadDone) -> Result<(), ReadDone> {
        self.0.try_send(Read { stream: stream.into(), range, done }).map_err(|error| match error {
            TrySendError::Full(read) | TrySendError::Disconnected(read) => read.done,
        })
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Threads {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no threads left.
    pub fn start(log: Arc<Log>) -> io::Result<Threads> {
        log.core().is_threaded = true;
        let ends = Arc::new(AtomicBool::new(false));
        let (reads, receiver) = sync_channel(READS_MAX);
        let mut threads = Threads { log, reads: Some(reads), handles: Vec::new(), ends };
        let (log, ends) = (Arc::clone(&threads.log), Arc::clone(&threads.ends));
        threads.spawn("log-write", move || write(&log, &ends))?;
        let (log, ends) = (Arc::clone(&threads.log), Arc::clone(&threads.ends));
        threads.spawn("log-sync", move || sync(&log, &ends))?;
        let (log, ends) = (Arc::clone(&threads.log), Arc::clone(&threads.ends));
        threads.spawn("log-read", move || read(&log, &receiver, &ends))?;
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let handle = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        self.handles.push(handle);
        Ok(())
    }

    /// The log.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// For threads that read.
    pub fn reads(&self) -> Option<Reads> {
        self.reads.clone().map(Reads)
    }

    /// Ends the threads and closes the log.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn close(mut self) -> io::Result<()> {
        self.join();
        self.log.close()
    }

    fn join(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.reads = None;
        {
            // Nobody is between its look at `ends` and its wait.
            let _core = self.log.core();
            self.log.work.notify_all();
            self.log.sync_work.notify_all();
        }
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
        self.log.core().is_threaded = false;
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}

fn write(log: &Log, ends: &AtomicBool) {
    while !ends.load(Ordering::Acquire) {
        if log.write() {
            continue;
        }
        let core = log.core();
        let idles = |core: &mut crate::log::Core| {
            (core.pending.is_empty() || core.failure.is_some()) && !ends.load(Ordering::Acquire)
        };
        drop(log.work.wait_while(core, idles).unwrap_or_else(PoisonError::into_inner));
    }
}

fn sync(log: &Log, ends: &AtomicBool) {
    let interval = Duration::from_millis(log.limits.sync_interval_ms.max(1));
    let (mut synced, mut maintained) = (Instant::now(), None::<Instant>);
    while !ends.load(Ordering::Acquire) {
        let is_due = maintained.is_none_or(|at| at.elapsed() >= MAINTENANCE);
        if is_due || log.needs_maintenance() {
            // The reason is in `full`, and the next round tries again.
            let _ = log.maintain(now_ms());
            maintained = Some(Instant::now());
        }
        let is_awaited = |core: &crate::log::Core| {
            core.sync_wanted > log.synced() && log.written() > log.synced()
        };
        if synced.elapsed() >= interval || is_awaited(&log.core()) {
            let _ = log.sync();
            synced = Instant::now();
        }
        let core = log.core();
        let idles = |core: &mut crate::log::Core| {
            (!is_awaited(core) || core.failure.is_some()) && !ends.load(Ordering::Acquire)
        };
        if core.failure.is_some() || !is_awaited(&core) {
            let waited = log.sync_work.wait_timeout_while(core, interval.min(MAINTENANCE), idles);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

fn read(log: &Log, reads: &Receiver<Read>, ends: &AtomicBool) {
    while !ends.load(Ordering::Acquire) {
        match reads.recv_timeout(MAINTENANCE) {
            Ok(Read { stream, range, done }) => done(log.read(&stream, &range, now_ms())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
