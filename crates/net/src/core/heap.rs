//! The allocator's free memory, and how to return it to the system.
//!
//! glibc keeps freed pages that lie between pages in use. Without trimming, a process stays large after a flood of
//! connections.
#![allow(unsafe_code, reason = "the allocator is C's")]

/// Returns the number of free bytes that the allocator keeps; 0 if the allocator does not report it.
pub fn free_heap_bytes() -> usize {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no arguments, locks what it reads, and returns numbers.
    return unsafe { libc::mallinfo2() }.fordblks;
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    0
}

/// Returns free pages to the system. Threads that allocate meanwhile wait, about a tenth of a second per GiB.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function takes a number, and locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
