//! Messages of clients.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::payload::{is_reserved, text_of};
use crate::json::{Json, ObjectOnly, Text};
use crate::payload::Payload;

/// A message of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Message<'a> {
    /// A ping; respond with a pong.
    Ping,
    /// The response to a ping.
    Pong,
    /// Subscribes to a channel.
    Subscribe(Subscribe<'a>),
    /// Unsubscribes from a channel.
    Unsubscribe {
        /// The channel.
        channel: Cow<'a, str>,
    },
    /// Authenticates the user of the connection.
    SignIn(SignIn<'a>),
    /// An event for the other subscribers of a channel; its name begins with `client-`.
    ClientEvent {
        /// The channel.
        channel: Cow<'a, str>,
        /// The event's name.
        event: Cow<'a, str>,
        /// JSON.
        data: Payload<'a>,
    },
    /// Another message.
    Unknown {
        /// The event's name.
        event: Cow<'a, str>,
    },
}

impl Message<'_> {
    /// Returns what kind of message it is, as one word.
    pub const fn name(&self) -> &'static str {
        match self {
            Message::Ping => "ping",
            Message::Pong => "pong",
            Message::Subscribe(_) => "subscribe",
            Message::Unsubscribe { .. } => "unsubscribe",
            Message::SignIn(_) => "sign_in",
            Message::ClientEvent { .. } => "client_event",
            Message::Unknown { .. } => "unknown",
        }
    }
}

/// A request to subscribe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Subscribe<'a> {
    /// The channel.
    #[serde(borrow, deserialize_with = "crate::json::text")]
    pub channel: Cow<'a, str>,
    /// `key:signature` for a private channel; otherwise empty.
    #[serde(borrow, deserialize_with = "crate::json::text")]
    pub auth: Cow<'a, str>,
    /// The member of a presence channel; otherwise empty.
    #[serde(borrow, deserialize_with = "crate::json::text")]
    pub channel_data: Cow<'a, str>,
}

/// A request to authenticate the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SignIn<'a> {
    /// `key:signature`.
    #[serde(borrow, deserialize_with = "crate::json::text")]
    pub auth: Cow<'a, str>,
    /// The user: [`Member::of_user_data`](super::Member::of_user_data).
    #[serde(borrow, deserialize_with = "crate::json::text")]
    pub user_data: Cow<'a, str>,
}

/// The error in a message. The connection continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageError(String);

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Iterator over the messages of a frame. Clients send one per frame; queued frames are
/// concatenated.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Iterates over the messages of a frame.
    pub fn new(frame: &'a [u8]) -> Messages<'a> {
        Messages { rest: frame.trim_ascii() }
    }

    /// Returns the bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, MessageError>;

    /// Stops after a message that is not JSON.
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let mut values = serde_json::Deserializer::from_slice(self.rest).into_iter::<&RawValue>();
        let value = values.next()?;
        let read = values.byte_offset();
        Some(match value {
            Ok(value) => {
                self.rest = self.rest[read..].trim_ascii_start();
                parse(value.get())
            }
            Err(error) => {
                self.rest = &[];
                Err(MessageError(format!("a message is no JSON: {error}")))
            }
        })
    }
}

fn parse(text: &str) -> Result<Message<'_>, MessageError> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        event: Text<'a>,
        #[serde(borrow, default)]
        channel: Option<Text<'a>>,
        #[serde(borrow, default)]
        data: Option<&'a RawValue>,
    }
    let bad = |why: fmt::Arguments<'_>| MessageError(why.to_string());
    let ObjectOnly(envelope) = serde_json::from_str::<ObjectOnly<Envelope<'_>>>(text)
        .map_err(|error| bad(format_args!("a message is no object with an event: {error}")))?;
    let Envelope { event: Text(event), channel, data } = envelope;
    let member = |name| bad(format_args!("{event}: {name} is missing"));
    Ok(match &*event {
        "pusher:ping" => Message::Ping,
        "pusher:pong" => Message::Pong,
        "pusher:subscribe" => Message::Subscribe(data_of(&event, data)?),
        "pusher:unsubscribe" => {
            let Subscribe { channel, .. } = data_of(&event, data)?;
            Message::Unsubscribe { channel }
        }
        "pusher:signin" => Message::SignIn(data_of(&event, data)?),
        name if name.starts_with("client-") => {
            let channel = channel.ok_or_else(|| member("channel"))?.0;
            let data = data.map_or("null", RawValue::get);
            let data = Json::parse(data.as_bytes())
                .map_err(|error| bad(format_args!("{event}: data {error}")))?;
            Message::ClientEvent { channel, event, data: data.into() }
        }
        name if is_reserved(name) || !name.is_empty() => Message::Unknown { event },
        _ => return Err(member("event")),
    })
}

