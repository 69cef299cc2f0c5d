//! Commands of a client (protocol v2; `Command` in centrifugal/protocol's client.proto), and their parsing from JSON.
//!
//! A frame has one or more commands. Strings without escapes are borrowed from the frame; payloads are borrowed and not
//! parsed. [`protobuf`](super::protobuf) parses the same types from Protobuf.

use std::borrow::Cow;
use std::fmt;

use dunlin_hub::{Epoch, StreamPosition};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess};

use super::filter_node::FilterNode;
use crate::json::{self, ObjectOnly, Pairs, ProtocolError, Text};
use crate::payload::Payload;

/// One command of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// Chosen by the client and repeated in the reply. 0 means that no reply is expected, which is allowed only for
    /// [`Request::Send`] and [`Request::Pong`]; see [`ProtocolState::admit`](super::ProtocolState::admit).
    pub id: u32,
    /// The request.
    pub request: Request<'a>,
}

/// The request of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Opens the session: the first command of a connection, sent only once.
    Connect(ConnectRequest<'a>),
    /// Subscribes to a channel.
    Subscribe(SubscribeRequest<'a>),
    /// Ends a subscription.
    Unsubscribe(ChannelRequest<'a>),
    /// Publishes into a channel.
    Publish(PublishRequest<'a>),
    /// Reads the presence of a channel.
    Presence(ChannelRequest<'a>),
    /// Reads the presence stats of a channel.
    PresenceStats(ChannelRequest<'a>),
    /// Reads the history of a channel.
    History(HistoryRequest<'a>),
    /// A client's ping, answered with an empty result.
    Ping,
    /// A message to the server which has no reply.
    Send(SendRequest<'a>),
    /// A remote procedure call.
    Rpc(RpcRequest<'a>),
    /// Sends a new connection token.
    Refresh(RefreshRequest<'a>),
    /// Sends a new subscription token.
    SubRefresh(SubRefreshRequest<'a>),
    /// The response to a ping of the server: an empty command.
    Pong,
    /// A method that is not part of this protocol.
    Unknown(Cow<'a, str>),
}

impl Request<'_> {
    /// Returns the name of the method in the protocol and in metrics.
    pub fn method(&self) -> &'static str {
        match self {
            Request::Connect(_) => "connect",
            Request::Subscribe(_) => "subscribe",
            Request::Unsubscribe(_) => "unsubscribe",
            Request::Publish(_) => "publish",
            Request::Presence(_) => "presence",
            Request::PresenceStats(_) => "presence_stats",
            Request::History(_) => "history",
            Request::Ping => "ping",
            Request::Send(_) => "send",
            Request::Rpc(_) => "rpc",
            Request::Refresh(_) => "refresh",
            Request::SubRefresh(_) => "sub_refresh",
            Request::Pong => "pong",
            Request::Unknown(_) => "unknown",
        }
    }

    /// Returns the channel of the request, if it has one.
    pub fn channel(&self) -> Option<&str> {
        match self {
            Request::Subscribe(request) => Some(&request.channel),
            Request::Unsubscribe(request)
            | Request::Presence(request)
            | Request::PresenceStats(request) => Some(&request.channel),
            Request::Publish(request) => Some(&request.channel),
            Request::History(request) => Some(&request.channel),
            Request::SubRefresh(request) => Some(&request.channel),
            _ => None,
        }
    }
}

impl<'a> Request<'a> {
    /// Returns the channel, to replace it.
    pub fn channel_mut(&mut self) -> Option<&mut Cow<'a, str>> {
        match self {
            Request::Subscribe(request) => Some(&mut request.channel),
            Request::Unsubscribe(request)
            | Request::Presence(request)
            | Request::PresenceStats(request) => Some(&mut request.channel),
            Request::Publish(request) => Some(&mut request.channel),
            Request::History(request) => Some(&mut request.channel),
            Request::SubRefresh(request) => Some(&mut request.channel),
            _ => None,
        }
    }
}

/// Opens a session and lists the server-side subscriptions to recover. Also the complete first message of the
/// unidirectional transports.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct ConnectRequest<'a> {
    /// Connection token (JWT); empty when the client has none.
    #[serde(borrow, deserialize_with = "json::text")]
    pub token: Cow<'a, str>,
    /// Any data that the application sends to the server.
    #[serde(borrow, deserialize_with = "json::payload")]
    pub data: Option<Payload<'a>>,
    /// Positions of server-side subscriptions, by channel. On unidirectional transports they also
    /// request these subscriptions.
    #[serde(borrow, deserialize_with = "subs")]
    pub subs: Pairs<'a, SubscribeRequest<'a>>,
    /// Name of the client application.
    #[serde(borrow, deserialize_with = "json::text")]
    pub name: Cow<'a, str>,
    /// Version of the client application.
    #[serde(borrow, deserialize_with = "json::text")]
    pub version: Cow<'a, str>,
    /// Headers that the client cannot set itself, because browsers do not allow it.
    #[serde(borrow, deserialize_with = "json::nullable")]
    pub headers: Pairs<'a, Text<'a>>,
}

impl<'a> ConnectRequest<'a> {
    /// Parses the connect request of a unidirectional transport, which is JSON: the `cf_connect`
    /// parameter, the body of the POST or the first WebSocket message. `null` is an empty request.
    ///
    /// # Errors
    /// [`ProtocolError`] with the path of the field.
    pub fn parse(text: &'a [u8]) -> Result<ConnectRequest<'a>, ProtocolError> {
        if text.trim_ascii() == b"null" {
            return Ok(ConnectRequest::default());
        }
        json::from_slice(text)
    }
}

/// Subscribes to a channel, or has the position from which to recover it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct SubscribeRequest<'a> {
    /// Name of the channel. Empty in [`ConnectRequest::subs`], where the key is the name.
    #[serde(borrow, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
    /// Subscription token (JWT); empty when the client has none.
    #[serde(borrow, deserialize_with = "json::text")]
    pub token: Cow<'a, str>,
    /// Whether to recover publications after `offset` in `epoch`.
    #[serde(deserialize_with = "json::nullable")]
    pub recover: bool,
    /// Epoch of the stream that the client knows; empty with `recover`: from the oldest publication in the history.
    #[serde(borrow, deserialize_with = "json::text")]
    pub epoch: Cow<'a, str>,
    /// Last offset the client has seen.
    #[serde(deserialize_with = "json::nullable")]
    pub offset: u64,
    /// Any data that the application sends to the server.
    #[serde(borrow, deserialize_with = "json::payload")]
    pub data: Option<Payload<'a>>,
    /// Whether the client tracks its position.
    #[serde(deserialize_with = "json::nullable")]
    pub positioned: bool,
    /// Whether the client wants to recover later.
    #[serde(deserialize_with = "json::nullable")]
    pub recoverable: bool,
    /// Whether the client wants join and leave pushes.
    #[serde(deserialize_with = "json::nullable")]
    pub join_leave: bool,
    /// Delta format the client supports: `fossil`, or one that this server ignores.
    #[serde(borrow, deserialize_with = "json::text")]
    pub delta: Cow<'a, str>,
    /// Server-side filter on tags. Unlike `delta` it must not be ignored: the client would receive publications that it
    /// filtered out.
    #[serde(borrow, rename = "tf", deserialize_with = "json::optional_object")]
    pub tags_filter: Option<Box<FilterNode<'a>>>,
    /// Bits of [`SubscribeRequest::CHANNEL_COMPACTION`] and [`SubscribeRequest::REJECT_UNRECOVERED`].
    #[serde(deserialize_with = "json::nullable")]
    pub flag: i64,
    /// 0 is a subscription to a stream; this server supports no other kind.
    #[serde(rename = "type", deserialize_with = "json::nullable")]
    pub kind: i32,
}

impl SubscribeRequest<'_> {
    /// Bit of `flag`: the client supports numbers instead of channel names. The server may ignore it.
    pub const CHANNEL_COMPACTION: i64 = 1;
    /// Bit of `flag`: if recovery from the position fails, reply with error 112 instead of subscribing.
    pub const REJECT_UNRECOVERED: i64 = 2;

    /// Returns the position to recover from, if the client wants recovery.
    pub fn since(&self) -> Option<StreamPosition> {
        self.recover
            .then(|| StreamPosition { offset: self.offset, epoch: Epoch::parse(&self.epoch) })
    }

    /// Returns whether the client supports the deltas that this server sends.
    pub fn takes_delta(&self) -> bool {
        self.delta == "fossil"
    }

    /// Returns whether a subscription that cannot be recovered fails with error 112.
    pub fn rejects_unrecovered(&self) -> bool {
        self.flag & SubscribeRequest::REJECT_UNRECOVERED != 0
    }
}

/// A request that has only a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct ChannelRequest<'a> {
    /// Name of the channel.
    #[serde(borrow, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
}

/// Publishes into a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct PublishRequest<'a> {
    /// Name of the channel.
    #[serde(borrow, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
    /// The payload; `None` when the member is missing, which is an error.
    #[serde(borrow, deserialize_with = "json::payload")]
    pub data: Option<Payload<'a>>,
    /// 0 is a publication to a stream; this server supports no other kind.
    #[serde(rename = "type", deserialize_with = "json::nullable")]
    pub kind: i32,
}

/// Reads publications from the history.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct HistoryRequest<'a> {
    /// Name of the channel.
    #[serde(borrow, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
    /// Maximum number of publications. 0: none, only the position; negative: as many as the server allows.
    #[serde(deserialize_with = "json::nullable")]
    pub limit: i32,
    /// Returns only publications after this position (before it with `reverse`).
    #[serde(borrow, deserialize_with = "json::optional_object")]
    pub since: Option<Position<'a>>,
    /// Whether to return the newest first.
    #[serde(deserialize_with = "json::nullable")]
    pub reverse: bool,
}

/// A position in a channel's stream, as sent by a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Position<'a> {
    /// Offset of the last publication seen.
    #[serde(deserialize_with = "json::nullable")]
    pub offset: u64,
    /// The epoch of the stream of `offset`.
    #[serde(borrow, deserialize_with = "json::text")]
    pub epoch: Cow<'a, str>,
}

impl Position<'_> {
    /// Converts the position to the hub's type.
    pub fn to_hub(&self) -> StreamPosition {
        StreamPosition { offset: self.offset, epoch: Epoch::parse(&self.epoch) }
    }
}

/// A message to the server without a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct SendRequest<'a> {
    /// The message.
    #[serde(borrow, deserialize_with = "json::payload")]
    pub data: Option<Payload<'a>>,
}

