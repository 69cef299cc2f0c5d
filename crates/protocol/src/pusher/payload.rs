//! Payloads of events and members: conversion between this protocol's strings and the hub's JSON.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dunlin_hub::tenant::has_control;
use dunlin_hub::{ClientInfo, PayloadFormat, Publication};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::USER_ID_BYTES_MAX;
use crate::json::{Json, ObjectOnly, write_string};

/// The publication tag with the name of the event.
pub const EVENT_TAG: &str = "event";
/// The event name of a publication without that tag.
const EVENT_DEFAULT: &str = "message";

/// Returns the payload for the data of an event, which Pusher's libraries send as a string. JSON on one line becomes
/// the payload; any other text becomes a JSON string. In both cases the data of the sent event is the original string.
pub fn payload_of_text(text: &str) -> Box<[u8]> {
    let bytes = text.as_bytes();
    let is_one_line = memchr::memchr2(b'\n', b'\r', bytes).is_none();
    // A JSON string would be sent without its quotes.
    if is_one_line && !text.trim_start().starts_with('"') && Json::parse(bytes).is_ok() {
        return bytes.into();
    }
    let mut out = Vec::with_capacity(bytes.len() + 16);
    write_string(&mut out, text);
    out.into()
}

/// Writes a publication's payload as the string in an event's data.
pub(super) fn write_data(out: &mut Vec<u8>, publication: &Publication) {
    let data = publication.data();
    match (publication.format(), std::str::from_utf8(data)) {
        (PayloadFormat::Json, Ok(_)) if data.first() == Some(&b'"') => out.extend_from_slice(data),
        (_, Ok(text)) => write_string(out, text),
        (_, Err(_)) => write_string(out, &STANDARD.encode(data)),
    }
}

/// Returns the name of an event. A name reserved for protocol events is replaced.
pub(super) fn event_name(publication: &Publication) -> &str {
    let tag = publication.tags().iter().find(|(name, _)| &**name == EVENT_TAG);
    tag.map(|(_, event)| &**event).filter(|event| !is_reserved(event)).unwrap_or(EVENT_DEFAULT)
}

/// Returns whether the name is reserved for protocol events.
pub fn is_reserved(event: &str) -> bool {
    event.starts_with("pusher:") || event.starts_with("pusher_internal:")
}

/// A member of a presence channel: the `channel_data` of a subscription, or the `user_data` of a sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Not empty; the text of a number.
    pub user_id: String,
    /// The backend named the user by a number. Clients of this protocol get it as it was sent.
    pub is_number: bool,
    /// Raw JSON.
    pub user_info: Option<Box<[u8]>>,
}

impl Member {
    /// Parses the `channel_data` of a presence channel.
    ///
    /// # Errors
    ///
    /// Returns a description of the error, for the client.
    pub fn of_channel_data(text: &str) -> Result<Member, String> {
        #[derive(Deserialize)]
        struct Data<'a> {
            #[serde(borrow)]
            user_id: &'a RawValue,
            #[serde(borrow, default)]
            user_info: Option<&'a RawValue>,
        }
        let ObjectOnly(Data { user_id, user_info }) = serde_json::from_str(text)
            .map_err(|error| format!("channel_data is no JSON object with a user_id: {error}"))?;
        let (user_id, is_number) =
            user_id_of(user_id).map_err(|why| format!("channel_data.user_id {why}"))?;
        Ok(Member { user_id, is_number, user_info: info_of(user_info, "channel_data.user_info")? })
    }

    /// Parses the `user_data` of a sign-in.
    ///
    /// # Errors
    ///
    /// Returns a description of the error, for the client.
    pub fn of_user_data(text: &str) -> Result<Member, String> {
        #[derive(Deserialize)]
        struct Data<'a> {
            #[serde(borrow)]
            id: &'a RawValue,
            #[serde(borrow, default)]
            user_info: Option<&'a RawValue>,
        }
        let ObjectOnly(Data { id, user_info }) = serde_json::from_str(text)
            .map_err(|error| format!("user_data is no JSON object with an id: {error}"))?;
        let (user_id, is_number) = user_id_of(id).map_err(|why| format!("user_data.id {why}"))?;
        Ok(Member { user_id, is_number, user_info: info_of(user_info, "user_data.user_info")? })
    }
}

