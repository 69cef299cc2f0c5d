//! What spreads things that should not happen at once.

/// A xorshift generator; nothing secret depends on it.
#[derive(Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Jitter {
        // Zero would stay zero.
        Jitter(seed | 1)
    }

    /// A number below `bound`, different each time.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}
