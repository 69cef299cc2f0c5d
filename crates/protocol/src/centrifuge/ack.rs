//! Acknowledgements: what clients say over `rpc`, and what they are sent about their cursors.

use std::borrow::Cow;

use dunlin_hub::{CursorState, Epoch, StreamPosition};
use serde::Deserialize;

use super::reply::write_epoch;
use super::{Error, ErrorCode, RpcRequest};
use crate::json::{self, Object};

/// The procedure that acknowledges everything up to an offset.
pub const ACK: &str = "dunlin.ack";
/// The procedure that reads a cursor.
pub const UNREAD: &str = "dunlin.unread";

/// A command about the client's own cursor in a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckRequest<'a> {
    /// The channel.
    pub channel: Cow<'a, str>,
    /// What is acknowledged; `None`: the cursor is only read.
    pub acked: Option<StreamPosition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    channel: Cow<'a, str>,
    #[serde(default)]
    offset: Option<u64>,
    #[serde(borrow, default, deserialize_with = "json::text")]
    epoch: Cow<'a, str>,
}

impl<'a> AckRequest<'a> {
    /// Whether a remote procedure call is about cursors.
    pub fn is_one(request: &RpcRequest<'_>) -> bool {
        request.method == ACK || request.method == UNREAD
    }

    /// Reads the call.
    ///
    /// # Errors
    /// "bad request" with what is wrong.
    pub fn parse(request: &'a RpcRequest<'_>) -> Result<AckRequest<'a>, Error<'static>> {
        let bad = |why: &dyn std::fmt::Display| ErrorCode::BadRequest.with_reason(why);
        let data = request.data.as_ref().map_or(&b"{}"[..], |data| data.as_bytes());
        let Body { channel, offset, epoch } = json::from_slice(data)
            .map_err(|error| bad(&format_args!("rpc.data of {}: {error}", request.method)))?;
        let acked = match (&*request.method, offset) {
            (ACK, None) => return Err(bad(&"rpc.data of dunlin.ack: offset is missing")),
            (ACK, Some(offset)) => Some(StreamPosition { offset, epoch: Epoch::parse(&epoch) }),
            _ => None,
        };
        Ok(AckRequest { channel, acked })
    }
}

/// Writes where a cursor stands. `channel`: where the receiver does not know it.
pub fn write_cursor(out: &mut Vec<u8>, channel: Option<&str>, state: &CursorState) {
    let mut object = Object::begin(out);
    if let Some(channel) = channel {
        object.string("channel", channel);
    }
    object.integer("offset", state.acked.offset);
    write_epoch(object.key("epoch"), state.acked.epoch);
    object.integer("top", state.top).integer("unread", state.unread());
    if let Some(first) = state.trimmed_before {
        object.integer("trimmed_before", first);
    }
    if state.is_new {
        object.flag("is_new", true);
    }
    if state.was_reset {
        object.flag("was_reset", true);
    }
    object.end();
}

/// Returns the data of a subscription with the member `ack`: where its cursor stands. Data that are no object have no place for it.
pub fn with_cursor(data: Option<&[u8]>, state: &CursorState) -> Box<[u8]> {
    let object = match data.map(<[u8]>::trim_ascii) {
        None => &b"{}"[..],
        Some(object) if object.starts_with(b"{") && object.ends_with(b"}") => object,
        Some(other) => return other.into(),
    };
    let mut out = object[..object.len() - 1].trim_ascii_end().to_vec();
    if out.len() > 1 {
        out.push(b',');
    }
    out.extend_from_slice(b"\"ack\":");
    write_cursor(&mut out, None, state);
    out.push(b'}');
    out.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> CursorState {
        let acked = StreamPosition { offset: 5, epoch: Epoch::from_u64(10) };
        CursorState { acked, top: 9, ..CursorState::default() }
    }

    #[test]
    fn cursor_is_a_member_of_the_data_that_are_an_object() {
        let with = |data: Option<&str>| {
            String::from_utf8(with_cursor(data.map(str::as_bytes), &state()).into()).unwrap()
        };
        let ack = r#""ack":{"offset":5,"epoch":"A","top":9,"unread":4}"#;
        assert_eq!(with(None), format!("{{{ack}}}"));
        assert_eq!(with(Some("{}")), format!("{{{ack}}}"));
        assert_eq!(with(Some(r#" {"a":1} "#)), format!(r#"{{"a":1,{ack}}}"#));
        assert_eq!(with(Some("[1]")), "[1]");
    }

    #[test]
    fn call_that_is_malformed_names_the_field() {
        let parse = |method: &str, data: &str| {
            let data = crate::Json::parse(data.as_bytes()).unwrap();
            let request = RpcRequest { method: method.into(), data: Some(data.into()) };
            AckRequest::parse(&request)
                .map(|of| of.acked)
                .map_err(|error| error.message.into_owned())
        };
        assert_eq!(parse(UNREAD, r#"{"channel":"a"}"#), Ok(None));
        let acked = Some(StreamPosition { offset: 7, epoch: Epoch::NONE });
        assert_eq!(parse(ACK, r#"{"channel":"a","offset":7}"#), Ok(acked));
        for (data, field) in [
            (r#"{"channel":"a"}"#, "offset"),
            (r#"{"channel":"a","offset":-1}"#, "offset"),
            (r#"{"offset":1}"#, "channel"),
            (r#"{"channel":"a","offset":1,"user":"b"}"#, "user"),
            ("[]", "rpc.data"),
        ] {
            let message = parse(ACK, data).unwrap_err();
            assert!(message.contains(field), "{data}: {message}");
        }
    }
}
