//! What a mesh costs in memory. Alone in its file, for it brings an allocator that counts.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use dunlin_bus::{MeshConfig, RequestId, mesh};

struct Counting;

thread_local! {
    /// By this thread: the test harness allocates on its own while a test runs.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands everything to the system's allocator and counts bytes beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get().wrapping_add(layout.size()));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.set(ALLOCATED.get().wrapping_sub(layout.size()));
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

#[test]
fn a_mesh_of_64_is_cheap_until_it_is_busy_and_again_afterwards() {
    type Message = [u64; 8];
    let (endpoints, ring_slots) = if cfg!(miri) { (8, 64) } else { (64, 1024) };
    let edges = endpoints * endpoints;
    let config = MeshConfig { ring_slots, ..MeshConfig::default() };
    let before = ALLOCATED.get();
    let cost = || ALLOCATED.get().wrapping_sub(before);

    let mut mesh = mesh::<Message>(endpoints, &config).unwrap();
    assert!(cost() <= edges * 160, "unused: {} bytes an edge", cost() / edges);

    for endpoint in &mut mesh {
        assert!(endpoint.broadcast(|_| [0; 8]).refused.is_empty());
    }
    assert!(cost() <= 16 * MIB, "every edge used: {} KiB", cost() / KIB);
    let in_use = cost();

    for _ in 1..config.ring_slots {
        mesh[0].send(1, [0; 8]).unwrap();
    }
    assert!(cost() > in_use + config.ring_slots * size_of::<Message>(), "one edge has grown");
    for endpoint in &mut mesh {
        endpoint.drain(usize::MAX, |_, _| ());
    }
    // Quiet since the first call; the reader frees what the writer has left.
    mesh[0].trim();
    mesh[0].trim();
    mesh[1].trim();
    assert_eq!(cost(), in_use, "and has shrunk");
    mesh[0].send(1, [1; 8]).unwrap();
    assert_eq!(mesh[1].recv(), Some((0, [1; 8])));

    drop(mesh);
    assert_eq!(cost(), 0);
}

#[test]
fn an_id_is_a_word() {
    assert_eq!(size_of::<RequestId>(), 8);
    assert_eq!(size_of::<Option<RequestId>>(), 8);
}
