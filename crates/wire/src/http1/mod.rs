//! HTTP/1.1 messages (RFC 9112): decoders and encoders for requests and responses.
//!
//! `httparse` parses the syntax of a head; this module interprets it strictly. Two programs that
//! disagree on where a message ends can be made to disagree on who sent the next one (RFC 9112
//! §11.2). Errors are: a bare LF, a second `Content-Length` (in a response: another one),
//! `Content-Length` together with `Transfer-Encoding`, a coding that does not end in `chunked`, a
//! folded line (in a response it is read after [`unfolded`]), and white space before a colon.
//!
//! ```
//! use dunlin_wire::http1::{self, Decoded, HeaderSlots, Limits, Method};
//!
//! let bytes = b"GET /connection/poll?channel=news HTTP/1.1\r\nHost: a.example\r\n\r\n";
//! let mut slots = HeaderSlots::new();
//! match http1::decode_request(bytes, &mut slots, &Limits::default()) {
//!     Ok(Decoded::Head(head, consumed)) => {
//!         assert_eq!(head.method, Method::Get);
//!         assert_eq!((head.path, head.query), ("/connection/poll", Some("channel=news")));
//!         assert_eq!(consumed, bytes.len());
//!     }
//!     Ok(Decoded::NeedMore) => unreachable!("the head is complete"),
//!     Err(error) => unreachable!("{error}"),
//! }
//! ```

mod body;
mod chunk;
mod error;
mod header;
mod limits;
mod method;
pub mod query;
mod request;
mod response;
pub mod retry_after;
mod status;
mod writer;

pub use body::{Body, BodyDecoder};
pub use chunk::{LAST_CHUNK, encode_chunk, encode_chunk_with, encode_last_chunk};
pub use error::Error;
pub use header::{HEADERS_MAX, HeaderSlots, Headers};
pub use limits::Limits;
pub use method::Method;
pub use request::{RequestHead, decode_request};
pub use response::{ResponseHead, decode_response, unfolded};
pub use status::reason_phrase;
pub(crate) use writer::write_field;
pub use writer::{CONTINUE, RequestWriter, ResponseWriter};

/// Result of decoding a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<H> {
    /// The head is incomplete. Keep the bytes and call again with more after them.
    NeedMore,
    /// A head, and the number of bytes it takes. The body follows immediately.
    Head(H, usize),
}

/// The protocol version of a message, one of the two that an `HTTP/1` peer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// `HTTP/1.0`: connections close by default, and there are no transfer codings.
    Http10,
    /// `HTTP/1.1`.
    Http11,
}

impl Version {
    /// Returns the version as written in a message.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        }
    }
}
