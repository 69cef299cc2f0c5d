//! A header block in one HEADERS frame, or in that and CONTINUATION frames behind it (§4.3).

use super::Error;
use super::frame::Frame;

/// The most CONTINUATION frames of one block: an honest peer fills each to MAX_FRAME_SIZE, so a block
/// within its bound needs a handful. Without the limit empty ones cost the sender nothing
/// (CVE-2024-27316 and its relatives).
pub const CONTINUATIONS_MAX: u32 = 16;

/// Puts a header block together. While one is under way no other frame may come.
#[derive(Debug)]
pub struct HeaderAssembly {
    block: Vec<u8>,
    block_bytes_max: usize,
    /// The stream whose block is under way, and whether it ends with the block.
    under_way: Option<(u32, bool)>,
    continuations: u32,
}

/// A whole header block, still compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderBlock<'a> {
    /// The stream it is on.
    pub stream: u32,
    /// Nothing follows on the stream.
    pub end_stream: bool,
    /// For [`hpack::Decoder::decode`](super::hpack::Decoder::decode).
    pub block: &'a [u8],
}

impl HeaderAssembly {
    /// A block may have `block_bytes_max` compressed bytes.
    pub fn new(block_bytes_max: usize) -> HeaderAssembly {
        HeaderAssembly { block: Vec::new(), block_bytes_max, under_way: None, continuations: 0 }
    }

    /// Is to see every frame, in order; says when a block is whole. Nothing is copied of a block that is
    /// whole in one frame.
    ///
    /// # Errors
    ///
    /// Another frame inside a block, CONTINUATION outside one, a block beyond its bound or in too many
    /// pieces.
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
