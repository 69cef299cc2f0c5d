//! Tests that both formats are equivalent: they parse to the same command and write the same reply.

use std::sync::Arc;

use dunlin_hub::{
    ClientInfo, Epoch, History, Outgoing, PayloadFormat, PresenceStats, Publication,
    PublicationParts, SessionId, StreamPosition, Subscribed,
};
use dunlin_wire::protobuf::{Fields, Value as Wire, Writer};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::{
    Command, Commands, ConnectResult, ErrorCode, RefreshResult, Reply, SubscribeResult,
    write_push as write_json_push,
};
use super::*;
use crate::encoding::Format;

/// One per line: a command in JSON, and its encoding by Centrifugal's Python codec in hexadecimal.
const COMMANDS: &str = include_str!("commands.txt");

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn a_command_is_the_same_in_both_formats() {
    let mut frame = Vec::new();
    let mut lines = Vec::new();
    for line in COMMANDS.lines() {
        let (json, hex) = line.split_once('\t').unwrap();
        let bytes = unhex(hex);
        let expected = Command::parse(json.as_bytes()).unwrap();
        assert_eq!(parse_command(&bytes).unwrap(), expected, "{json}");
        Writer::delimited(&mut frame, |w| w.raw(&bytes));
        lines.push(json);
    }
    let frame_json = lines.join("\n");
    let both = [(Format::Json, frame_json.as_bytes()), (Format::Protobuf, &frame)];
    let [json, protobuf] =
        both.map(|(format, frame)| Commands::of(format, frame).collect::<Result<Vec<_>, _>>());
    assert_eq!(json, protobuf);
    assert_eq!(json.unwrap().len(), lines.len());
}

#[test]
fn malformed_command_is_named() {
    let deep = (0..10_000).fold(Vec::new(), |inner: Vec<u8>, _| {
        let mut outer = Vec::new();
        Writer::new(&mut outer).element(6, &inner);
        if outer.len() < 60_000 { outer } else { inner }
    });
    for (write, error) in [
        (
            &(|w: &mut Writer<'_>| w.string(1, "1")) as &dyn Fn(&mut Writer<'_>),
            "id: is of another wire type than the protocol says",
        ),
        (&|w| w.unsigned(1, 1u64 << 32), "id: does not fit its type"),
        (&|w| w.unsigned(5, 1u64), "subscribe: is of another wire type than the protocol says"),
        (&|w| w.message(5, |w| w.bytes(1, b"\xff")), "subscribe.channel: is not UTF-8"),
        (
            &|w| w.message(5, |w| w.raw(b"\x0f")),
            "subscribe: has the wire type 7, which proto3 does not have",
        ),
        (
            &|w| w.message(5, |w| w.raw(b"\x0a\x05a")),
            "subscribe: has a length of 5 bytes, and fewer follow",
        ),
        (
            &|w| w.message(5, |w| w.element(13, &deep)),
            "subscribe.tf: is nested deeper than 16 levels",
        ),
        (
            &|w| {
                w.message(8, |_| ());
                w.message(10, |_| ());
            },
            "history: a command carries one request, this one carries `presence` and `history`",
        ),
        (
            &|w| {
                w.message(4, |w| {
                    for _ in 0..2 {
                        w.message(3, |w| w.string(1, "a"));
                    }
                });
            },
            "connect.subs: the key `a` is repeated",
        ),
        (&|w| w.raw(b"\x08"), "the command ends within a field"),
    ] {
        let mut bytes = Vec::new();
        write(&mut Writer::new(&mut bytes));
        assert_eq!(parse_command(&bytes).unwrap_err().to_string(), error);
    }
    let frame = b"\x02\x08\x01\xff\xff\xff\xff\x0f";
    let found: Vec<_> = Commands::of(Format::Protobuf, frame).collect();
    assert!(found[0].is_ok() && found.len() == 2);
    let error = found[1].as_ref().unwrap_err().to_string();
    assert_eq!(error, "the frame has a length of 4294967295 bytes, and fewer follow");
}

