//! HTTP/1.1 messages as bytes (RFC 9112): decoders for requests and responses, encoders for both.
//!
//! `httparse` parses the syntax of a head; this module decides what it *means*, strictly: two
//! programs that disagree on where a message ends can be made to disagree on who sent the next one
//! (RFC 9112 §11.2). A bare LF, a second `Content-Length`, `Content-Length` together with
//! `Transfer-Encoding`, a coding that does not end in `chunked`, a folded line and white space
//! before a colon are errors.
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
pub use response::{ResponseHead, decode_response};
pub use status::reason_phrase;
pub(crate) use writer::write_field;
pub use writer::{CONTINUE, RequestWriter, ResponseWriter};

/// Result of decoding a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<H> {
    /// The head is not complete. Keep the bytes and call again with more behind them.
    NeedMore,
    /// A head, and the number of bytes it took. The body begins right behind them.
    Head(H, usize),
}

/// The protocol version of a message. Only the two versions a `HTTP/1` peer may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// `HTTP/1.0`: connections close unless asked otherwise, and there are no transfer codings.
    Http10,
    /// `HTTP/1.1`.
    Http11,
}

impl Version {
    /// The version as it stands in a message.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        }
    }
}
