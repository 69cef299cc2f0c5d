//! Answers to reads of stored messages, from a replica or the leader.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dunlin_wire::nats::Headers;
use serde::Deserialize;

use super::jetstream_error::JetStreamError;
use super::message::State;
use crate::frame::Frame;

/// The code for no message with this sequence or subject.
const NO_MESSAGE: u32 = 10_037;

/// A message of the stream.
pub(super) struct StoredMessage<'a> {
    pub(super) sequence: u64,
    pub(super) state: State,
    pub(super) frame: Frame<'a>,
}

/// The result of a read of a message.
pub(super) enum StoredReply<'a> {
    Stored(StoredMessage<'a>),
    Nothing,
    /// Another program wrote the message.
    Unreadable,
    /// No server can answer.
    Unavailable,
}

/// The requested message, in the form of a replica or of the stream's leader.
pub(super) struct Message<'a> {
    /// The status sent in place of the message.
    pub(super) status: Option<u16>,
    sequence: Option<u64>,
    pub(super) payload: Cow<'a, [u8]>,
}

/// The leader's answer.
#[derive(Deserialize)]
struct LeaderResponse {
    message: Option<LeaderMessage>,
    error: Option<JetStreamError>,
}

#[derive(Deserialize)]
struct LeaderMessage {
    seq: u64,
    #[serde(default)]
    data: String,
}

impl<'a> Message<'a> {
    pub(super) fn of_replica(headers: Headers<'_>, payload: &'a [u8]) -> Message<'a> {
        let sequence = headers.get("Nats-Sequence").and_then(|text| text.parse().ok());
        Message { status: headers.status(), sequence, payload: payload.into() }
    }

    pub(super) fn of_leader(headers: Headers<'_>, payload: &[u8]) -> Message<'a> {
        let without = |status| Message { status, sequence: None, payload: Cow::default() };
        if headers.status().is_some() {
            return without(headers.status());
        }
        match serde_json::from_slice(payload) {
            Ok(LeaderResponse { message: Some(LeaderMessage { seq, data }), .. }) => {
                let payload = BASE64_STANDARD.decode(data).unwrap_or_default().into();
                Message { status: None, sequence: Some(seq), payload }
            }
            Ok(LeaderResponse { error: Some(error), .. }) if error.err_code == NO_MESSAGE => {
                without(Some(404))
            }
            _ => without(Some(503)),
        }
    }

    pub(super) fn read(&self) -> StoredReply<'_> {
        match self.status {
            Some(404) => return StoredReply::Nothing,
            Some(_) => return StoredReply::Unavailable,
            None => {}
        }
        match (self.sequence, State::parse(&self.payload)) {
            (Some(sequence), Ok((Some(state), rest))) => match Frame::parse(rest) {
                Ok(frame) => StoredReply::Stored(StoredMessage { sequence, state, frame }),
                Err(_) => StoredReply::Unreadable,
            },
            _ => StoredReply::Unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_leader(json: &str) -> (Option<u16>, Option<u64>, Vec<u8>) {
        let message = Message::of_leader(Headers::default(), json.as_bytes());
        (message.status, message.sequence, message.payload.into_owned())
    }

    #[test]
    fn a_leader_that_has_nothing_differs_from_one_that_cannot_say() {
        let there = r#"{"message":{"subject":"s","seq":7,"data":"aGk="}}"#;
        assert_eq!(of_leader(there), (None, Some(7), b"hi".to_vec()));
        let nothing = r#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#;
        assert_eq!(of_leader(nothing), (Some(404), None, Vec::new()));
        for json in [r#"{"error":{"code":503,"err_code":10008}}"#, "{}", "no JSON"] {
            assert_eq!(of_leader(json).0, Some(503), "{json}");
        }
    }
}