/// Writes the id of a member as the backend named it: a number or a string.
pub fn write_user_id(out: &mut Vec<u8>, member: &ClientInfo) {
    match member.user_is_number {
        true => out.extend_from_slice(member.user.as_bytes()),
        false => write_string(out, &member.user),
    }
}

/// Returns an id, and whether it is a number.
fn user_id_of(raw: &RawValue) -> Result<(String, bool), &'static str> {
    let text = raw.get();
    let is_number = text.starts_with(|first: char| first.is_ascii_digit() || first == '-');
    let id = if text.starts_with('"') {
        serde_json::from_str::<String>(text).map_err(|_| "is no string")?
    } else if is_number {
        text.to_owned()
    } else {
        return Err("is neither a string nor a number");
    };
    match id.len() {
        _ if has_control(&id) => Err("has a control character"),
        1..=USER_ID_BYTES_MAX => Ok((id, is_number)),
        _ => Err("has no bytes, or more than 128"),
    }
}

fn info_of(raw: Option<&RawValue>, field: &str) -> Result<Option<Box<[u8]>>, String> {
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return Ok(None) };
    let json = Json::parse(raw.get().as_bytes()).map_err(|error| format!("{field}: {error}"))?;
    Ok(Some(json.into_bytes()))
}

/// Returns the content of a JSON string, or other JSON as text.
pub(super) fn text_of(raw: &RawValue) -> Result<Cow<'_, str>, serde_json::Error> {
    match raw.get().starts_with('"') {
        true => serde_json::from_str::<crate::json::Text<'_>>(raw.get()).map(|text| text.0),
        false => Ok(Cow::Borrowed(raw.get())),
    }
}

#[cfg(test)]
mod tests {
    use dunlin_hub::PublicationParts;
    use proptest::prelude::*;

    use super::*;

    fn sent(payload: Box<[u8]>) -> String {
        let publication = PublicationParts { data: payload, ..PublicationParts::default() }.into();
        let mut out = Vec::new();
        write_data(&mut out, &publication);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn json_in_a_text_is_json_for_other_clients_and_the_same_text_for_these() {
        for text in ["{\"a\": [1,2]}", "17", "null", "true", "[]"] {
            assert_eq!(&*payload_of_text(text), text.as_bytes());
            assert_eq!(sent(payload_of_text(text)), text);
        }
        for text in ["hello", "", "\"hello\"", " \"x\" ", "{\n}", "{", "a\u{2028}b\0"] {
            assert_eq!(payload_of_text(text)[0], b'"', "{text:?}");
            assert_eq!(sent(payload_of_text(text)), text);
        }
        let bytes = PublicationParts {
            data: (&b"\xff\0"[..]).into(),
            format: PayloadFormat::Binary,
            ..PublicationParts::default()
        };
        let mut out = Vec::new();
        write_data(&mut out, &bytes.into());
        assert_eq!(out, b"\"/wA=\"");
    }

    proptest! {
        #[test]
        fn any_text_comes_through_as_it_is(text in "\\PC*|[\\[\\]{}\",:0-9 \n]*") {
            prop_assert_eq!(sent(payload_of_text(&text)), text);
        }
    }

    #[test]
    fn a_member_is_who_the_data_says() {
        let member =
            Member::of_channel_data(r#"{"user_id":10,"user_info":{"name":"Ada"}}"#).unwrap();
        assert_eq!((&*member.user_id, member.is_number), ("10", true));
        assert_eq!(member.user_info.as_deref(), Some(&br#"{"name":"Ada"}"#[..]));
        let member = Member::of_user_data(r#"{"id":"ada"}"#).unwrap();
        assert_eq!((&*member.user_id, member.is_number), ("ada", false));
        assert!(!Member::of_channel_data(r#"{"user_id":"10"}"#).unwrap().is_number);
        let long = format!(r#"{{"user_id":"{}"}}"#, "a".repeat(129));
        for text in [
            "",
            "[]",
            "{}",
            r#"{"user_id":""}"#,
            r#"{"user_id":null}"#,
            r#"{"user_id":[1]}"#,
            r#"{"user_id":"\u0001acme\u0001ada"}"#,
            &long,
        ] {
            assert!(Member::of_channel_data(text).is_err(), "{text}");
        }
    }
}
