//! Many copies of one rendered request.

/// Many consecutive copies of a rendered request. Any number of them can be written at once without copying.
///
/// ```
/// use dunlin_pipeline::Copies;
///
/// let copies = Copies::new(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 100);
/// assert_eq!(copies.slice(2), b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
/// assert_eq!(copies.slice(1000).len(), 100 * copies.request_bytes());
/// ```
#[derive(Clone, Debug)]
pub struct Copies {
    bytes: Vec<u8>,
    request_bytes: usize,
}

impl Copies {
    /// Creates `count` copies of a request; at least one.
    pub fn new(request: &[u8], count: usize) -> Copies {
        Copies { bytes: request.repeat(count.max(1)), request_bytes: request.len() }
    }

    /// Returns the first `count` copies, or all if there are fewer.
    #[inline]
    pub fn slice(&self, count: u32) -> &[u8] {
        let bytes = (count as usize).saturating_mul(self.request_bytes);
        &self.bytes[..bytes.min(self.bytes.len())]
    }

    /// Returns the size of one copy in bytes.
    pub fn request_bytes(&self) -> usize {
        self.request_bytes
    }
}