#[test]
fn unknown_fields_are_skipped_and_an_unknown_method_is_named() {
    let mut bytes = Vec::new();
    let mut w = Writer::new(&mut bytes);
    w.unsigned(1, 7u32);
    w.unsigned(99, 1u32);
    w.message(6, |w| {
        w.string(1, "a");
        w.message(77, |w| w.string(1, "later"));
    });
    let command = parse_command(&bytes).unwrap();
    assert_eq!((command.id, command.request.channel()), (7, Some("a")));
    let mut bytes = Vec::new();
    let mut w = Writer::new(&mut bytes);
    w.unsigned(1, 7u32);
    w.message(16, |_| ());
    let command = parse_command(&bytes).unwrap();
    assert_eq!(command.request, super::super::Request::Unknown("field 16".into()));
}

/// A field of a message in client.proto.
enum Kind {
    Number,
    Bool,
    Text,
    Json,
    Message(Schema),
    List(Schema),
    /// By key, which is field 1; the value is field 2.
    Map(fn() -> Kind),
}

type Schema = fn() -> Vec<(u32, &'static str, Kind)>;

use Kind::{Bool, Json, List, Map as MapOf, Message, Number, Text};

fn reply() -> Vec<(u32, &'static str, Kind)> {
    let empty: Schema = Vec::new;
    vec![
        (1, "id", Number),
        (
            2,
            "error",
            Message(|| vec![(1, "code", Number), (2, "message", Text), (3, "temporary", Bool)]),
        ),
        (5, "connect", Message(connect)),
        (6, "subscribe", Message(subscribe)),
        (7, "unsubscribe", Message(empty)),
        (8, "publish", Message(empty)),
        (9, "presence", Message(|| vec![(1, "presence", MapOf(|| Message(client_info)))])),
        (
            10,
            "presence_stats",
            Message(|| vec![(1, "num_clients", Number), (2, "num_users", Number)]),
        ),
        (
            11,
            "history",
            Message(|| {
                vec![
                    (1, "publications", List(publication)),
                    (2, "epoch", Text),
                    (3, "offset", Number),
                ]
            }),
        ),
        (12, "ping", Message(empty)),
        (13, "rpc", Message(|| vec![(1, "data", Json)])),
        (14, "refresh", Message(connect)),
        (15, "sub_refresh", Message(|| vec![(1, "expires", Bool), (2, "ttl", Number)])),
    ]
}

fn push() -> Vec<(u32, &'static str, Kind)> {
    vec![
        (2, "channel", Text),
        (4, "pub", Message(publication)),
        (5, "join", Message(|| vec![(1, "info", Message(client_info))])),
        (6, "leave", Message(|| vec![(1, "info", Message(client_info))])),
        (7, "unsubscribe", Message(|| vec![(2, "code", Number), (3, "reason", Text)])),
        (8, "message", Message(|| vec![(1, "data", Json)])),
        (
            9,
            "subscribe",
            Message(|| {
                vec![
                    (1, "recoverable", Bool),
                    (4, "epoch", Text),
                    (5, "offset", Number),
                    (6, "positioned", Bool),
                    (7, "data", Json),
                ]
            }),
        ),
        (
            11,
            "disconnect",
            Message(|| vec![(1, "code", Number), (2, "reason", Text), (3, "reconnect", Bool)]),
        ),
        (12, "refresh", Message(|| vec![(1, "expires", Bool), (2, "ttl", Number)])),
        (1000, "missed", Message(|| vec![(1, "count", Number)])),
    ]
}

fn connect() -> Vec<(u32, &'static str, Kind)> {
    vec![
        (1, "client", Text),
        (2, "version", Text),
        (3, "expires", Bool),
        (4, "ttl", Number),
        (5, "data", Json),
        (6, "subs", MapOf(|| Message(subscribe))),
        (7, "ping", Number),
        (8, "pong", Bool),
        (9, "session", Text),
        (10, "node", Text),
    ]
}

fn subscribe() -> Vec<(u32, &'static str, Kind)> {
    vec![
        (1, "expires", Bool),
        (2, "ttl", Number),
        (3, "recoverable", Bool),
        (6, "epoch", Text),
        (7, "publications", List(publication)),
        (8, "recovered", Bool),
        (9, "offset", Number),
        (10, "positioned", Bool),
        (11, "data", Json),
        (12, "was_recovering", Bool),
    ]
}

fn publication() -> Vec<(u32, &'static str, Kind)> {
    vec![
        (4, "data", Json),
        (5, "info", Message(client_info)),
        (6, "offset", Number),
        (7, "tags", MapOf(|| Text)),
        (11, "key", Text),
    ]
}

fn client_info() -> Vec<(u32, &'static str, Kind)> {
    vec![(1, "user", Text), (2, "client", Text), (3, "conn_info", Json), (4, "chan_info", Json)]
}

/// Converts a message to JSON by its schema. Panics on a field that is not in the schema.
fn to_json(schema: Schema, bytes: &[u8]) -> Value {
    let mut object = Map::new();
    for field in Fields::of(bytes) {
        let field = field.unwrap();
        let fields = schema();
        let (_, name, kind) = fields
            .iter()
            .find(|(number, ..)| *number == field.number)
            .expect("a field of the schema");
        match kind {
            List(schema) => {
                let list = object.entry(*name).or_insert_with(|| json!([]));
                list.as_array_mut().unwrap().push(to_json(*schema, field.value.bytes().unwrap()));
            }
            MapOf(kind) => {
                let (mut key, mut value) = (String::new(), Value::Null);
                for field in Fields::of(field.value.bytes().unwrap()).map(Result::unwrap) {
                    match field.number {
                        1 => key = field.value.string().unwrap().to_owned(),
                        _ => value = scalar(&kind(), field.value),
                    }
                }
                if value.is_null() {
                    value = json!("");
                }
                let map = object.entry(*name).or_insert_with(|| json!({}));
                map.as_object_mut().unwrap().insert(key, value);
            }
            kind => {
                object.insert((*name).to_owned(), scalar(kind, field.value));
            }
        }
    }
    object.into()
}

fn scalar(kind: &Kind, value: Wire<'_>) -> Value {
    match kind {
        Number => value.uint64().unwrap().into(),
        Bool => value.bool().unwrap().into(),
        Text => value.string().unwrap().into(),
        Json => serde_json::from_slice(value.bytes().unwrap()).unwrap(),
        Message(schema) => to_json(*schema, value.bytes().unwrap()),
        List(_) | MapOf(_) => unreachable!("no scalar"),
    }
}

/// Removes what Protobuf omits. `data` and `tags` belong to the application and stay unchanged.
fn normal(value: Value, depth: usize) -> Value {
    let Value::Object(object) = value else { return value };
    let member = |(name, value): (String, Value)| {
        if ["data", "tags", "conn_info", "chan_info"].contains(&&*name) {
            return Some((name, value));
        }
        let value = match value {
            Value::Array(list) => list.into_iter().map(|of| normal(of, depth + 1)).collect(),
            value => normal(value, depth + 1),
        };
        let empty = [json!(0), json!(false), json!(""), json!([])].contains(&value);
        // Protobuf omits an empty map, such as the inner `presence`, but not an empty message.
        let empty = empty || depth > 0 && value == json!({}) && name == "presence";
        (!empty).then_some((name, value))
    };
    object.into_iter().filter_map(member).collect()
}

fn assert_same_reply(reply: &Reply<'_>) -> Result<(), TestCaseError> {
    let mut text = Vec::new();
    reply.write(7, &mut text);
    let expected: Value = serde_json::from_slice(&text).unwrap();
    let mut bytes = Vec::new();
    write_reply(&mut Writer::new(&mut bytes), 7, reply);
    prop_assert_eq!(normal(to_json(self::reply, &bytes), 0), normal(expected, 0));
    Ok(())
}

fn assert_same_push(outgoing: &Outgoing<'_>) -> Result<(), TestCaseError> {
    let mut text = Vec::new();
    write_json_push(&mut text, outgoing);
    let expected: Value = serde_json::from_slice(&text).unwrap();
    let mut bytes = Vec::new();
    write_push(&mut Writer::new(&mut bytes), outgoing);
    prop_assert_eq!(normal(to_json(push, &bytes), 0), normal(expected, 0));
    Ok(())
}

fn infos() -> impl Strategy<Value = ClientInfo> {
    let json =
        || prop::option::of("[a-z]{0,9}".prop_map(|text| json!(text).to_string().into_bytes()));
    ("\\PC{0,9}", 0u64..1 << 53, json(), json()).prop_map(|(user, client, conn, chan)| ClientInfo {
        user_is_number: false,
        foreign_client: None,
        user: user.into(),
        client: SessionId::from_u64(client).unwrap(),
        conn_info: conn.map(Into::into),
        chan_info: chan.map(Into::into),
    })
}

fn publications() -> impl Strategy<Value = Publication> {
    let tags = prop::collection::btree_map("\\PC{1,5}", "\\PC{0,9}", 0..3);
    let key = prop::option::of("[a-z]{1,5}");
    ("\\PC{0,200}", 0u64..1 << 53, prop::option::of(infos()), tags, key).prop_map(
        |(text, offset, info, tags, key)| {
            Publication::from(PublicationParts {
                offset,
                data: json!({ "text": text }).to_string().into_bytes().into(),
                info: info.map(Arc::new),
                tags: tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
                key: key.map(Into::into),
                ..PublicationParts::default()
            })
        },
    )
}

proptest! {
    #[test]
    fn a_reply_is_the_same_in_both_formats(
        list in prop::collection::vec(publications(), 0..4), infos in prop::collection::vec(infos(), 0..3),
        offset in 0u64..1 << 53, epoch: u64, ttl_s: u32, flags: [bool; 4], text in "\\PC{0,20}",
    ) {
        let position = StreamPosition { offset, epoch: Epoch::from_u64(epoch) };
        let client = SessionId::from_u64(offset).unwrap();
        let [was_recovering, recovered, positioned, recoverable] = flags;
        let subscribed = Subscribed {
            position, was_recovering, recovered, positioned, recoverable, publications: list.clone(), ..Subscribed::default()
        };
        let data = json!(text).to_string();
        let subscribe = SubscribeResult { subscribed: &subscribed, ttl_s, data: Some(data.as_bytes()) };
        let subs = [(Arc::from(&*text), subscribe.clone())];
        let connect = ConnectResult {
            client: Some(client), version: &text, ttl_s, data: Some(data.as_bytes()), subs: &subs,
            ping_s: ttl_s, pong: recovered, session: &text, node: &text,
        };
        let infos: Vec<_> = infos.into_iter().map(Arc::new).collect();
        let history = History { publications: list.clone(), position };
        let error = ErrorCode::TooManyRequests.with_reason(&text);
        let refresh = RefreshResult { client, version: &text, ttl_s };
        for reply in [
            Reply::Error(&error), Reply::Connect(&connect), Reply::Subscribe(&subscribe),
            Reply::Unsubscribe, Reply::Publish, Reply::Presence(&infos),
            Reply::PresenceStats(PresenceStats { clients: offset, users: epoch }),
            Reply::History(&history), Reply::Ping, Reply::Rpc { data: data.as_bytes() },
            Reply::Refresh(&refresh), Reply::SubRefresh { ttl_s },
        ] {
            assert_same_reply(&reply)?;
        }
        for publication in &list {
            assert_same_push(&Outgoing::Publication { channel: &text, publication })?;
        }
        for info in &infos {
            assert_same_push(&Outgoing::Join { channel: &text, info, of_user: true })?;
            assert_same_push(&Outgoing::Leave { channel: &text, info, of_user: true })?;
        }
        let (channel, data) = (&*text, Some(data.as_bytes()));
        for push in [
            Outgoing::Unsubscribe { channel, code: ttl_s, reason: &text },
            Outgoing::Subscribe { channel, position, recoverable, positioned, data },
            Outgoing::Missed { channel, count: offset },
            Outgoing::Disconnect { code: ttl_s, reason: &text, reconnect: recovered },
            Outgoing::Message { data: data.unwrap(), format: PayloadFormat::Json },
        ] {
            assert_same_push(&push)?;
        }
    }

    #[test]
    fn any_bytes_at_all_are_a_command_or_an_error(bytes: Vec<u8>) {
        let _ = parse_command(&bytes);
        prop_assert!(Commands::of(Format::Protobuf, &bytes).count() <= bytes.len());
    }
}