/// A remote procedure call.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct RpcRequest<'a> {
    /// Name of the procedure.
    #[serde(borrow, deserialize_with = "json::text")]
    pub method: Cow<'a, str>,
    /// Its argument.
    #[serde(borrow, deserialize_with = "json::payload")]
    pub data: Option<Payload<'a>>,
}

/// Sends a new connection token.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct RefreshRequest<'a> {
    /// The token.
    #[serde(borrow, deserialize_with = "json::text")]
    pub token: Cow<'a, str>,
}

/// Sends a new subscription token.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct SubRefreshRequest<'a> {
    /// Name of the channel.
    #[serde(borrow, deserialize_with = "json::text")]
    pub channel: Cow<'a, str>,
    /// The token.
    #[serde(borrow, deserialize_with = "json::text")]
    pub token: Cow<'a, str>,
    /// 0 refreshes a token; this server supports no other kind.
    #[serde(rename = "type", deserialize_with = "json::nullable")]
    pub kind: i32,
}

impl<'a> Command<'a> {
    /// Parses one command from JSON.
    ///
    /// # Errors
    /// [`ProtocolError`] with the path of the field.
    pub fn parse(text: &'a [u8]) -> Result<Command<'a>, ProtocolError> {
        // Fast path for the pong, which every client sends regularly. No other command needs one.
        if text == b"{}" {
            return Ok(Command { id: 0, request: Request::Pong });
        }
        json::from_slice(text)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Command<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CommandVisitor)
    }
}

