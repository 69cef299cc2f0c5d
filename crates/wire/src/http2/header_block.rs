//! A header block in a HEADERS frame and the CONTINUATION frames that follow it (§4.3).

use super::Error;
use super::frame::Frame;

/// Maximum number of CONTINUATION frames of one block. An honest peer fills each to MAX_FRAME_SIZE,
/// so a block within its limit needs only a few. Without this limit, empty frames cost the sender
/// nothing (CVE-2024-27316 and related).
pub const CONTINUATIONS_MAX: u32 = 16;

/// Assembles a header block. No other frame may come before it is complete.
#[derive(Debug)]
pub struct HeaderAssembly {
    block: Vec<u8>,
    block_bytes_max: usize,
    /// The stream of the incomplete block, and whether it ends with the block.
    under_way: Option<(u32, bool)>,
    continuations: u32,
}

/// A complete header block, still compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderBlock<'a> {
    /// Its stream.
    pub stream: u32,
    /// Whether nothing else follows on the stream.
    pub end_stream: bool,
    /// The bytes for [`hpack::Decoder::decode`](super::hpack::Decoder::decode).
    pub block: &'a [u8],
}

impl HeaderAssembly {
    /// Creates an assembly for blocks of at most `block_bytes_max` compressed bytes.
    pub fn new(block_bytes_max: usize) -> HeaderAssembly {
        HeaderAssembly { block: Vec::new(), block_bytes_max, under_way: None, continuations: 0 }
    }

    /// Handles every frame, in order; returns a block when it is complete. A block in a single
    /// frame is not copied.
    ///
    /// # Errors
    ///
    /// Another frame inside a block, CONTINUATION outside one, a block that is too long or has too
    /// many parts.
    #[inline]
    pub fn handle_frame<'a>(
        &'a mut self,
        frame: &Frame<'a>,
    ) -> Result<Option<HeaderBlock<'a>>, Error> {
        match (*frame, self.under_way) {
            (Frame::Headers { stream, fragment, end_stream, end_headers, .. }, None) => {
                if fragment.len() > self.block_bytes_max {
                    return Err(Error::flood("header block is too long"));
                }
                if end_headers {
                    return Ok(Some(HeaderBlock { stream, end_stream, block: fragment }));
                }
                self.block.clear();
                self.block.extend_from_slice(fragment);
                self.under_way = Some((stream, end_stream));
                self.continuations = 0;
                Ok(None)
            }
            (Frame::Continuation { stream, fragment, end_headers }, Some((begun, end_stream)))
                if stream == begun =>
            {
                self.continuations += 1;
                if self.continuations > CONTINUATIONS_MAX
                    || self.block.len() + fragment.len() > self.block_bytes_max
                {
                    return Err(Error::flood("header block is too long"));
                }
                self.block.extend_from_slice(fragment);
                if !end_headers {
                    return Ok(None);
                }
                self.under_way = None;
                Ok(Some(HeaderBlock { stream, end_stream, block: &self.block }))
            }
            (_, Some(_)) => Err(Error::protocol("another frame inside a header block")),
            (Frame::Continuation { .. }, None) => {
                Err(Error::protocol("CONTINUATION outside a header block"))
            }
            (_, None) => Ok(None),
        }
    }
}
