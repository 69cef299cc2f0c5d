//! Signals as events, through `signalfd`.
//!
//! Not through a handler that writes to a pipe: a handler runs in whatever thread the kernel picks, and in
//! a worker with a descriptor table of its own the number of that pipe may be a client's socket.
#![expect(unsafe_code, reason = "signal masks have no safe interface that is public")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

#[derive(Debug)]
pub(crate) struct Signals {
    fd: OwnedFd,
    numbers: Vec<i32>,
}

impl Signals {
    /// Blocks the signals in this thread and opens a descriptor that yields them.
    pub(crate) fn open(signals: &[i32]) -> io::Result<Signals> {
        let set = block(signals)?;
        // SAFETY: -1 asks for a new descriptor; the set is initialised.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor has just been opened and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd, numbers: signals.to_vec() })
    }

    pub(crate) fn add(&mut self, signals: &[i32]) -> io::Result<()> {
        let mut numbers = self.numbers.clone();
        numbers.extend_from_slice(signals);
        let set = block(&numbers)?;
        // SAFETY: the descriptor is one of `signalfd` and open; the set is initialised.
        if unsafe { libc::signalfd(self.fd.as_raw_fd(), &raw const set, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.numbers = numbers;
        Ok(())
    }

    /// The next signal sent, if one waits.
    pub(crate) fn next(&self) -> Option<i32> {
        /// `struct signalfd_siginfo` is 128 bytes, its number the first four.
        const INFO_BYTES: usize = size_of::<libc::signalfd_siginfo>();
        let mut info = [0u8; INFO_BYTES];
        match rustix::io::read(&self.fd, &mut info) {
            Ok(INFO_BYTES) => {
                Some(u32::from_ne_bytes([info[0], info[1], info[2], info[3]]).cast_signed())
            }
            _ => None,
        }
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Blocks signals in this thread and the threads it starts, so that they stay pending for [`Signals`].
fn block(signals: &[i32]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set it is given.
    let mut set: libc::sigset_t = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for &signal in signals {
        // SAFETY: the set is initialised; an invalid number is reported.
        if unsafe { libc::sigaddset(&raw mut set, signal) } != 0
            || matches!(signal, libc::SIGKILL | libc::SIGSTOP)
        {
            let message = format!("{signal} is no signal that can be taken as an event");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    }
    mask(&set)?;
    Ok(set)
}

/// Blocks every signal of the process in this thread, those that report the thread's own faults (and
/// SIGPROF, by which profilers ask) excepted.
pub(crate) fn block_all() -> io::Result<()> {
    const OWN: [i32; 8] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGSYS,
        libc::SIGPROF,
    ];
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set it is given; the numbers are valid.
    let set: libc::sigset_t = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for signal in OWN {
            libc::sigdelset(&raw mut set, signal);
        }
        set
    };
    mask(&set)
}

fn mask(set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is initialised, and the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
