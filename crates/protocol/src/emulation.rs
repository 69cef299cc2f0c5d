//! Commands of clients whose transport is server-to-client only: `POST /emulation`. Replies travel
//! on the session's HTTP stream or server-sent event stream.
//!
//! The connect reply has `session` and `node`; the client repeats both in every emulation request.
//! The status is 204 because the replies travel on the stream.

use std::borrow::Cow;

use serde::Deserialize;

use crate::centrifuge::protobuf::MessageReader;
use crate::encoding::Format;
use crate::json::{self, ProtocolError};

/// Body of an emulation request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EmulationRequest<'a> {
    /// `node` of the connect reply: the server that holds the session.
    #[serde(borrow, deserialize_with = "json::text")]
    pub node: Cow<'a, str>,
    /// `session` of the connect reply. A secret that authorises requests for the session.
    #[serde(borrow, deserialize_with = "json::text")]
    pub session: Cow<'a, str>,
    /// A frame of commands, for [`Commands::of`](crate::centrifuge::Commands::of). In JSON it is a
    /// string, because several commands are not one JSON value.
    #[serde(borrow, deserialize_with = "text_bytes")]
    pub data: Cow<'a, [u8]>,
}

impl<'a> EmulationRequest<'a> {
    /// Parses the body.
    ///
    /// # Errors
    /// [`ProtocolError`] (response: 400) with the path of the field, also when `session` or `data`
    /// is missing.
    pub fn parse(format: Format, body: &'a [u8]) -> Result<EmulationRequest<'a>, ProtocolError> {
        let request: EmulationRequest<'a> = match format {
            Format::Json => json::from_slice(body)?,
            Format::Protobuf => EmulationRequest::from_protobuf(body)?,
        };
        for (field, is_empty) in
            [("session", request.session.is_empty()), ("data", request.data.is_empty())]
        {
            if is_empty {
                return Err(ProtocolError::new(
                    field,
                    "is missing; repeat what the connect reply said, with the commands as a string",
                ));
            }
        }
        Ok(request)
    }

    fn from_protobuf(body: &'a [u8]) -> Result<EmulationRequest<'a>, ProtocolError> {
        let message = MessageReader::of("", body);
        let mut request = EmulationRequest::default();
        for field in message.fields() {
            let (number, value) = field?;
            match number {
                1 => request.node = message.text("node", value)?,
                2 => request.session = message.text("session", value)?,
                3 => request.data = Cow::Borrowed(message.bytes("data", value)?),
                _ => {}
            }
        }
        Ok(request)
    }
}

fn text_bytes<'de: 'a, 'a, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Cow<'a, [u8]>, D::Error> {
    Ok(match json::text(deserializer)? {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    })
}

/// Status of the response to an emulation request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulationStatus {
    /// The commands were accepted; replies follow on the stream.
    Taken,
    /// The body is not an emulation request.
    Malformed,
    /// The session does not exist: it has ended, or `node` is another server. Its stream is closed
    /// or will be soon.
    NoSession,
    /// A method other than POST (or OPTIONS, the browser's preflight).
    Method,
    /// The body is longer than allowed.
    TooLarge,
}

impl EmulationStatus {
    /// Returns the HTTP status code.
    pub const fn code(self) -> u16 {
        match self {
            EmulationStatus::Taken => 204,
            EmulationStatus::Malformed => 400,
            EmulationStatus::NoSession => 404,
            EmulationStatus::Method => 405,
            EmulationStatus::TooLarge => 413,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::centrifuge::{Commands, Request};

    #[test]
    fn centrifuge_js_sends_its_commands_as_a_string() {
        let body = r#"{"session":"s3cr3t","node":"n1","data":"{\"subscribe\":{\"channel\":\"a\"},\"id\":2}\n{\"id\":3,\"presence\":{\"channel\":\"b\"}}"}"#;
        let request = EmulationRequest::parse(Format::Json, body.as_bytes()).unwrap();
        assert_eq!((&*request.session, &*request.node), ("s3cr3t", "n1"));
        let methods: Vec<_> = Commands::of(Format::Json, &request.data)
            .map(|command| command.unwrap().request.method())
            .collect();
        assert_eq!(methods, ["subscribe", "presence"]);
    }

    #[test]
    fn a_pong_over_emulation() {
        let request =
            EmulationRequest::parse(Format::Json, br#"{"session":"s","node":"n","data":"{}"}"#)
                .unwrap();
        let pong = Commands::of(Format::Json, &request.data).next().unwrap().unwrap();
        assert_eq!(pong.request, Request::Pong);
    }

    #[test]
    fn missing_field_is_named() {
        let error = |body: &str| {
            EmulationRequest::parse(Format::Json, body.as_bytes()).unwrap_err().to_string()
        };
        assert!(error(r#"{"node":"n","data":"{}"}"#).starts_with("session: is missing"));
        assert!(error(r#"{"session":"s"}"#).starts_with("data: is missing"));
        assert_eq!(
            error(r#"{"session":"s","data":{}}"#),
            "data: invalid type: map, expected a string"
        );
        assert!(error("{").contains("EOF"));
    }
}
