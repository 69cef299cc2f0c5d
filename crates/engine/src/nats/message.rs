//! Messages of a channel in the stream.
//!
//! A stored message is `n`, the length-prefixed Protocol Buffers message with the state of the stream after it, and a message
//! in the format of all engines ([`frame`](crate::frame)):
//!
//! ```text
//! message State    { uint64 generation = 1; uint64 nonce = 2; repeated Position inherits = 3; uint64 version = 4;
//!                    string version_epoch = 5; repeated uint64 before = 6; }
//! message Position { uint64 epoch = 1; uint64 offset = 2; }
//! ```
//!
//! The last message of a channel contains the whole state, so no other has to be read to continue. An unstored publication is
//! only a message in the format of all engines.

use std::sync::Arc;

use dunlin_hub::engine::Lineage;
use dunlin_hub::{Epoch, StreamPosition, wildcard};
use dunlin_wire::protobuf::{Delimited, Fields, ProtobufError, Writer};

/// Maximum number of earlier epochs that a stream stores, and of earlier messages that a message lists.
const REMEMBERED: usize = 8;

/// The state of the stream in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The generation of the server's data when the epoch began.
    pub(crate) generation: u64,
    /// The nonce by which the sender finds its message again.
    pub(crate) nonce: u64,
    /// The positions up to which earlier epochs are equivalent, newest first.
    pub(crate) inherits: Arc<[StreamPosition]>,
    /// The version of the last publication.
    pub(crate) version: u64,
    pub(crate) version_epoch: Arc<str>,
    /// Sequences of the channel's earlier messages, newest first, back to the one that removed the others.
    pub(crate) before: Vec<u64>,
}

impl State {
    /// Returns the state after the next message, if the last one is at `sequence`.
    pub(crate) fn next(&self, sequence: u64, nonce: u64) -> State {
        let last = (sequence > 0).then_some(sequence);
        let before = last.into_iter().chain(self.before.iter().copied()).take(REMEMBERED);
        State { nonce, before: before.collect(), ..self.clone() }
    }

    /// Returns the state of a stream that continues in another generation.
    pub(crate) fn inheriting(&self, position: StreamPosition, generation: u64) -> State {
        let inherits = [position].into_iter().chain(self.inherits.iter().copied());
        State { generation, inherits: inherits.take(REMEMBERED).collect(), ..self.clone() }
    }

    pub(crate) fn lineage(&self) -> Lineage {
        self.inherits.iter().copied().collect()
    }

    /// Returns the offset up to which an earlier epoch is equivalent.
    pub(crate) fn reach(&self, epoch: Epoch) -> Option<u64> {
        self.inherits.iter().find(|at| at.epoch == epoch).map(|at| at.offset)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(b'n');
        Writer::delimited(out, |writer| {
            writer.unsigned(1, self.generation);
            writer.unsigned(2, self.nonce);
            for at in self.inherits.iter() {
                writer.message(3, |writer| {
                    writer.unsigned(1, at.epoch.to_u64());
                    writer.unsigned(2, at.offset);
                });
            }
            writer.unsigned(4, self.version);
            writer.string(5, &self.version_epoch);
            for &sequence in &self.before {
                writer.unsigned(6, sequence);
            }
        });
    }

    /// Splits a message into the state and the rest; the state is `None` for an unstored message.
    pub(crate) fn parse(payload: &[u8]) -> Result<(Option<State>, &[u8]), ProtobufError> {
        let Some(rest) = payload.strip_prefix(b"n") else { return Ok((None, payload)) };
        let mut messages = Delimited::of(rest);
        let message = messages.next().unwrap_or(Ok(&[]))?;
        let state = State::decode(message)?;
        Ok((Some(state), messages.rest()))
    }

    fn decode(message: &[u8]) -> Result<State, ProtobufError> {
        let mut state = State::default();
        let mut inherits = Vec::new();
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                1 => state.generation = field.value.uint64()?,
                2 => state.nonce = field.value.uint64()?,
                3 if inherits.len() < REMEMBERED => {
                    let mut position = StreamPosition::default();
                    for field in Fields::of(field.value.bytes()?) {
                        let field = field?;
                        match field.number {
                            1 => position.epoch = Epoch::from_u64(field.value.uint64()?),
                            2 => position.offset = field.value.uint64()?,
                            _ => {}
                        }
                    }
                    inherits.push(position);
                }
                4 => state.version = field.value.uint64()?,
                5 => state.version_epoch = field.value.string()?.into(),
                6 if state.before.len() < REMEMBERED => state.before.push(field.value.uint64()?),
                _ => {}
            }
        }
        state.inherits = inherits.into();
        Ok(state)
    }
}

/// Encodes a channel as tokens of a subject: the common prefix of its namespace and tenant as one token, then each of its own
/// tokens. Channels that no wildcard matches have a distinct first token.
pub(crate) fn words(channel: &str) -> String {
    let (head, tokens) = wildcard::split(channel);
    let mut words = head_word(head);
    if tokens.contains(wildcard::USERS) {
        words.push('%');
    }
    for token in tokens.split('.') {
        words.push('.');
        words.push_str(&if token.is_empty() { "%".to_owned() } else { word(token) });
    }
    words
}

