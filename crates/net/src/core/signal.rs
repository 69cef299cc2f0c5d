//! Signals as events, through `signalfd`.
//!
//! A signal handler that writes to a pipe would not work: it runs in any thread, and in a worker
//! with its own descriptor table the number of the pipe may be a client's socket.
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
    /// Blocks the signals in this thread and opens a descriptor that reports them.
    pub(crate) fn open(signals: &[i32]) -> io::Result<Signals> {
        let set = block(signals)?;
        // SAFETY: -1 requests a new descriptor; the set is initialised.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd, numbers: signals.to_vec() })
    }

    pub(crate) fn add(&mut self, signals: &[i32]) -> io::Result<()> {
        let mut numbers = self.numbers.clone();
        numbers.extend_from_slice(signals);
        let set = block(&numbers)?;
        // SAFETY: the descriptor is an open signalfd; the set is initialised.
        if unsafe { libc::signalfd(self.fd.as_raw_fd(), &raw const set, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.numbers = numbers;
        Ok(())
    }

    /// Returns the next pending signal.
    pub(crate) fn next(&self) -> Option<i32> {
        /// `struct signalfd_siginfo` has 128 bytes, of which the first four are the signal number.
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

/// Blocks signals in this thread and the threads it starts, so that they stay pending for
/// [`Signals`].
fn block(signals: &[i32]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set it is given.
    let mut set: libc::sigset_t = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for &signal in signals {
        // SAFETY: the set is initialised; an invalid number returns an error.
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

/// Blocks every signal of the process in this thread, except those for faults of the thread itself
/// and SIGPROF, which profilers use.
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
    // SAFETY: the set is initialised, and the pointer for the old mask may be null.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
