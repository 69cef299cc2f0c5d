//! One stream of a connection, from its first HEADERS to the last byte of its answer (RFC 9113 §5.1).

use dunlin_wire::http2::flow::Window;

use super::Head;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) head: Head,
    /// The body received so far, truncated to the connection's limit; `body_bytes` counts all of it.
    pub(super) body: Vec<u8>,
    pub(super) body_bytes: u64,
    /// Half-closed (remote): the request is complete.
    pub(super) complete: bool,
    /// Bytes the peer may still send; must not become negative.
    pub(super) receive_window: i64,
    /// Bytes received but not yet returned by WINDOW_UPDATE.
    pub(super) unreturned: u32,
    /// Bytes we may still send.
    pub(super) send_window: Window,
    /// The rest of our answer, waiting for window.
    pub(super) answer: Vec<u8>,
}

/// How a closed stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// Both sides ended it, or the peer reset it: no frames may follow.
    Done,
    /// We reset it: frames already in flight are ignored (§5.4.2).
    Reset,
}

/// The most recently closed streams, to tell frames on a closed stream from frames on an idle one (§5.1.1).
#[derive(Debug)]
pub(super) struct ClosedStreams {
    ring: Vec<(u32, Closed)>,
    next: usize,
}

const REMEMBERED: usize = 1_024;

impl ClosedStreams {
    pub(super) fn new() -> ClosedStreams {
        ClosedStreams { ring: Vec::new(), next: 0 }
    }

    pub(super) fn push(&mut self, stream: u32, how: Closed) {
        if self.ring.len() < REMEMBERED {
            self.ring.push((stream, how));
            return;
        }
        self.ring[self.next] = (stream, how);
        self.next = (self.next + 1) % REMEMBERED;
    }

    pub(super) fn find(&self, stream: u32) -> Option<Closed> {
        self.ring.iter().find(|(id, _)| *id == stream).map(|&(_, how)| how)
    }
}
