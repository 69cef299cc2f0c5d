//! The static table and the dynamic table (§2.3).

use std::collections::VecDeque;

/// Overhead of an entry in bytes, beside its name and value (§4.1).
const ENTRY_BYTES: usize = 32;

/// Entries 1 to 61 (appendix A).
#[rustfmt::skip]
pub(super) static STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The dynamic table: fields sent before, newest first.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
}

/// Name and value in one allocation.
#[derive(Debug)]
struct Entry {
    text: Box<[u8]>,
    name_bytes: usize,
}

impl Entry {
    fn field(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.name_bytes)
    }

    fn bytes(&self) -> usize {
        self.text.len() + ENTRY_BYTES
    }
}

/// Result of a search for a field, with its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// Name and value match.
    Field(usize),
    /// Only the name matches.
    Name(usize),
    Nothing,
}

impl Table {
    pub(super) fn new(bytes_max: usize) -> Table {
        Table { entries: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub(super) fn resize(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.evict(0);
    }

    /// Returns the field at an index: 1 to 61 are static, dynamic from 62 on.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        self.entries.get(index - STATIC.len()).map(Entry::field)
    }

    /// Inserts a field at the front. A field larger than the table empties it without error (§4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let bytes = name.len() + value.len() + ENTRY_BYTES;
        self.evict(bytes);
        if bytes <= self.bytes_max {
            let mut text = Vec::with_capacity(name.len() + value.len());
            text.extend_from_slice(name);
            text.extend_from_slice(value);
            self.bytes += bytes;
            self.entries.push_front(Entry { text: text.into(), name_bytes: name.len() });
        }
    }

    fn evict(&mut self, room: usize) {
        while self.bytes + room > self.bytes_max {
            let Some(entry) = self.entries.pop_back() else { return };
            self.bytes -= entry.bytes();
        }
    }

    /// Returns the best match for a field.
    #[inline]
    pub(super) fn find(&self, name: &[u8], value: &[u8]) -> Match {
        let mut found = Match::Nothing;
        for (index, entry) in self.entries.iter().enumerate() {
            let (known, known_value) = entry.field();
            if known == name {
                if known_value == value {
                    return Match::Field(STATIC.len() + 1 + index);
                }
                if found == Match::Nothing {
                    found = Match::Name(STATIC.len() + 1 + index);
                }
            }
        }
        for index in static_range(name) {
            let (known, known_value) = STATIC[index - 1];
            if known.as_bytes() == name {
                if known_value.as_bytes() == value {
                    return Match::Field(index);
                }
                // A static index is encoded in fewer bytes than a dynamic one.
                if !matches!(found, Match::Name(index) if index <= STATIC.len()) {
                    found = Match::Name(index);
                }
            }
        }
        found
    }
}

/// Returns the static indexes that a name can have. Pseudo-headers come first, the others are in
/// alphabetical order with one exception, so that the first letter bounds the search.
#[inline]
fn static_range(name: &[u8]) -> std::ops::Range<usize> {
    match name.first() {
        Some(b':') => 1..15,
        Some(b'a') => 15..24,
        Some(b'c') => 24..33,
        Some(b'd'..=b'h') => 33..39,
        Some(b'i'..=b'l') => 39..47,
        Some(b'm'..=b'r') => 47..54,
        Some(b's'..=b't') => 54..58,
        Some(b'u'..=b'w') => 58..62,
        _ => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_static_entry_is_found_at_its_first_index() {
        let table = Table::new(0);
        for (index, (name, value)) in (1..).zip(STATIC) {
            assert_eq!(
                table.find(name.as_bytes(), value.as_bytes()),
                Match::Field(index),
                "{name}"
            );
        }
    }
}
