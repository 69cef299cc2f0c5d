//! The compressors and the decompressor that all connections of a worker share.

use super::{Deflater, Direction, Inflater, WINDOW_BITS_MAX};

/// Windows from 9 to 15 bits.
const WINDOWS: usize = 7;

/// Compressors and decompressor for all connections without context takeover, created on first use.
#[derive(Debug)]
pub struct SharedDeflate {
    level: u32,
    deflaters: [Option<Box<Deflater>>; WINDOWS],
    inflater: Option<Box<Inflater>>,
}

impl SharedDeflate {
    /// Creates an empty set whose compressors will use a zlib level from 1 (fast) to 9 (small).
    pub fn new(level: u32) -> SharedDeflate {
        SharedDeflate { level, deflaters: [const { None }; WINDOWS], inflater: None }
    }

    /// Returns the compressor for a direction. `None` when its messages must be sent uncompressed,
    /// or when context takeover requires a compressor of the connection's own.
    pub fn deflater(&mut self, direction: Direction) -> Option<&mut Deflater> {
        if direction.context_takeover || !direction.can_compress() {
            return None;
        }
        let window_bits = direction.window_bits.min(WINDOW_BITS_MAX);
        let slot = self.deflaters.get_mut(usize::from(window_bits).checked_sub(9)?)?;
        Some(slot.get_or_insert_with(|| {
            Box::new(Deflater::new(self.level, Direction { context_takeover: false, window_bits }))
        }))
    }

    /// Returns the decompressor for any direction without context takeover, whatever its window.
    pub fn inflater(&mut self) -> &mut Inflater {
        self.inflater.get_or_insert_with(|| {
            Box::new(Inflater::new(Direction {
                context_takeover: false,
                window_bits: WINDOW_BITS_MAX,
            }))
        })
    }
}
