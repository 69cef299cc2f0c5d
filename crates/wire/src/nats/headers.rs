//! Headers of a message.

/// The headers of a message, as received: `NATS/1.0`, an optional status, and names with values. Default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers<'a>(pub &'a [u8]);

impl<'a> Headers<'a> {
    /// Returns the status that a server sends in place of a message: 404 for a missing one, 503 without a responder.
    pub fn status(&self) -> Option<u16> {
        let line = self.0.strip_prefix(b"NATS/1.0 ")?;
        str::from_utf8(line.get(..3)?).ok()?.parse().ok()
    }

    /// Returns the first value of a name (case-sensitive), without surrounding blanks.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        let lines = self.0.split(|&byte| byte == b'\n').skip(1);
        let value = lines.filter_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"));
        str::from_utf8(value.into_iter().next()?.trim_ascii()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::Headers;

    #[test]
    fn a_header_is_found_by_its_whole_name() {
        let headers =
            Headers(b"NATS/1.0\r\nNats-Sequence-Of: 1\r\nNats-Sequence:  7 \r\nA:\r\n\r\n");
        assert_eq!((headers.get("Nats-Sequence"), headers.status()), (Some("7"), None));
        assert_eq!((headers.get("A"), headers.get("B")), (Some(""), None));
        assert_eq!(Headers(b"NATS/1.0 404 Message Not Found\r\n\r\n").status(), Some(404));
        assert_eq!(Headers(b"NATS/1.0 4").status(), None);
        assert_eq!(Headers::default().get("A"), None);
    }
}
