//! The header fields of a request in order of arrival, and their validation (RFC 9113 §8.2, §8.3).

/// A request's header section in one buffer that is reused for the next request.
#[derive(Debug, Default)]
pub(crate) struct Head {
    bytes: Vec<u8>,
    /// End offsets of each field's name and value in `bytes`; a field begins where the previous one ends.
    ends: Vec<(u32, u32)>,
    pseudo_seen: u8,
    regular_seen: bool,
    content_length: Option<u64>,
    fault: Option<&'static str>,
    /// The section exceeded the decoder's limit and is incomplete.
    pub(crate) truncated: bool,
}

const METHOD: u8 = 1;
const SCHEME: u8 = 2;
const PATH: u8 = 4;
const AUTHORITY: u8 = 8;

impl Head {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.pseudo_seen = 0;
        self.regular_seen = false;
        self.content_length = None;
        self.fault = None;
        self.truncated = false;
    }

    /// Appends a field. [`Head::fault`] returns the first error found.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        if let Err(fault) = self.judge(name, value) {
            self.fault.get_or_insert(fault);
        }
        self.bytes.extend_from_slice(name);
        let name_end = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.ends.push((name_end, self.bytes.len() as u32));
    }

    /// Returns names and values in order of arrival, including pseudo-headers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |&(name_end, end)| {
            let (name_end, end) = (name_end as usize, end as usize);
            let field = (&self.bytes[start..name_end], &self.bytes[name_end..end]);
            start = end;
            field
        })
    }

    /// Returns why these fields are not a valid request; the stream must be reset with PROTOCOL_ERROR (§8.1.1).
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let wanted = METHOD | SCHEME | PATH;
        self.fault.or((self.pseudo_seen & wanted != wanted).then_some("a pseudo-header is missing"))
    }

    /// Returns why these fields are not a valid trailer section.
    pub(crate) fn trailer_fault(&self) -> Option<&'static str> {
        self.fault.or((self.pseudo_seen != 0).then_some("a pseudo-header among trailers"))
    }

    /// Returns the value of `content-length`.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    fn judge(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
            return Err("a value with NUL, CR or LF");
        }
        if let [b':', pseudo @ ..] = name {
            return self.judge_pseudo(pseudo, value);
        }
        self.regular_seen = true;
        let legal =
            |byte: u8| matches!(byte, 0x21..=0x7e) && !byte.is_ascii_uppercase() && byte != b':';
        if name.is_empty() || !name.iter().all(|&byte| legal(byte)) {
            return Err("a header name that is empty, malformed or in upper case");
        }
        match name {
            b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding"
            | b"upgrade" => Err("a field that belongs to a connection of HTTP/1.1"),
            b"te" if value != b"trailers" => Err("te is not trailers"),
            b"content-length" => {
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                let length = length.ok_or("a content-length that is no number")?;
                if self.content_length.replace(length).is_some_and(|before| before != length) {
                    return Err("two lengths");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn judge_pseudo(&mut self, pseudo: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if self.regular_seen {
            return Err("a pseudo-header behind a regular one");
        }
        let bit = match pseudo {
            b"method" => METHOD,
            b"scheme" => SCHEME,
            b"path" => PATH,
            b"authority" => AUTHORITY,
            _ => return Err("a pseudo-header that requests do not have"),
        };
        if self.pseudo_seen & bit != 0 {
            return Err("a pseudo-header twice");
        }
        self.pseudo_seen |= bit;
        if bit == PATH && value.is_empty() { Err("an empty :path") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&str, &str)]) -> Head {
        let mut head = Head::default();
        for (name, value) in [(":method", "POST"), (":scheme", "https"), (":path", "/")] {
            head.push(name.as_bytes(), value.as_bytes());
        }
        for (name, value) in fields {
            head.push(name.as_bytes(), value.as_bytes());
        }
        head
    }

    #[test]
    fn fields_come_back_in_their_order() {
        let head = head(&[("apns-topic", "a"), ("apns-id", "")]);
        let fields: Vec<_> = head.iter().skip(3).collect();
        assert_eq!(fields, [(&b"apns-topic"[..], &b"a"[..]), (b"apns-id", b"")]);
        assert_eq!(head.fault(), None);
        assert!(head.trailer_fault().is_some());
    }

    #[test]
    fn malformed_request_is_reported() {
        for fields in [
            &[("Accept", "x")][..],
            &[("", "x")],
            &[("connection", "close")],
            &[("te", "gzip")],
            &[("x", "a\nb")],
            &[(":method", "GET")],
            &[(":unknown", "x")],
            &[("x", "1"), (":authority", "x")],
            &[("content-length", "x")],
            &[("content-length", "1"), ("content-length", "2")],
        ] {
            assert!(head(fields).fault().is_some(), "{fields:?}");
        }
        assert!(Head::default().fault().is_some());
    }
}
