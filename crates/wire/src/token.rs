//! Byte classes of HTTP's grammar as tables, because heads are checked byte by byte.

/// Bytes of a token (RFC 9110 §5.6.2): names of methods, headers, codings and extensions.
const TOKEN: [bool; 256] = class(b"!#$%&'*+-.^_`|~");

/// Bytes of a host with port (RFC 3986 §3.2.2), without user information.
const AUTHORITY: [bool; 256] = class(b"-._~%!$&'()*+,;=:[]");

#[inline]
pub(crate) fn is_token_byte(byte: &u8) -> bool {
    TOKEN[usize::from(*byte)]
}

/// Returns true for one or more token bytes.
#[inline]
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(is_token_byte)
}

#[inline]
pub(crate) fn is_authority(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| AUTHORITY[usize::from(*byte)])
}

/// Returns the class of letters, digits and `others`.
const fn class(others: &[u8]) -> [bool; 256] {
    let mut class = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        class[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut index = 0;
    while index < others.len() {
        class[others[index] as usize] = true;
        index += 1;
    }
    class
}
