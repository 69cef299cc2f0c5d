//! Compression of messages.

use flate2::{Compress, Compression, FlushCompress, Status};

use super::super::{FrameHeader, HEADER_BYTES_MAX, Mask, Opcode, apply_mask};
use super::{Direction, TAIL};

/// The maximum length of a stored block (RFC 1951 §3.2.4).
const STORED_BYTES_MAX: usize = 0xffff;

/// Compresses the messages of one direction of a connection. Without context takeover, one
/// compressor serves any number of connections with the same window. Uses about 300 KiB.
#[derive(Debug)]
pub struct Deflater {
    compress: Compress,
    context_takeover: bool,
}

impl Deflater {
    /// Creates a compressor for a direction with [`can_compress`](Direction::can_compress), at a
    /// zlib level from 1 (fast) to 9 (small).
    ///
    /// # Panics
    ///
    /// Panics if [`can_compress`](Direction::can_compress) is false for the direction.
    pub fn new(level: u32, direction: Direction) -> Deflater {
        assert!(direction.can_compress(), "zlib cannot compress with {direction:?}");
        let level = Compression::new(level.clamp(1, 9));
        let window_bits = direction.window_bits.min(super::WINDOW_BITS_MAX);
        Deflater {
            compress: Compress::new_with_window_bits(level, false, window_bits),
            context_takeover: direction.context_takeover,
        }
    }

    /// Appends the compressed payload of a message.
    pub fn deflate(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        // An empty message has one encoding that is valid in any context (RFC 7692 §7.2.3.6); zlib
        // refuses to flush twice without input in between.
        if payload.is_empty() {
            out.push(0);
            return;
        }
        let begin = out.len();
        if self.flush(payload, out).is_none() {
            // zlib should not fail here. If it does, its context is unreliable: reset it, and send
            // the message as stored blocks, which need no context.
            out.truncate(begin);
            self.compress.reset();
            store(payload, out);
        } else if !self.context_takeover {
            self.compress.reset();
        }
    }

    /// Compresses up to a byte boundary and removes [`TAIL`].
    fn flush(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let begin = out.len();
        out.reserve(payload.len() + payload.len() / 8 + 64);
        let mut rest = payload;
        loop {
            let before = self.compress.total_in();
            let status = self.compress.compress_vec(rest, out, FlushCompress::Sync).ok()?;
            let taken = usize::try_from(self.compress.total_in() - before).ok()?;
            rest = rest.get(taken..)?;
            match status {
                // Spare capacity means that zlib has no output pending.
                _ if rest.is_empty() && out.len() < out.capacity() => break,
                Status::BufError if rest.is_empty() => break,
                Status::Ok | Status::BufError => out.reserve(out.len() - begin + 64),
                Status::StreamEnd => return None,
            }
        }
        let end = out.len().checked_sub(TAIL.len()).filter(|end| *end > begin)?;
        if out[end..] != TAIL {
            return None;
        }
        out.truncate(end);
        Some(())
    }

    /// Appends a frame with the compressed message, masked if a mask is given. Without context
    /// takeover, a message that does not shrink is sent uncompressed.
    pub fn encode_frame(
        &mut self,
        out: &mut Vec<u8>,
        opcode: Opcode,
        payload: &[u8],
        mask: Option<Mask>,
    ) {
        debug_assert!(!opcode.is_control(), "control frames are never compressed");
        let begin = out.len();
        let data = begin + HEADER_BYTES_MAX;
        out.resize(data, 0);
        self.deflate(payload, out);
        let compressed = self.context_takeover || out.len() - data < payload.len();
        if !compressed {
            out.truncate(data);
            out.extend_from_slice(payload);
        }
        if let Some(mask) = mask {
            apply_mask(&mut out[data..], mask);
        }
        let length = out.len() - data;
        let header = FrameHeader { compressed, mask, ..FrameHeader::new(opcode, length as u64) };
        let mut bytes = [0; HEADER_BYTES_MAX];
        let header_len = header.encode_into(&mut bytes);
        out[begin..begin + header_len].copy_from_slice(&bytes[..header_len]);
        out.copy_within(data.., begin + header_len);
        out.truncate(begin + header_len + length);
    }
}

/// Appends the payload as stored blocks, and the first byte of the empty block that ends a message.
fn store(payload: &[u8], out: &mut Vec<u8>) {
    for block in payload.chunks(STORED_BYTES_MAX) {
        let length = block.len() as u16;
        out.push(0);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::super::super::Role;
    use super::super::{DeflateParams, Inflater};
    use super::*;

    #[test]
    fn stored_block_inflates() {
        let payload: Vec<u8> = (0..150_000u32).map(|number| (number * 7) as u8).collect();
        let mut stored = Vec::new();
        store(&payload, &mut stored);
        let params = DeflateParams {
            server_no_context_takeover: true,
            client_no_context_takeover: true,
            server_max_window_bits: 15,
            client_max_window_bits: 15,
        };
        let mut inflated = Vec::new();
        Inflater::new(params.incoming(Role::Server))
            .inflate(&stored, &mut inflated, payload.len())
            .unwrap();
        assert_eq!(inflated, payload);
    }
}
