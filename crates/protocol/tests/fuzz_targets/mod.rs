//! What the fuzzer feeds, and what must hold whatever it feeds.
//!
//! Shared by `fuzz/`, which explores, and by `tests/fuzz_corpus.rs`, which replays the seeds. Each target takes any
//! bytes and panics when an invariant is broken.

mod tag_filter;

use dunlin_hub::{Outgoing, PayloadFormat, Publication, PublicationParts, TagFilter};
use dunlin_protocol::centrifuge::{
    CommandError, Commands, ConnectRequest, FilterNode, ProtocolState, Request,
};
use dunlin_protocol::emulation::EmulationRequest;
use dunlin_protocol::json::{Json, write_string};
use dunlin_protocol::long_poll::{Cursor, PollLimits, PollRequest, Since};
use dunlin_protocol::pusher::event::write_push;
use dunlin_protocol::pusher::{
    Member, Message, Messages, SocketId, is_name, payload_of_text, pusher_name,
};
use dunlin_protocol::{Format, Payload};

/// A target by the name of its corpus.
pub type Target = fn(&[u8]);

/// All targets: `fuzz/corpus/NAME` holds the seeds of each.
pub const TARGETS: &[(&str, Target)] = &[
    ("protocol_commands", commands),
    ("protocol_protobuf", protobuf),
    ("protocol_connect", connect),
    ("protocol_emulation", emulation),
    ("protocol_json", json),
    ("protocol_cursor", cursor),
    ("protocol_poll", poll),
    ("protocol_pusher", pusher),
    ("protocol_tag_filter", tag_filter::tag_filter),
];

/// A conversation survives any frame, and what it refuses it refuses in words that fit where they go.
fn commands(frame: &[u8]) {
    converse(Format::Json, frame);
}

/// The same in Protobuf; and the body of an emulation request.
fn protobuf(frame: &[u8]) {
    converse(Format::Protobuf, frame);
    if let Ok(request) = EmulationRequest::parse(Format::Protobuf, frame) {
        assert!(!request.session.is_empty());
        converse(Format::Protobuf, &request.data);
    }
}

fn converse(format: Format, frame: &[u8]) {
    let mut state = ProtocolState::default();
    let mut commands = Commands::of(format, frame);
    let empty = commands.is_empty();
    let mut count = 0;
    while let Some(command) = commands.next() {
        count += 1;
        let Ok(command) = command else {
            assert!(commands.next().is_none(), "nothing follows a malformed command");
            break;
        };
        for payload in payloads(&command.request) {
            if payload.format() == PayloadFormat::Json {
                one_line(payload.as_bytes());
            } else {
                assert_eq!(format, Format::Protobuf, "JSON is JSON");
            }
        }
        if let Request::Subscribe(subscribe) = &command.request
            && let Some(filter) = &subscribe.tags_filter
            && let Ok(filter) = filter.to_filter()
        {
            assert!(filter.bytes() <= FilterNode::BYTES_MAX);
            let tags = [("kind".into(), "1.5".into())].into_iter().collect();
            assert_ne!(
                filter.admits(&tags),
                TagFilter::Not(Box::new(filter.clone())).admits(&tags)
            );
        }
        match state.admit(&command) {
            Ok(_) if command.request.method() == "connect" => state.connected(),
            Ok(_) | Err(CommandError::Reply(_)) => {}
            Err(CommandError::Disconnect(disconnect)) => {
                assert!(disconnect.reason.len() <= dunlin_protocol::centrifuge::REASON_BYTES_MAX);
                break;
            }
        }
    }
    assert_eq!(empty, count == 0);
}

/// A client of the Pusher protocol survives any frame; what of it others are sent is JSON, and a text is the text it was.
fn pusher(frame: &[u8]) {
    for message in Messages::new(frame) {
        let Ok(message) = message else { continue };
        match &message {
            Message::ClientEvent { event, data, .. } => {
                assert!(event.starts_with("client-"));
                one_line(data.as_bytes());
            }
            Message::Subscribe(subscribe) => {
                let _ = Member::of_channel_data(&subscribe.channel_data);
                if is_name(&subscribe.channel) && !subscribe.channel.starts_with('#') {
                    let channel = format!("ns:{}", subscribe.channel);
                    assert_eq!(pusher_name(&channel), subscribe.channel);
                }
            }
            Message::SignIn(sign_in) => drop(Member::of_user_data(&sign_in.user_data)),
            _ => {}
        }
    }
    if let Ok(text) = std::str::from_utf8(frame) {
        let data = payload_of_text(text);
        let publication =
            Publication::from(PublicationParts { data, ..PublicationParts::default() });
        one_line(publication.data());
        let mut out = Vec::new();
        let outgoing = Outgoing::Publication { channel: "ns:a", publication: &publication };
        write_push(&mut out, &outgoing);
        let event: serde_json::Value = serde_json::from_slice(&out).expect("an event is JSON");
        assert_eq!(event["data"], text);
        if let Ok(id) = text.parse::<SocketId>() {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }
}

fn payloads<'a>(request: &'a Request<'_>) -> Vec<&'a Payload<'a>> {
    match request {
        Request::Connect(connect) => connect.data.iter().collect(),
        Request::Subscribe(subscribe) => subscribe.data.iter().collect(),
        Request::Publish(publish) => publish.data.iter().collect(),
        _ => Vec::new(),
    }
}

fn connect(text: &[u8]) {
    if let Ok(request) = ConnectRequest::parse(text) {
        for (channel, _) in request.subs.iter() {
            assert!(request.subs.get(channel).is_some());
        }
    }
}

fn emulation(body: &[u8]) {
    if let Ok(request) = EmulationRequest::parse(Format::Json, body) {
        assert!(!request.session.is_empty());
        commands(&request.data);
    }
}

/// A payload is one line, and stays what it is when it is read again.
fn json(text: &[u8]) {
    if let Ok(json) = Json::parse(text) {
        one_line(json.as_bytes());
    }
    if let Ok(text) = std::str::from_utf8(text) {
        let mut string = Vec::new();
        write_string(&mut string, text);
        let json = Json::parse(&string).expect("a string is JSON");
        assert_eq!(json.as_bytes(), string, "and on one line as it is");
    }
}

fn one_line(bytes: &[u8]) {
    assert!(!bytes.contains(&b'\n') && !bytes.contains(&b'\r'));
    assert_eq!(Json::parse(bytes).expect("still JSON").as_bytes(), bytes);
}

/// A cursor that is taken says the same when it is written and read again.
fn cursor(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    if let Ok(cursor) = Cursor::parse(text, 16) {
        let again = Cursor::parse(&cursor.to_string(), 16).expect("its own text");
        assert_eq!(again, cursor);
        let _: Since = cursor.since("news");
    }
}

fn poll(query: &[u8]) {
    let Ok(query) = std::str::from_utf8(query) else { return };
    let limits = PollLimits { channels_max: 4, channel_bytes_max: 16, ..PollLimits::default() };
    if let Ok(request) = PollRequest::parse(query, &limits) {
        assert!((1..=4).contains(&request.channels.len()));
        assert!(request.channels.iter().all(|channel| (1..=16).contains(&channel.len())));
        assert!(request.timeout_ms <= limits.timeout_ms_max);
    }
}