struct CommandVisitor;

impl<'de> serde::de::Visitor<'de> for CommandVisitor {
    type Value = Command<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a command")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Command<'de>, A::Error> {
        let mut id = None;
        let mut request: Option<Request<'de>> = None;
        let mut unknown = None;
        while let Some(Text(key)) = map.next_key()? {
            let next = match &*key {
                "id" => {
                    if id.replace(map.next_value::<Option<u32>>()?.unwrap_or(0)).is_some() {
                        return Err(A::Error::duplicate_field("id"));
                    }
                    continue;
                }
                "connect" => member(&mut map)?.map(Request::Connect),
                "subscribe" => member(&mut map)?.map(Request::Subscribe),
                "unsubscribe" => member(&mut map)?.map(Request::Unsubscribe),
                "publish" => member(&mut map)?.map(Request::Publish),
                "presence" => member(&mut map)?.map(Request::Presence),
                "presence_stats" => member(&mut map)?.map(Request::PresenceStats),
                "history" => member(&mut map)?.map(Request::History),
                "ping" => member(&mut map)?.map(|Empty {}| Request::Ping),
                "send" => member(&mut map)?.map(Request::Send),
                "rpc" => member(&mut map)?.map(Request::Rpc),
                "refresh" => member(&mut map)?.map(Request::Refresh),
                "sub_refresh" => member(&mut map)?.map(Request::SubRefresh),
                _ => {
                    // Later versions of the protocol may add members beside the request. They are skipped, and matter
                    // only if no request is found.
                    map.next_value::<IgnoredAny>()?;
                    unknown.get_or_insert(key);
                    continue;
                }
            };
            if let (Some(next), Some(given)) = (&next, &request) {
                return Err(A::Error::custom(format_args!(
                    "a command carries one request, this one carries `{}` and `{}`",
                    given.method(),
                    next.method()
                )));
            }
            request = request.or(next);
        }
        let request = match (request, unknown) {
            (Some(request), _) => request,
            (None, Some(name)) => Request::Unknown(name),
            (None, None) => Request::Pong,
        };
        Ok(Command { id: id.unwrap_or(0), request })
    }
}