/// Parses the data of a protocol message: an object, or an object in a string, as older clients
/// send it.
fn data_of<'a, T: Deserialize<'a> + Default + ToOwnedMessage<'a>>(
    event: &str,
    data: Option<&'a RawValue>,
) -> Result<T, MessageError> {
    let bad = |error: &dyn fmt::Display| MessageError(format!("{event}: data {error}"));
    let Some(data) = data else { return Err(bad(&"is missing")) };
    match text_of(data).map_err(|error| bad(&error))? {
        Cow::Borrowed(text) => serde_json::from_str::<ObjectOnly<T>>(text)
            .map(|ObjectOnly(value)| value)
            .map_err(|error| bad(&error)),
        Cow::Owned(text) => T::read(&text).map_err(|error| bad(&error)),
    }
}

/// A type that can be parsed from a temporary string.
trait ToOwnedMessage<'a>: Sized {
    fn read(text: &str) -> Result<Self, serde_json::Error>;
}

impl<'a> ToOwnedMessage<'a> for Subscribe<'a> {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let ObjectOnly(Subscribe { channel, auth, channel_data }) = serde_json::from_str(text)?;
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Ok(Subscribe { channel: own(channel), auth: own(auth), channel_data: own(channel_data) })
    }
}

impl<'a> ToOwnedMessage<'a> for SignIn<'a> {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let ObjectOnly(SignIn { auth, user_data }) = serde_json::from_str(text)?;
        Ok(SignIn {
            auth: Cow::Owned(auth.into_owned()),
            user_data: Cow::Owned(user_data.into_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Result<Message<'_>, MessageError> {
        Messages::new(text.as_bytes()).next().expect("a message")
    }

    #[test]
    fn pusher_js_subscribes_signs_in_and_sends() {
        assert_eq!(one(r#"{"event":"pusher:ping","data":{}}"#), Ok(Message::Ping));
        let subscribe = Subscribe {
            channel: "presence-a".into(),
            auth: "key:sig".into(),
            channel_data: r#"{"user_id":1}"#.into(),
        };
        let data = r#"{"auth":"key:sig","channel_data":"{\"user_id\":1}","channel":"presence-a"}"#;
        let said = format!(r#"{{"event":"pusher:subscribe","data":{data}}}"#);
        assert_eq!(one(&said), Ok(Message::Subscribe(subscribe.clone())));
        // Older clients send the object in a string.
        let text = serde_json::to_string(data).unwrap();
        let said = format!(r#"{{"event":"pusher:subscribe","data":{text}}}"#);
        assert_eq!(one(&said), Ok(Message::Subscribe(subscribe)));
        let said =
            r#"{"event":"pusher:signin","data":{"auth":"k:s","user_data":"{\"id\":\"1\"}"}}"#;
        let sign_in = SignIn { auth: "k:s".into(), user_data: r#"{"id":"1"}"#.into() };
        assert_eq!(one(said), Ok(Message::SignIn(sign_in)));
        let said = r#"{"event":"client-typing","channel":"private-a","data":{"on":true}}"#;
        let Ok(Message::ClientEvent { channel, event, data }) = one(said) else { panic!() };
        assert_eq!(
            (&*channel, &*event, data.as_bytes()),
            ("private-a", "client-typing", &br#"{"on":true}"#[..])
        );
        let said = r#"{"event":"pusher:unsubscribe","data":{"channel":"a"}}"#;
        assert_eq!(one(said), Ok(Message::Unsubscribe { channel: "a".into() }));
    }

    #[test]
    fn messages_that_waited_stand_one_after_the_other() {
        let frame =
            b" {\"event\":\"pusher:ping\"}\n{\"event\":\n\"pusher:pong\"}{\"event\":\"x\"} [";
        let mut messages = Messages::new(frame);
        assert_eq!(messages.next(), Some(Ok(Message::Ping)));
        assert_eq!(messages.next(), Some(Ok(Message::Pong)));
        assert_eq!(messages.next(), Some(Ok(Message::Unknown { event: "x".into() })));
        assert!(matches!(messages.next(), Some(Err(_))) && messages.next().is_none());
    }

    #[test]
    fn malformed_message_is_reported_and_ends_nothing() {
        let deep = format!(
            r#"{{"event":"client-a","channel":"private-a","data":{}}}"#,
            "[".repeat(300) + &"]".repeat(300)
        );
        for said in [
            "1",
            "[]",
            "{}",
            "nonsense",
            r#"{"event":1}"#,
            r#"{"event":""}"#,
            r#"{"event":"pusher:subscribe"}"#,
            r#"{"event":"pusher:subscribe","data":"nonsense"}"#,
            r#"{"event":"pusher:subscribe","data":{"channel":7}}"#,
            r#"{"event":"client-a","data":1}"#,
            &deep,
        ] {
            assert!(one(said).is_err(), "{said}");
        }
        assert!(Messages::new(b"  ").next().is_none());
    }
}
