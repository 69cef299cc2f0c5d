//! Bounds on what one HTTP message may cost.

/// Bounds on what one message may cost, enforced from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a head: start line, headers and the empty line. More gives status 431.
    pub head_bytes_max: usize,
    /// Bytes of a request target. More gives status 414.
    pub target_bytes_max: usize,
    /// Headers of a head, at most [`HEADERS_MAX`](super::HEADERS_MAX). More give status 431.
    pub headers_max: usize,
    /// Bytes of a body, without its framing. More give status 413.
    pub body_bytes_max: u64,
    /// Bytes of chunk extensions and trailers of a chunked body, together. Beyond it the status is
    /// 400 or 431. Without this bound a peer could send extensions, which the caller never sees,
    /// for ever.
    pub chunk_overhead_bytes_max: u32,
}

impl Default for Limits {
    /// 16 KiB of head, 8 KiB of target, 100 headers, 1 MiB of body.
    fn default() -> Limits {
        Limits {
            head_bytes_max: 16 * 1024,
            target_bytes_max: 8 * 1024,
            headers_max: 100,
            body_bytes_max: 1024 * 1024,
            chunk_overhead_bytes_max: 8 * 1024,
        }
    }
}
