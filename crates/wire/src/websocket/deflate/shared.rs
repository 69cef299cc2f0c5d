//! The compressors that all connections of a worker share.

use super::{Deflater, Direction, Inflater, WINDOW_BITS_MAX};

/// Windows from 9 to 15 bits.
const WINDOWS: usize = 7;

/// Compressors and decompressor for every connection without context takeover, made when first needed.
#[derive(Debug)]
pub struct SharedDeflate {
    level: u32,
    deflaters: [Option<Box<Deflater>>; WINDOWS],
    inflater: Option<Box<Inflater>>,
}

impl SharedDeflate {
    /// None yet; they will compress at a zlib level from 1 (fast) to 9 (small).
    pub fn new(level: u32) -> SharedDeflate {
        SharedDeflate { level, deflaters: [const { None }; WINDOWS], inflater: None }
    }

    /// The compressor for a direction without context takeover; `None` when messages in this
    /// direction can only go out uncompressed, or need a compressor of the connection's own.
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

    /// The decompressor, whatever the window, of a direction without context takeover.
    pub fn inflater(&mut self) -> &mut Inflater {
        self.inflater.get_or_insert_with(|| {
            Box::new(Inflater::new(Direction {
                context_takeover: false,
                window_bits: WINDOW_BITS_MAX,
            }))
        })
    }
}