/// Deserializes subscriptions by channel; `null` is an empty request.
fn subs<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Pairs<'a, SubscribeRequest<'a>>, D::Error> {
    let subs: Pairs<'a, Option<ObjectOnly<SubscribeRequest<'a>>>> = json::nullable(deserializer)?;
    let request =
        |sub: Option<ObjectOnly<_>>| sub.map(|ObjectOnly(request)| request).unwrap_or_default();
    Ok(Pairs(subs.0.into_iter().map(|(channel, sub)| (channel, request(sub))).collect()))
}

/// Deserializes the object for the key just read; `None` if it is null.
fn member<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: &mut A) -> Result<Option<T>, A::Error> {
    Ok(map.next_value::<Option<ObjectOnly<T>>>()?.map(|ObjectOnly(value)| value))
}

/// An object whose members are ignored.
#[derive(serde::Deserialize)]
struct Empty {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::Commands;
    use super::*;
    use crate::emulation::EmulationRequest;
    use crate::encoding::Format;
    use crate::json::members_without_null as without_null;
    use crate::pusher::{SignIn, Subscribe};

    #[test]
    fn null_in_any_member_of_a_command_is_as_if_it_were_absent() {
        let all = [
            without_null::<ConnectRequest<'_>>("{}"),
            without_null::<SubscribeRequest<'_>>("{}"),
            without_null::<ChannelRequest<'_>>("{}"),
            without_null::<PublishRequest<'_>>("{}"),
            without_null::<HistoryRequest<'_>>("{}"),
            without_null::<Position<'_>>("{}"),
            without_null::<SendRequest<'_>>("{}"),
            without_null::<RpcRequest<'_>>("{}"),
            without_null::<RefreshRequest<'_>>("{}"),
            without_null::<SubRefreshRequest<'_>>("{}"),
            without_null::<FilterNode<'_>>("{}"),
            without_null::<EmulationRequest<'_>>("{}"),
            without_null::<Subscribe<'_>>("{}"),
            without_null::<SignIn<'_>>("{}"),
        ];
        assert_eq!(all.concat(), Vec::<&str>::new());
    }

