//! Decompression of messages.

use flate2::{Decompress, FlushDecompress, Status};

use super::super::{Error, Limits, Message, Opcode};
use super::{Direction, TAIL, WINDOW_BITS_MAX};

/// The smallest window that flate2 makes room for; it serves streams of a smaller one too.
const WINDOW_BITS_MIN: u8 = 9;

/// Room made for output when there is none. More is made as it fills.
const ROOM_BYTES_MIN: usize = 1024;

/// An empty final block: after it a sound stream has ended, and a truncated one has not.
const FINAL: [u8; 5] = [0x01, 0x00, 0x00, 0xff, 0xff];

/// Decompresses the messages of one direction of a connection, or without context takeover those of
/// any number of connections. Holds about 40 KiB.
#[derive(Debug)]
pub struct Inflater {
    decompress: Decompress,
    context_takeover: bool,
}

impl Inflater {
    /// A decompressor for what was agreed on a direction.
    pub fn new(direction: Direction) -> Inflater {
        let window_bits = direction.window_bits.clamp(WINDOW_BITS_MIN, WINDOW_BITS_MAX);
        Inflater {
            decompress: Decompress::new_with_window_bits(false, window_bits),
            context_takeover: direction.context_takeover,
        }
    }

    /// The decoded message: inflated into `out`, which is cleared first, if it was compressed, and
    /// with its text validated.
    ///
    /// # Errors
    ///
    /// As [`inflate`](Inflater::inflate), and [`Error::Utf8`] for text that is not.
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

    /// Appends the message that a compressed payload stands for.
    ///
    /// # Errors
    ///
    /// [`Error::MessageTooLong`] as soon as it has more than `bytes_max`, however small the payload
    /// was; [`Error::Inflate`] when it is corrupt. With context takeover the connection must then
    /// be failed; a worker's inflater remains usable.
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
            // The last block was marked final, and the empty block behind it was left out.
            return Ok(());
        }
        self.feed(&TAIL, out, end_max)?;
        if !self.context_takeover && self.feed(&FINAL, out, end_max)? != Stream::Ended {
            return Err(Error::Inflate);
        }
        Ok(())
    }

    /// Decompresses all of `bytes`, and says whether the stream ended with their last one.
    fn feed(
        &mut self,
        mut bytes: &[u8],
        out: &mut Vec<u8>,
        end_max: usize,
    ) -> Result<Stream, Error> {
        loop {
            if out.len() == out.capacity() {
                // One byte more than allowed distinguishes a message that is too long from one that fits.
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
                // A final block (RFC 7692 §7.2.3.4): what follows is a stream of its own.
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
