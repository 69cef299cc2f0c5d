//! Close frames: their codes and reasons (RFC 6455 §5.5.1, §7.4).

use super::Error;

/// The maximum length of a close reason: the 125 bytes of a control frame minus the code.
pub const CLOSE_REASON_BYTES_MAX: usize = 123;

/// Close codes by name (RFC 6455 §7.4.1 and the IANA registry).
pub mod close_code {
    /// The purpose of the connection has been fulfilled.
    pub const NORMAL: u16 = 1000;
    /// The endpoint goes away: a server stops, a user leaves a page.
    pub const GOING_AWAY: u16 = 1001;
    /// Protocol error.
    pub const PROTOCOL: u16 = 1002;
    /// The endpoint does not accept this type of data.
    pub const UNSUPPORTED: u16 = 1003;
    /// Stands for a close frame without a code; never sent.
    pub const NONE: u16 = 1005;
    /// Stands for a connection that closed without a close frame; never sent.
    pub const ABNORMAL: u16 = 1006;
    /// The data contradicts its type, such as text that is not UTF-8.
    pub const INVALID_DATA: u16 = 1007;
    /// A message breaks the endpoint's policy.
    pub const POLICY: u16 = 1008;
    /// A message is too big.
    pub const TOO_BIG: u16 = 1009;
    /// The server's handshake lacks an extension that the client needs.
    pub const EXTENSION_MISSING: u16 = 1010;
    /// The server encountered an unexpected condition.
    pub const INTERNAL: u16 = 1011;
    /// The server restarts; reconnect after a random delay.
    pub const RESTART: u16 = 1012;
    /// The server is overloaded; try again later.
    pub const TRY_LATER: u16 = 1013;
}

/// Returns true for codes allowed in a close frame: the defined and the registered ones, and the
/// ranges for libraries (3000–3999) and applications (4000–4999).
pub fn is_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// The content of a close frame that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseFrame<'a> {
    /// The code; [`is_close_code`] is true for it.
    pub code: u16,
    /// The reason, often empty.
    pub reason: &'a str,
}

impl<'a> CloseFrame<'a> {
    /// Parses the payload of a close frame; `None` when it is empty.
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
