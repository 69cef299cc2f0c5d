//! A stream: a request on its way and the response to it.

use std::hash::{BuildHasherDefault, Hasher};

use super::Response;
use crate::http2::flow::Window;

/// Streams by their identifiers, which we choose ourselves, so that hashing them needs no secret.
pub(super) type Streams<B> =
    std::collections::HashMap<u32, Stream<B>, BuildHasherDefault<StreamHasher>>;

#[derive(Debug)]
pub(super) struct Stream<B> {
    /// Of ours, to send.
    pub(super) window: Window,
    pub(super) body: B,
    /// Bytes of the body that left.
    pub(super) sent: usize,
    /// Position in the connection's output at which its request ends, once encoded.
    pub(super) end_at: Option<u64>,
    /// It is in the connection's list of waiting bodies.
    pub(super) listed: bool,
    pub(super) response: Option<Response>,
}

/// Spreads identifiers, which are odd and in sequence.
#[derive(Debug, Default)]
pub(super) struct StreamHasher(u64);

impl Hasher for StreamHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}
