//! Memory that was held once goes back to the system. Alone in its file, for it looks at the whole process.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]
#![cfg(all(target_os = "linux", target_env = "gnu"))]

/// Resident bytes of this process.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

#[test]
fn freed_memory_returns_to_the_system() {
    const PIECES: usize = 4_000;
    const BYTES: usize = 20_000;
    let before = resident_bytes();
    // Another thread's, as a worker's is.
    let kept = std::thread::spawn(|| {
        let pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; BYTES]).collect();
        // A few between the others stay, so that no end of the heap is free.
        pieces.into_iter().enumerate().filter(|(at, _)| at % 100 == 0).collect::<Vec<_>>()
    });
    let kept = kept.join().unwrap();
    assert!(dunlin_net::free_heap_bytes() > PIECES * BYTES / 2);
    assert!(resident_bytes() > before + PIECES * BYTES / 2);
    dunlin_net::trim_heap();
    assert!(resident_bytes() < before + PIECES * BYTES / 4, "{before} {}", resident_bytes());
    drop(kept);
}
