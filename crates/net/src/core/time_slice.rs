//! Scheduling time slices: how long a computing thread keeps others off its core.
//!
//! Linux gives threads of equal weight time slices. A thread that wakes waits until the slice of the running thread is
//! over, a few milliseconds, unless its own slice is shorter. Since Linux 6.12 a thread can have a custom slice
//! (`sched_runtime` of `sched_setattr(2)`), and a thread with a shorter slice preempts at once when it wakes. So a
//! thread with long work that can wait sets a long slice; its total share of time does not change.

#![expect(unsafe_code, reason = "neither libc nor rustix has the call")]

use std::io;
use std::time::Duration;

/// The maximum slice in Linux; the minimum is 0.1 ms.
pub const TIME_SLICE_MAX: Duration = Duration::from_millis(100);

/// The fields of `struct sched_attr` in Linux 3.14.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const ATTR_BYTES: u32 = size_of::<SchedAttr>() as u32;
const _: () = assert!(ATTR_BYTES == 48);

/// Sets the slice of the calling thread; `None` restores the default. A kernel before 6.12 ignores it.
///
/// # Errors
/// `Unsupported` for a thread with a real-time policy, which has no slices; those of `sched_setattr`.
pub fn set_time_slice(slice: Option<Duration>) -> io::Result<()> {
    let mut attr = present()?;
    if !matches!(attr.policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    attr.flags = 0;
    attr.runtime_ns = slice.map_or(0, |slice| slice.as_nanos() as u64);
    // SAFETY: the kernel reads `size` bytes, which is the size of the structure.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the scheduling attributes of the calling thread.
fn present() -> io::Result<SchedAttr> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel writes at most the given number of bytes, which is the size of the structure.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, ATTR_BYTES, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    attr.size = ATTR_BYTES;
    Ok(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_taken_by_kernels_that_know_it_and_given_back() {
        let usual = present().unwrap();
        if usual.policy as i32 == libc::SCHED_IDLE {
            // Threads with this policy have no slices.
            set_time_slice(Some(TIME_SLICE_MAX)).unwrap_err();
            return;
        }
        let usual_ns = usual.runtime_ns;
        set_time_slice(Some(TIME_SLICE_MAX)).unwrap();
        let long_ns = present().unwrap().runtime_ns;
        // Kernels before 6.12 report nothing.
        assert!(long_ns == TIME_SLICE_MAX.as_nanos() as u64 || long_ns == 0, "{long_ns}");
        set_time_slice(None).unwrap();
        assert_eq!(present().unwrap().runtime_ns, usual_ns);
    }
}