    fn one(text: &str) -> Result<Command<'_>, String> {
        Command::parse(text.as_bytes()).map_err(|malformed| malformed.to_string())
    }

    #[test]
    fn commands_as_centrifuge_js_sends_them() {
        let frame = concat!(
            r#"{"connect":{"token":"jwt","data":{"a":1},"name":"js","subs":{"s":{"recover":true,"offset":3,"epoch":"xyz"}}},"id":1}"#,
            "\n",
            r#"{"subscribe":{"channel":"chat","recover":true,"offset":12,"epoch":"abc","recoverable":true,"flag":1},"id":2}"#,
            "\n",
            r#"{"publish":{"channel":"chat","data":"hi \n there"},"id":3}"#,
            "\n",
            r#"{"history":{"channel":"chat","since":{"offset":5,"epoch":"abc"},"limit":-1,"reverse":true},"id":4}"#,
            "\n",
            r#"{"presence_stats":{"channel":"chat"},"id":5}"#,
            "\n{}\n",
        );
        let commands: Vec<_> =
            Commands::of(Format::Json, frame.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(
            commands.iter().map(|command| command.id).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 0]
        );
        let Request::Connect(connect) = &commands[0].request else { panic!() };
        assert_eq!((&*connect.token, &*connect.name), ("jwt", "js"));
        assert_eq!(connect.data.as_ref().unwrap().as_bytes(), br#"{"a":1}"#);
        let since = StreamPosition { offset: 3, epoch: Epoch::parse("xyz") };
        assert_eq!(connect.subs.get("s").unwrap().since(), Some(since));
        let Request::Subscribe(subscribe) = &commands[1].request else { panic!() };
        assert!(matches!(subscribe.channel, Cow::Borrowed("chat")), "no copy without escapes");
        assert_eq!(subscribe.since().unwrap().offset, 12);
        assert!(subscribe.recoverable && !subscribe.rejects_unrecovered());
        let Request::Publish(publish) = &commands[2].request else { panic!() };
        assert_eq!(publish.data.as_ref().unwrap().as_bytes(), br#""hi \n there""#);
        let Request::History(history) = &commands[3].request else { panic!() };
        assert_eq!((history.limit, history.reverse), (-1, true));
        assert_eq!(history.since.as_ref().unwrap().to_hub().offset, 5);
        assert_eq!(commands[5].request, Request::Pong);
    }

    #[test]
    fn null_is_nothing_and_what_is_unknown_is_skipped() {
        let command = one(
            r#"{"id":1,"connect":null,"subscribe":{"channel":"a","token":null,"offset":null,"since_version_9":{}},"extra":[]}"#,
        );
        let Request::Subscribe(subscribe) = command.unwrap().request else { panic!() };
        assert_eq!((&*subscribe.channel, &*subscribe.token, subscribe.offset), ("a", "", 0));
        let command = one(r#"{"id":1,"publish":{"channel":"a","data":null}}"#).unwrap();
        let Request::Publish(publish) = command.request else { panic!() };
        assert_eq!(publish.data.unwrap().as_bytes(), b"null", "null is a payload");
    }

    #[test]
    fn malformed_input_is_named() {
        for (text, error) in [
            (r#"{"id":"1","ping":{}}"#, "id: invalid type: string \"1\", expected u32"),
            (r#"{"id":-1,"ping":{}}"#, "id: invalid value: integer `-1`, expected u32"),
            (r#"{"id":1,"id":2}"#, "duplicate field `id`"),
            (
                r#"{"id":1,"subscribe":{"channel":5}}"#,
                "subscribe.channel: invalid type: integer `5`, expected a string",
            ),
            (
                r#"{"id":1,"subscribe":{"channel":"a","offset":"x"}}"#,
                "subscribe.offset: invalid type: string \"x\", expected u64",
            ),
            (
                r#"{"id":1,"subscribe":["a"]}"#,
                "subscribe: invalid type: sequence, expected an object",
            ),
            (
                r#"{"id":1,"connect":{"subs":{"a":{"recover":5}}}}"#,
                "connect.subs.a.recover: invalid type: integer `5`, expected a boolean",
            ),
            (
                r#"{"id":1,"presence":{"channel":"a"},"history":{"channel":"a"}}"#,
                "a command carries one request, this one carries `presence` and `history`",
            ),
        ] {
            let found = one(text).unwrap_err();
            let found = found.split(" at line ").next().unwrap_or_default();
            assert_eq!(found.trim_start_matches("history: "), error, "{text}");
        }
        for text in ["[]", "1", "\"connect\"", "nonsense", "{", "", "{}{}", "null"] {
            assert!(one(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nothing_after_a_malformed_line_is_believed() {
        let frame = "{\"id\":1,\"ping\":{}}\n{\"id\":2,\n{\"id\":3,\"ping\":{}}";
        let found: Vec<_> =
            Commands::of(Format::Json, frame.as_bytes()).map(|c| c.map(|c| c.id).ok()).collect();
        assert_eq!(found, [Some(1), None]);
        assert!(Commands::of(Format::Json, b" \n\n ").is_empty());
        assert_eq!(Commands::of(Format::Json, b"\n\n").count(), 0);
    }

    #[test]
    fn deep_nesting_costs_no_stack_here_and_in_no_subscriber() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let publish =
            |data: &str| format!(r#"{{"id":1,"publish":{{"channel":"a","data":{data}}}}}"#);
        assert!(one(&publish(&nested(json::DEPTH_MAX))).is_ok());
        assert_eq!(
            one(&publish(&nested(json::DEPTH_MAX + 1))).unwrap_err(),
            "publish.data: is nested deeper than 128 levels"
        );
        let brackets_in_a_string = format!("[\"{}\\\"\"]", "[".repeat(1000));
        assert!(one(&publish(&brackets_in_a_string)).is_ok());
        let data = nested(100_000);
        assert!(one(&publish(&data)).is_err());
        let _ = one(&"{\"id\":".repeat(10_000));
        let _ = one(&format!(r#"{{"id":1,"extra":{data},"ping":{{}}}}"#));
    }

    #[test]
    fn the_connect_request_of_a_unidirectional_transport() {
        let request = ConnectRequest::parse(
            br##"{"token": "jwt", "subs": {"user#1": {"recover": true, "offset": 12, "epoch": "xD5R"}, "b": {}, "c": null}}"##,
        )
        .unwrap();
        let channels: Vec<_> =
            request.subs.iter().map(|(channel, sub)| (channel, sub.offset)).collect();
        assert_eq!(channels, [("user#1", 12), ("b", 0), ("c", 0)]);
        assert_eq!(ConnectRequest::parse(b"null").unwrap(), ConnectRequest::default());
        let error = |text: &str| ConnectRequest::parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error(r#"{"subs":5}"#), "subs: invalid type: integer `5`, expected an object");
        assert_eq!(
            error(r#"{"subs":{"a":1}}"#),
            "subs.a: invalid type: integer `1`, expected an object"
        );
        assert_eq!(error(r#"{"subs":{"a":{},"a":{}}}"#), "subs: the key `a` is repeated");
        assert!(error("[]").contains("expected an object"));
    }

    proptest! {
        #[test]
        fn a_subscribe_is_read_as_it_was_written(
            id in 1u32.., channel in "\\PC{1,40}", token in "\\PC{0,20}", offset: u64, epoch in "[a-zA-Z0-9]{0,8}",
            recover: bool, join_leave: bool,
        ) {
            let text = json!({"id": id, "subscribe": {
                "channel": channel, "token": token, "offset": offset, "epoch": epoch, "recover": recover,
                "join_leave": join_leave,
            }}).to_string();
            let command = one(&text).unwrap();
            prop_assert_eq!(command.id, id);
            let Request::Subscribe(subscribe) = command.request else { panic!() };
            prop_assert_eq!(&*subscribe.channel, &*channel);
            prop_assert_eq!(&*subscribe.token, &*token);
            prop_assert_eq!((subscribe.offset, &*subscribe.epoch), (offset, &*epoch));
            prop_assert_eq!((subscribe.recover, subscribe.join_leave), (recover, join_leave));
        }

        #[test]
        fn any_frame_at_all_ends(frame: Vec<u8>) {
            let lines = frame.split(|&byte| byte == b'\n').count();
            prop_assert!(Commands::of(Format::Json, &frame).count() <= lines);
        }
    }
}
