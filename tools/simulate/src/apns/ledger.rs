//! The ledger: the outcome of each push, in order, up to a bound.

use serde::{Deserialize, Serialize};

use super::Reason;

/// What the sender received as an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplyOutcome {
    /// The whole answer.
    Sent,
    /// No answer.
    Lost,
    /// HEADERS without END_STREAM.
    Half,
    /// RST_STREAM.
    Reset,
}

/// A processed push: accepted with status 200, rejected with any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Position in the ledger, from 1.
    pub n: u64,
    /// Milliseconds since the simulator was started.
    pub at_ms: u64,
    /// Number of the connection, from 1.
    pub connection: u32,
    /// Stream id.
    pub stream: u32,
    /// The push's `apns-id`: chosen by the sender, or generated.
    pub apns_id: String,
    /// The device token, or the bundle id of a broadcast.
    pub device_token: String,
    /// The topic.
    pub topic: String,
    /// The first eight bytes of the payload's SHA-256, in hexadecimal.
    pub body_sha256: String,
    /// 200: accepted.
    pub status: u16,
    /// Reason of a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// What the sender received as an answer.
    pub answer: ReplyOutcome,
}

/// The stored form of an entry. Device tokens are stored in one buffer, and each topic once.
#[derive(Debug)]
struct Row {
    at_ms: u64,
    connection: u32,
    stream: u32,
    apns_id: [u8; 16],
    body: [u8; 8],
    token_end: u32,
    topic: u16,
    reason: Option<Reason>,
    answer: ReplyOutcome,
}

const _: () = assert!(size_of::<Row>() <= 56);

/// Distinct topics that are recorded; further ones are recorded as "(others)".
const TOPICS_MAX: usize = 10_000;

/// The data of a new entry.
pub(crate) struct LedgerLine<'a> {
    pub(crate) at_ms: u64,
    pub(crate) connection: u32,
    pub(crate) stream: u32,
    pub(crate) apns_id: [u8; 16],
    pub(crate) device_token: &'a [u8],
    pub(crate) topic: &'a str,
    pub(crate) body: [u8; 8],
    pub(crate) reason: Option<Reason>,
    pub(crate) answer: ReplyOutcome,
}

/// Entries up to a bound. Later ones are not stored, only counted by [`Ledger::beyond`].
#[derive(Debug)]
pub(crate) struct Ledger {
    rows: Vec<Row>,
    rows_max: usize,
    beyond: u64,
    tokens: Vec<u8>,
    topics: Vec<String>,
}

impl Ledger {
    pub(crate) fn new(rows_max: usize) -> Ledger {
        Ledger {
            rows: Vec::new(),
            rows_max: rows_max.min(10_000_000),
            beyond: 0,
            tokens: Vec::new(),
            topics: Vec::new(),
        }
    }

    /// Returns whether the next entry will be stored; if not, its hash need not be computed.
    pub(crate) fn has_room(&self) -> bool {
        self.rows.len() < self.rows_max
    }

    pub(crate) fn push(&mut self, line: &LedgerLine<'_>) {
        if !self.has_room() {
            self.beyond += 1;
            return;
        }
        self.tokens.extend_from_slice(line.device_token);
        let topic = self.topic(line.topic);
        self.rows.push(Row {
            at_ms: line.at_ms,
            connection: line.connection,
            stream: line.stream,
            apns_id: line.apns_id,
            body: line.body,
            // Fits `u32`: 10,000,000 tokens of at most 200 bytes.
            token_end: self.tokens.len() as u32,
            topic,
            reason: line.reason,
            answer: line.answer,
        });
    }

