//! System calls that need unsafe code, and thread placement.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::thread::CpuSet;

/// Gives the calling thread its own descriptor table, which contains only the standard streams. The thread may then
/// open `RLIMIT_NOFILE` descriptors whatever other threads have open, and does not contend for the shared table's lock.
///
/// Call it first in a thread: descriptors opened earlier, by any thread, do not exist for it any more.
///
/// # Errors
/// When the kernel has no memory for another table.
pub fn own_descriptor_table() -> io::Result<()> {
    const FIRST_AFTER_STANDARD_STREAMS: libc::c_uint = 3;
    unshare_descriptors_and_close(FIRST_AFTER_STANDARD_STREAMS)
}

/// Gives the calling thread its own copy of the descriptor table, for a thread that is woken through an open
/// descriptor.
///
/// # Errors
/// When the kernel has no memory for another table.
pub fn copied_descriptor_table() -> io::Result<()> {
    unshare_descriptors_and_close(libc::c_uint::MAX)
}

#[allow(unsafe_code)]
fn unshare_descriptors_and_close(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: CLOSE_RANGE_UNSHARE gives this thread a private copy of the table before anything is closed, so no
    // other thread loses a descriptor. A caller that closes any is a thread that has opened nothing yet and is handed no
    // descriptor from outside, so no owned descriptor is observed across tables.
    let outcome = unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Binds to `source` without reserving a port (`IP_BIND_ADDRESS_NO_PORT`): the kernel picks the port at `connect`,
/// unique per destination instead of per address, so that one address can use all its ports with each destination.
#[allow(unsafe_code)]
pub fn bind_source(socket: BorrowedFd<'_>, source: IpAddr) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option value points to a c_int that lives across the call and its size is given.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::net::bind(socket, &SocketAddr::new(source, 0))?;
    Ok(())
}

/// Pins the calling thread, and the processes it starts from now on, to `cores`. An empty list changes nothing.
pub fn pin(cores: &[usize]) -> io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &core in cores {
        if core >= CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such core"));
        }
        set.set(core);
    }
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

/// Lets the calling thread run only while no other thread needs its core (`SCHED_IDLE`), so that it costs others no CPU
/// time.
#[allow(unsafe_code)]
pub fn run_when_idle() -> io::Result<()> {
    // SAFETY: a `sched_param` is a struct of integers, for which zeroes are valid.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the parameter lives across the call; 0 is the calling thread.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Raises the soft limit to the hard one, and returns how many descriptors a thread with its own table may use for
/// connections: the limit minus a reserve for the standard streams, the epoll descriptor and short-lived ones of
/// libraries.
pub fn descriptors_per_thread() -> usize {
    const RESERVE: u64 = 64;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let hard = limit.maximum.unwrap_or(1 << 20);
    if limit.current != limit.maximum {
        // Refused only if the hard limit was lowered meanwhile; then the soft limit applies.
        let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
        if rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).is_err() {
            return limit.current.unwrap_or(1 << 20).saturating_sub(RESERVE).max(1) as usize;
        }
    }
    hard.saturating_sub(RESERVE).max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_thread_with_its_own_table_starts_empty_and_leaves_the_others_alone() {
        let held = File::open("/proc/self/stat").unwrap();
        let number = held.as_raw_fd();
        std::thread::spawn(move || {
            own_descriptor_table().unwrap();
            let opened = File::open("/proc/self/stat").unwrap();
            // The lowest free number is in use by other threads of the process, but not by this one.
            assert!(opened.as_raw_fd() <= number);
        })
        .join()
        .unwrap();
        assert!(held.metadata().is_ok());
    }
}
