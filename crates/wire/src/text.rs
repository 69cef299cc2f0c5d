//! Texts from files that people and their editors write.

/// The mark with which some editors begin a file: U+FEFF in UTF-8. It says nothing (RFC 3629 §6).
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Returns the contents of a file without the byte order mark at its head.
///
/// ```
/// use dunlin_wire::text::without_byte_order_mark;
///
/// assert_eq!(without_byte_order_mark(b"\xef\xbb\xbf{}"), b"{}");
/// assert_eq!(without_byte_order_mark(b"{}"), b"{}");
/// ```
pub fn without_byte_order_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}

/// Returns a text without the byte order mark at its head.
///
/// ```
/// use dunlin_wire::text::trim_byte_order_mark;
///
/// assert_eq!(trim_byte_order_mark("\u{feff}[server]"), "[server]");
/// ```
pub fn trim_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}
