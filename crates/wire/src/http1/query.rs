//! Query strings as browsers write them (`application/x-www-form-urlencoded`).

use std::borrow::Cow;

/// Iterates over the decoded name and value of each pair. Borrows those that need no decoding.
///
/// ```
/// use dunlin_wire::http1::query;
///
/// let pairs: Vec<_> = query::pairs("channel=a%20b&channel=c&cursor=").collect();
/// assert_eq!(pairs[0], ("channel".into(), "a b".into()));
/// assert_eq!(pairs[1], ("channel".into(), "c".into()));
/// assert_eq!(pairs[2], ("cursor".into(), "".into()));
/// ```
pub fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    })
}

/// Decodes `+` to a space and `%XX` to a byte. A `%` without two hexadecimal digits is kept; bytes
/// that are not UTF-8 become U+FFFD.
pub fn decode(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| matches!(byte, b'+' | b'%')) {
        return Cow::Borrowed(text);
    }
    unescape(text, true)
}

/// Decodes `%XX` only, as in a path, where `+` stands for itself.
pub fn decode_path(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    unescape(path, false)
}

fn unescape(text: &str, plus: bool) -> Cow<'_, str> {
    let mut bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    while let [byte, rest @ ..] = bytes {
        bytes = rest;
        match (byte, rest) {
            (b'+', _) if plus => out.push(b' '),
            (b'%', [high, low, behind @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    bytes = behind;
                }
                _ => out.push(b'%'),
            },
            _ => out.push(*byte),
        }
    }
    match String::from_utf8(out) {
        Ok(text) => Cow::Owned(text),
        Err(error) => Cow::Owned(String::from_utf8_lossy(error.as_bytes()).into_owned()),
    }
}

fn digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}
