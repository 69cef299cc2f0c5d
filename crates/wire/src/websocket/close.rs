//! Close frames: their codes and reasons (RFC 6455 §5.5.1, §7.4).

use super::Error;

/// The most bytes a close reason can have: a control frame's 125 without the code.
pub const CLOSE_REASON_BYTES_MAX: usize = 123;

/// Close codes by name (RFC 6455 §7.4.1 and the IANA registry).
pub mod close_code {
    /// The purpose of the connection is fulfilled.
    pub const NORMAL: u16 = 1000;
    /// The endpoint is going away: a server stops, a page is left.
    pub const GOING_AWAY: u16 = 1001;
    /// A protocol error.
    pub const PROTOCOL: u16 = 1002;
    /// A kind of data that the endpoint does not accept.
    pub const UNSUPPORTED: u16 = 1003;
    /// Stands for a close frame without code; never sent.
    pub const NONE: u16 = 1005;
    /// Stands for a connection that closed without a close frame; never sent.
    pub const ABNORMAL: u16 = 1006;
    /// Data that contradicts its type, such as text that is not UTF-8.
    pub const INVALID_DATA: u16 = 1007;
    /// A message breaks the endpoint's policy.
    pub const POLICY: u16 = 1008;
    /// A message is too big.
    pub const TOO_BIG: u16 = 1009;
    /// A client misses an extension in the server's handshake.
    pub const EXTENSION_MISSING: u16 = 1010;
    /// An unexpected condition in the server.
    pub const INTERNAL: u16 = 1011;
    /// The server restarts; reconnect after a random delay.
    pub const RESTART: u16 = 1012;
    /// The server is overloaded; try again later.
    pub const TRY_LATER: u16 = 1013;
}

/// True for codes that may stand in a close frame: those defined for it, those registered, and the
/// ranges for libraries (3000–3999) and applications (4000–4999).
pub fn is_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// The content of a close frame that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseFrame<'a> {
    /// The code; [`is_close_code`] holds.
    pub code: u16,
    /// The reason, often empty.
    pub reason: &'a str,
}

impl<'a> CloseFrame<'a> {
    /// Reads the payload of a close frame; `None` when it is empty.
    pub(super) fn read(payload: &'a [u8]) -> Result<Option<CloseFrame<'a>>, Error> {
        let (code, reason) = match payload {
            [] => return Ok(None),
            [_] => return Err(Error::CloseLength),
            [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
        };
        if !is_close_code(code) {
            return Err(Error::CloseCode(code));
        }
        let reason = simdutf8::basic::from_utf8(reason).map_err(|_| Error::CloseReason)?;
        Ok(Some(CloseFrame { code, reason }))
    }
}
