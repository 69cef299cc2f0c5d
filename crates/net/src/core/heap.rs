//! The allocator's free memory, and how to return it to the system.
//!
//! glibc keeps pages that many connections have used at one time and freed, where they lie between pages in use. A process
//! that was flooded once would stay large.
#![allow(unsafe_code, reason = "the allocator is C's")]

/// Free bytes that the allocator keeps. 0 where the allocator does not report them.
pub fn free_heap_bytes() -> usize {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes nothing, locks what it reads, and returns numbers.
    return unsafe { libc::mallinfo2() }.fordblks;
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    0
}

/// Returns free pages to the system. A thread that allocates meanwhile waits, about a tenth of a second for
/// each GiB.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
