//! The allocator's free memory, and the way back to the system.
//!
//! What many connections have held at one time, glibc keeps when they give it back: pages between what is still in use. A
//! process that was flooded once would stay large.
#![allow(unsafe_code, reason = "the allocator is C's")]

/// Bytes that the allocator has free and keeps. 0 where it does not say.
pub fn free_heap_bytes() -> usize {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes nothing, locks what it reads, and returns numbers.
    return unsafe { libc::mallinfo2() }.fordblks;
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    0
}

/// Gives the pages that are free back to the system. A thread that allocates meanwhile waits, about a tenth of a second for
/// each GiB.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
