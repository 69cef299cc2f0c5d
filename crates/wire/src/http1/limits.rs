//! Bounds on what one HTTP message may cost.

/// Bounds on what one message may cost, holding from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a head: start line, headers and the empty line. Beyond: status 431.
    pub head_bytes_max: usize,
    /// Bytes of a request target. Beyond: status 414.
    pub target_bytes_max: usize,
    /// Headers of a head, at most [`HEADERS_MAX`](super::HEADERS_MAX). Beyond: status 431.
    pub headers_max: usize,
    /// Bytes of a body, without its framing. Beyond: status 413.
    pub body_bytes_max: u64,
    /// Bytes that a chunked body may spend on chunk extensions and trailers together. Beyond:
    /// status 400 or 431. They carry nothing the caller sees, so a peer could send them for ever.
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
