//! Decompression of messages.

use flate2::{Decompress, FlushDecompress, Status};

use super::super::{Error, Limits, Message, Opcode};
use super::{Direction, TAIL, WINDOW_BITS_MAX};

/// The smallest window that flate2 supports; it also inflates streams with a smaller one.
const WINDOW_BITS_MIN: u8 = 9;

/// The least output space to reserve at a time.
const ROOM_BYTES_MIN: usize = 1024;

/// An empty final block. It ends a valid stream, but not a truncated one.
const FINAL: [u8; 5] = [0x01, 0x00, 0x00, 0xff, 0xff];

/// Decompresses the messages of one direction of a connection. Without context takeover, one
/// decompressor serves any number of connections. Uses about 40 KiB.
#[derive(Debug)]
pub struct Inflater {
    decompress: Decompress,
    context_takeover: bool,
}

impl Inflater {
    /// Creates a decompressor for a negotiated direction.
    pub fn new(direction: Direction) -> Inflater {
        let window_bits = direction.window_bits.clamp(WINDOW_BITS_MIN, WINDOW_BITS_MAX);
        Inflater {
            decompress: Decompress::new_with_window_bits(false, window_bits),
            context_takeover: direction.context_takeover,
        }
    }

    /// Returns the decoded message. A compressed one is inflated into `out`, which is cleared
    /// first, and its text is validated.
    ///
    /// # Errors
    ///
    /// Those of [`inflate`](Inflater::inflate), and [`Error::Utf8`] for text that is not UTF-8.
    pub fn message<'b>(
        &mut self,
        message: Message<'b>,
        out: &'b mut Vec<u8>,
        limits: &Limits,
    ) -> Result<Message<'b>, Error> {
        if !message.compressed {
            return Ok(message);
        }
        out.clear();
        self.inflate(message.payload, out, limits.message_bytes_max)?;
        if message.opcode == Opcode::Text && simdutf8::basic::from_utf8(out).is_err() {
            return Err(Error::Utf8);
        }
        Ok(Message { opcode: message.opcode, compressed: false, payload: out })
    }

    /// Appends the message that a compressed payload contains.
    ///
    /// # Errors
    ///
    /// [`Error::MessageTooLong`] as soon as the message exceeds `bytes_max`, however small the
    /// payload; [`Error::Inflate`] when it is corrupt. With context takeover the connection must
    /// then be failed; a shared inflater remains usable.
    pub fn inflate(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), Error> {
        let result = self.run(payload, out, bytes_max);
        if !self.context_takeover || result.is_err() {
            self.decompress.reset(false);
        }
        result
    }

    fn run(&mut self, payload: &[u8], out: &mut Vec<u8>, bytes_max: usize) -> Result<(), Error> {
        let end_max = out.len().saturating_add(bytes_max);
        if self.feed(payload, out, end_max)? == Stream::Ended {
            // The sender marked the last block final and omitted the empty block after it.
            return Ok(());
        }
        self.feed(&TAIL, out, end_max)?;
        if !self.context_takeover && self.feed(&FINAL, out, end_max)? != Stream::Ended {
            return Err(Error::Inflate);
        }
        Ok(())
    }

    /// Decompresses all of `bytes`, and returns whether the stream ended with the last of them.
    fn feed(
        &mut self,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
        end_max: usize,
    ) -> Result<Stream, Error> {
        loop {
            if out.len() == out.capacity() {
                // One byte more than allowed, to distinguish a message that is too long from one
                // that fits.
                let allowed = end_max.saturating_sub(out.len()).saturating_add(1);
                out.reserve(allowed.min(ROOM_BYTES_MIN.max(bytes.len())));
            }
            let before = self.decompress.total_in();
            let status = self
                .decompress
                .decompress_vec(bytes, out, FlushDecompress::Sync)
                .map_err(|_| Error::Inflate)?;
            let taken =
                usize::try_from(self.decompress.total_in() - before).map_err(|_| Error::Inflate)?;
            bytes = bytes.get(taken..).ok_or(Error::Inflate)?;
            if out.len() > end_max {
                return Err(Error::MessageTooLong);
            }
            let full = out.len() == out.capacity();
            match status {
                // A final block (RFC 7692 §7.2.3.4): a new stream follows.
                Status::StreamEnd => {
                    self.decompress.reset(false);
                    if bytes.is_empty() {
                        return Ok(Stream::Ended);
                    }
                }
                Status::Ok | Status::BufError if full => {}
                Status::Ok | Status::BufError if bytes.is_empty() => return Ok(Stream::Open),
                Status::Ok if taken > 0 => {}
                Status::Ok | Status::BufError => return Err(Error::Inflate),
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Open,
    Ended,
}
