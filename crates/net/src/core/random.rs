//! Random numbers: masking keys, nonces, jitter, secrets.

use rustix::rand::{GetRandomFlags, getrandom};

const BYTES: usize = 4096;

/// Random bytes from the kernel, fetched 4 KiB at a time. Masking keys must be unpredictable (RFC 6455 §10.3), and a
/// system call per frame would cost more than the frame.
#[derive(Debug, Default)]
pub(crate) struct Random {
    bytes: Vec<u8>,
}

impl Random {
    /// Returns random bytes that were not returned before.
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
            // After boot, only a signal interrupts the call; try again.
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
    fn random_numbers_differ() {
        let mut random = Random::default();
        let drawn: std::collections::HashSet<[u8; 16]> = (0..1000).map(|_| random.take()).collect();
        assert_eq!(drawn.len(), 1000);
    }
}