/// Encodes a wildcard as tokens of a subject.
pub(crate) fn wildcard_words(name: &str) -> String {
    let (head, tokens) = wildcard::split(name);
    let mut words = head_word(head);
    for token in tokens.split('.') {
        words.push('.');
        match token {
            "*" | ">" => words.push_str(token),
            token => words.push_str(&word(token)),
        }
    }
    words
}

/// Returns the channel of a message received through a wildcard, from the tokens of its subject.
pub(crate) fn channel_of(name: &str, words: &str) -> Option<String> {
    let (head, _) = wildcard::split(name);
    let tokens = words.strip_prefix(&head_word(head))?.strip_prefix('.')?;
    let mut channel = head.as_bytes().to_vec();
    for (at, token) in tokens.split('.').enumerate() {
        if at > 0 {
            channel.push(b'.');
        }
        let mut bytes = if token == "%" { "" } else { token }.bytes();
        while let Some(byte) = bytes.next() {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            channel.push(match byte {
                b'%' => u8::try_from(digit()? << 4 | digit()?).ok()?,
                byte => byte,
            });
        }
    }
    String::from_utf8(channel).ok()
}

fn head_word(head: &str) -> String {
    if head.is_empty() { "-".to_owned() } else { word(head) }
}

/// Encodes a name as one token of a subject, escaping special and forbidden characters by their values.
pub fn word(name: &str) -> String {
    let mut word = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b':' | b'#' | b'/' | b'$' => {
                word.push(char::from(byte));
            }
            byte => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                word.push('%');
                word.push(char::from(DIGITS[usize::from(byte >> 4)]));
                word.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_value_decodes_to_itself() {
        let at = |epoch, offset| StreamPosition { epoch: Epoch::from_u64(epoch), offset };
        let mut state = State {
            generation: u64::MAX,
            version: 9,
            version_epoch: "e".into(),
            ..State::default()
        };
        for generation in 0..12 {
            state = state.inheriting(at(generation + 1, generation * 7), generation);
            state = state.next(generation * 3, generation);
        }
        assert_eq!(state.inherits[..2], [at(12, 77), at(11, 70)]);
        assert_eq!(state.before[..2], [33, 30]);
        assert_eq!((state.inherits.len(), state.before.len()), (8, 8));
        assert_eq!((state.reach(at(11, 0).epoch), state.reach(at(1, 0).epoch)), (Some(70), None));
        let mut out = Vec::new();
        state.encode(&mut out);
        out.extend_from_slice(b"1p:0:");
        assert_eq!(State::parse(&out), Ok((Some(state), &b"1p:0:"[..])));
        assert_eq!(State::parse(b"1p:0:"), Ok((None, &b"1p:0:"[..])));
        for cut in 1..out.len() - 5 {
            let _ = State::parse(&out[..cut]);
        }
    }

    #[test]
    fn a_channel_is_the_words_that_it_is_found_by() {
        assert_eq!(words("chat:a.b c"), "chat:.a.b%20c");
        assert_eq!(
            (words("news"), words(""), words("-")),
            ("-.news".into(), "-.%".into(), "-.-".into())
        );
        assert_eq!(words("a..b."), "-.a.%.b.%");
        assert_eq!(words("chat:*.>"), "chat:.%2A.%3E", "nothing in a channel is a wildcard");
        assert_eq!((words("$a"), words("$chat:a")), ("$.a".into(), "$chat:.a".into()));
        assert_eq!((words("chat:a#1"), words("a#1")), ("chat:%.a#1".into(), "-%.a#1".into()));
        let acme = dunlin_hub::tenant::qualify("acme", "chat:a");
        assert_eq!(words(&acme), "%01acme%01chat:.a");
        assert_eq!(
            (wildcard_words("chat:a.*.>"), wildcard_words(">")),
            ("chat:.a.*.>".into(), "-.>".into())
        );
        for (wildcard, channel) in
            [("chat:>", "chat:a..é*%"), (">", "a.b"), ("*", ""), ("chat:a.*", "chat:a.:1")]
        {
            assert_eq!(channel_of(wildcard, &words(channel)).as_deref(), Some(channel));
        }
        for words in ["chat:", "chat.a", "-.a", "chat:%.a#1", "chat:.%4", "chat:.%FF", "$chat:.a"] {
            assert_eq!(channel_of("chat:>", words), None, "{words}");
        }
    }

    #[test]
    fn a_name_is_one_word_and_no_two_are_the_same() {
        assert_eq!(word("chat:room-1"), "chat:room-1");
        assert_eq!(word("a.b *>\r\n%é"), "a%2Eb%20%2A%3E%0D%0A%25%C3%A9");
    }
}