    pub(crate) fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Returns at most `max` entries after the first `after`.
    pub(crate) fn entries(&self, after: usize, max: usize) -> impl Iterator<Item = Entry> {
        (after..self.rows.len()).take(max).map(|at| {
            let row = &self.rows[at];
            let begin = at.checked_sub(1).map_or(0, |before| self.rows[before].token_end);
            let token = &self.tokens[begin as usize..row.token_end as usize];
            Entry {
                n: at as u64 + 1,
                at_ms: row.at_ms,
                connection: row.connection,
                stream: row.stream,
                apns_id: uuid(&row.apns_id),
                device_token: String::from_utf8_lossy(token).into_owned(),
                topic: self.topics[usize::from(row.topic)].clone(),
                body_sha256: row.body.iter().map(|byte| format!("{byte:02x}")).collect(),
                status: row.reason.map_or(200, Reason::status),
                reason: row.reason,
                answer: row.answer,
            }
        })
    }

    pub(crate) fn clear(&mut self) {
        *self = Ledger::new(self.rows_max);
    }

    fn topic(&mut self, topic: &str) -> u16 {
        // A linear search is enough: there are few apps and many pushes.
        if let Some(place) = self.topics.iter().position(|known| known == topic) {
            return place as u16;
        }
        if self.topics.len() > TOPICS_MAX {
            return TOPICS_MAX as u16;
        }
        let others = self.topics.len() == TOPICS_MAX;
        self.topics.push(if others { "(others)".to_owned() } else { topic.to_owned() });
        self.topics.len() as u16 - 1
    }
}

/// Returns a UUID in its canonical form (RFC 9562 §4), in lower case.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    String::from_utf8_lossy(&uuid_text(bytes)).into_owned()
}

/// Like [`uuid`], without an allocation.
pub(crate) fn uuid_text(bytes: &[u8; 16]) -> [u8; 36] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 15)];
        at += 2;
    }
    text
}

/// Parses a UUID in its canonical form; upper and lower case are accepted.
pub(crate) fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    if text.len() != 36 || [8, 13, 18, 23].iter().any(|&at| text[at] != b'-') {
        return None;
    }
    let mut bytes = [0; 16];
    let mut digits = text.iter().enumerate().filter(|(at, _)| ![8, 13, 18, 23].contains(at));
    for byte in &mut bytes {
        let high = char::from(*digits.next()?.1).to_digit(16)?;
        let low = char::from(*digits.next()?.1).to_digit(16)?;
        *byte = (high << 4 | low) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stream: u32, device_token: &[u8]) -> LedgerLine<'_> {
        LedgerLine {
            at_ms: 7,
            connection: 1,
            stream,
            apns_id: [0x5a; 16],
            device_token,
            topic: "com.example",
            body: [1; 8],
            reason: None,
            answer: ReplyOutcome::Sent,
        }
    }

    #[test]
    fn entries_come_back_in_order_and_the_bound_is_reported() {
        let mut ledger = Ledger::new(2);
        for (stream, token) in [(1, &b"aa"[..]), (3, b"bbbb"), (5, b"cc")] {
            ledger.push(&line(stream, token));
        }
        let entries: Vec<Entry> = ledger.entries(0, 10).collect();
        assert_eq!(entries.iter().map(|entry| entry.stream).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(entries[1].device_token, "bbbb");
        assert_eq!(entries[1].apns_id, "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a");
        assert_eq!(ledger.beyond(), 1);
        assert_eq!(ledger.entries(1, 10).next().unwrap().n, 2);
        assert_eq!(ledger.entries(5, 10).count(), 0);
    }

    #[test]
    fn a_uuid_is_read_as_it_is_written() {
        let bytes = *b"\x12\x3e\x45\x67\xe8\x9b\x12\xd3\xa4\x56\x42\x66\x55\x44\x00\x00";
        assert_eq!(parse_uuid(uuid(&bytes).as_bytes()), Some(bytes));
        for text in [
            "",
            "123e4567-e89b-12d3-a456-4266554400",
            "123e4567ae89b-12d3-a456-426655440000",
            "123e4567-e89b-12d3-a456-42665544000g",
        ] {
            assert_eq!(parse_uuid(text.as_bytes()), None, "{text}");
        }
    }
}
