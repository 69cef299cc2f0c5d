//! Masking keys and nonces of clients.

use rustix::rand::{GetRandomFlags, getrandom};

const BYTES: usize = 4096;

/// Random bytes of the kernel, fetched a page at a time: masks must be unpredictable (RFC 6455 §10.3), and a
/// system call a frame would cost more than the frame.
#[derive(Debug, Default)]
pub(crate) struct Masks {
    bytes: Vec<u8>,
}

impl Masks {
    /// Random bytes never used before.
    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        const { assert!(N <= BYTES) };
        if self.bytes.len() < N {
            self.refill();
        }
        let rest = self.bytes.len() - N;
        let mut taken = [0; N];
        taken.copy_from_slice(&self.bytes[rest..]);
        self.bytes.truncate(rest);
        taken
    }

    #[cold]
    fn refill(&mut self) {
        self.bytes.resize(BYTES, 0);
        let mut filled = 0;
        while filled < BYTES {
            // Only interruption makes it fail once the system has booted; masks are then asked for again.
            if let Ok(count) = getrandom(&mut self.bytes[filled..], GetRandomFlags::empty()) {
                filled += count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_differ() {
        let mut masks = Masks::default();
        let drawn: std::collections::HashSet<[u8; 16]> = (0..1000).map(|_| masks.take()).collect();
        assert_eq!(drawn.len(), 1000);
    }
}
