//! A stream: a request and its response.

use std::hash::{BuildHasherDefault, Hasher};

use super::Response;
use crate::http2::flow::Window;

/// Streams by identifier. We choose the identifiers, so hashing them needs no secret.
pub(super) type Streams<B> =
    std::collections::HashMap<u32, Stream<B>, BuildHasherDefault<StreamHasher>>;

#[derive(Debug)]
pub(super) struct Stream<B> {
    /// Our send window.
    pub(super) window: Window,
    pub(super) body: B,
    /// Bytes of the body that were sent.
    pub(super) sent: usize,
    /// Position in the connection's output at which the request ends, once it is encoded.
    pub(super) end_at: Option<u64>,
    /// Whether it is in the connection's list of waiting bodies.
    pub(super) listed: bool,
    pub(super) response: Option<Response>,
}

/// Hashes identifiers, which are odd and consecutive.
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
