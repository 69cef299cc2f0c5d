//! Tests with requests as libraries send them and people type them in shells.

use std::sync::Arc;

use dunlin_hub::{
    ChannelOptions, ChannelSummary, ClientInfo, Epoch, History, HistoryFilter, Info, PayloadFormat,
    PresenceStats, Publication, PublicationParts, Published, SessionId, StreamPosition,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::batch::Batch;
use super::request::{PublishParams, Target};
use super::*;

fn parse(method: Method, body: &str) -> Result<Request<'_>, String> {
    Request::parse(method, body.as_bytes()).map_err(|error| error.to_string())
}

fn publish(body: &str) -> Result<PublishParams<'_>, String> {
    match parse(Method::Publish, body)? {
        Request::Publish(request) => Ok(request.message),
        other => panic!("{other:?}"),
    }
}

fn client() -> SessionId {
    SessionId::from_u64(9_007_199_254_740_991).unwrap()
}

fn position(offset: u64, epoch: u64) -> StreamPosition {
    StreamPosition { offset, epoch: Epoch::from_u64(epoch) }
}

fn published(offset: u64) -> Published {
    Published { position: position(offset, 10), ..Published::default() }
}

fn written(answer: &CommandResult) -> Value {
    let node = NodeFacts { uid: "u", name: "host", version: "0.1.0", uptime_s: 7 };
    let mut out = Vec::new();
    write_response(&mut out, answer, &node, usize::MAX);
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn publish_as_the_walkthrough_has_it() {
    let Request::Publish(request) =
        parse(Method::Publish, r#"{"channel": "chat", "data": {"text": "hello"}}"#).unwrap()
    else {
        panic!()
    };
    assert_eq!(request.channel, "chat");
    let publish = request.message.to_publish();
    assert_eq!(&*publish.data, br#"{"text": "hello"}"#);
    assert_eq!(publish.idempotency_key, None);
}

#[test]
fn publish_with_everything() {
    let message = publish(
        r#"{"channel":"a","data":[1],"skip_history":true,"tags":{"k":"v"},"idempotency_key":"once",
            "delta":true,"version":7,"version_epoch":"e"}"#,
    )
    .unwrap();
    let publish = message.to_publish();
    assert!(publish.skip_history);
    assert_eq!(&*publish.tags, [("k".into(), "v".into())]);
    assert_eq!(publish.idempotency_key.as_deref(), Some("once"));
    assert_eq!((publish.version, &*publish.version_epoch), (7, "e"));
}

#[test]
fn a_payload_written_over_several_lines_becomes_one() {
    let message = publish("{\"channel\":\"a\",\"data\":{\r\n  \"text\": \"x  y\"\n}}").unwrap();
    assert_eq!(message.data.as_bytes(), br#"{"text":"x  y"}"#);
    let message = publish(r#"{"channel":"a","data":null}"#).unwrap();
    assert_eq!(message.data.as_bytes(), b"null");
}

#[test]
fn a_payload_in_base64_may_be_any_bytes() {
    let message = publish(r#"{"channel":"a","b64data":"eyJhIjoxfQ=="}"#).unwrap();
    assert_eq!(message.data.as_bytes(), br#"{"a":1}"#);
    assert_eq!(message.to_publish().format, PayloadFormat::Json);
    let message = publish(r#"{"channel":"a","b64data":"AAEC"}"#).unwrap();
    assert_eq!(message.data.as_bytes(), b"\x00\x01\x02");
    assert_eq!(message.to_publish().format, PayloadFormat::Binary);
    let error = publish(r#"{"channel":"a","b64data":"%"}"#).unwrap_err();
    assert!(error.starts_with("107: bad request: b64data: is not base64"), "{error}");
}

#[test]
fn malformed_body_is_named() {
    for (method, body, error) in [
        (Method::Publish, "", "the body is empty; it should be a JSON object"),
        (
            Method::Publish,
            "nonsense",
            "the body is not the JSON object it should be: expected ident at line 1 column 2",
        ),
        (Method::Publish, r#"{"data":1}"#, "channel: is missing or empty"),
        (Method::Publish, r#"{"channel":"","data":1}"#, "channel: is missing or empty"),
        (Method::Publish, r#"{"channel":"a"}"#, "data: is missing"),
        (
            Method::Publish,
            r#"{"channel":5,"data":1}"#,
            "channel: invalid type: integer `5`, expected a string",
        ),
        (
            Method::Publish,
            r#"{"channel":"a","data":1,"tags":{"x":1}}"#,
            "tags.x: invalid type: integer `1`, expected a string",
        ),
        (
            Method::Publish,
            r#"{"channel":"a","data":1,"tags":{"x":"1","x":"2"}}"#,
            "tags: the key `x` is repeated",
        ),
        (
            Method::History,
            r#"{"channel":"a","since":[1,"A"]}"#,
            "since: invalid type: sequence, expected an object",
        ),
        (Method::Broadcast, r#"{"channels":[],"data":1}"#, "channels: name at least one channel"),
        (
            Method::InboxPublish,
            r#"{"namespace":"inbox","users":[],"data":1}"#,
            "users: name at least one user",
        ),
        (
            Method::InboxPublish,
            r#"{"namespace":"inbox","users":["a"],"data":1,"tags":{"inbox_id":"x"}}"#,
            "tags: \"inbox_id\" is set by the inbox; take another name",
        ),
        (
            Method::InboxPublish,
            r#"{"namespace":"inbox","users":["a"],"data":1,"priority":"highest"}"#,
            "priority: \"highest\" is not low, normal or high",
        ),
        (Method::InboxCancel, r#"{"namespace":"inbox","users":["a"]}"#, "id: is missing or empty"),
        (
            Method::Broadcast,
            r#"{"channels":["a",2],"data":1}"#,
            "channels[1]: invalid type: integer `2`, expected a string",
        ),
        (
            Method::History,
            r#"{"channel":"a","limit":"all"}"#,
            "limit: invalid type: string \"all\", expected i32",
        ),
        (
            Method::History,
            r#"{"channel":"a","since":{"offset":-1}}"#,
            "since.offset: invalid value: integer `-1`, expected u64",
        ),
        (
            Method::Disconnect,
            r#"{}"#,
            "user: is missing or empty; name a user, or one client by its id, or set all_users",
        ),
        (
            Method::Disconnect,
            r#"{"user":"a","disconnect":{"code":1000,"reason":""}}"#,
            "disconnect.code: 1000 is not one of 3000–4999 (an application's own are 4000–4999)",
        ),
        (
            Method::Subscribe,
            r#"{"user":"a","channel":"c","override":{"presence":true}}"#,
            "override.presence: invalid type: boolean `true`, expected an object",
        ),
    ] {
        assert_eq!(parse(method, body), Err(format!("107: bad request: {error}")), "{body}");
    }
    let error = parse(Method::Publish, r#"{"channel":"a","data":1,"skip_hist":true}"#).unwrap_err();
    assert!(
        error.contains("skip_hist: unknown field `skip_hist`, expected one of `channel`"),
        "{error}"
    );
    let error = parse(Method::Publish, r#"["a",1]"#).unwrap_err();
    assert!(error.contains("invalid type: sequence, expected an object"), "{error}");
    let error = parse(Method::Info, r#"{"channel":"a"}"#).unwrap_err();
    assert!(error.contains("channel: unknown field `channel`"), "{error}");
}

#[test]
fn unknown_field_of_a_newer_library_is_ignored_and_named() {
    let body = br#"{"channel":"a","data":{"x":1},"zstd":true,"tags":{"x":"1"}}"#;
    let lenient = LenientReader::default();
    let Ok(Request::Publish(publish)) = lenient.request(Method::Publish, body) else { panic!() };
    assert_eq!((&*publish.channel, publish.message.data.as_bytes()), ("a", &b"{\"x\":1}"[..]));
    assert_eq!(publish.message.tags.len(), 1);
    assert_eq!(
        lenient.into_unknown().warning().as_deref(),
        Some("299 - \"ignored unknown fields: zstd\"")
    );

    let nested = br#"{"user":"u","channel":"a","recover_since":{"offset":7,"epoch":"A","node":1},
        "override":{"presence":{"value":true,"why":0},"color":{"value":true}},"data":{"any":{"thing":1}}}"#;
    let lenient = LenientReader::default();
    let Ok(Request::Subscribe(request)) = lenient.request(Method::Subscribe, nested) else {
        panic!()
    };
    assert_eq!(request.recover_since, Some(position(7, 10)));
    assert_eq!(request.options.presence, Some(true));
    let warning = lenient.into_unknown().warning().unwrap();
    let named = "recover_since.node, override.presence.why, override.color";
    assert_eq!(&*warning, format!("299 - \"ignored unknown fields: {named}\""));

    // A misspelled member is named in the error about the member that is missing because of it.
    let lenient = LenientReader::default();
    let error = lenient.request(Method::Publish, br#"{"chanel":"a","data":1}"#).unwrap_err();
    assert_eq!(
        error.message,
        "bad request: channel: is missing or empty; there are unknown fields: chanel"
    );
    let strict = LenientReader::new(true);
    let error = strict.request(Method::Publish, body).unwrap_err();
    assert!(error.message.contains("zstd: unknown field `zstd`"), "{error}");
    assert_eq!(strict.into_unknown().warning(), None);
}

#[test]
fn a_batch_ignores_what_its_commands_do_not_know() {
    let body = br#"{"commands":[{"publish":{"channel":"a","data":1,"b":1}},{"publish":{"c":1}},{"teleport":{"d":1}},7,
        {"info":{"e":1}}],"parallel":true,"atomic":true}"#;
    let lenient = LenientReader::default();
    let batch = lenient.batch(body, usize::MAX).unwrap();
    assert!(batch.parallel);
    let mut unknown = UnknownFields::default();
    let outcome: Vec<_> = (batch.texts.iter().enumerate())
        .map(|(at, text)| {
            let reader = LenientReader::default();
            let error = reader.command(at, text).err().map(|error| error.message.into_owned());
            unknown.append(reader.into_unknown());
            error
        })
        .collect();
    let is_right: Vec<bool> = outcome.iter().map(Option::is_none).collect();
    assert_eq!(is_right, [true, false, false, false, true]);
    let error = outcome[1].as_deref();
    assert_eq!(error, Some("bad request: commands[1].publish: channel: is missing or empty"));
    unknown.append(lenient.into_unknown());
    let named = "commands[0].publish.b, commands[1].publish.c, commands[4].info.e, atomic";
    let warning = unknown.warning().unwrap();
    assert_eq!(&*warning, format!("299 - \"ignored unknown fields: {named}\""));
    assert!(LenientReader::new(true).batch(body, usize::MAX).is_err());
}

#[test]
fn a_warning_is_a_header_whatever_the_names_are() {
    let members: String =
        (0..100).map(|n| format!(",\"\\r\\n\\\"ü{n}{}\":1", "x".repeat(100))).collect();
    let body = format!("{{\"channel\":\"a\",\"data\":1{members}}}");
    let lenient = LenientReader::default();
    lenient.request(Method::Publish, body.as_bytes()).unwrap();
    let warning = lenient.into_unknown().warning().unwrap();
    assert!(warning.len() < 1024 && warning.ends_with(" and 92 more\""), "{warning}");
    assert!(warning.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{warning}");
    assert_eq!(warning.matches('"').count(), 2);
}

#[test]
fn only_a_body_that_is_no_request_is_a_400() {
    let status =
        |body: &str| Request::parse(Method::Publish, body.as_bytes()).unwrap_err().status();
    assert_eq!(status("nonsense"), 400);
    assert_eq!(status(r#"{"channel":5}"#), 400);
    assert_eq!(status(r#"{"data":1}"#), 200);
    let error = ApiError::from(ApiErrorCode::UnknownChannel);
    assert_eq!((error.status(), error.transport_status()), (200, 404));
}

#[test]
fn deep_and_broken_bodies_are_refused_without_harm() {
    let deep = "[".repeat(100_000);
    assert!(parse(Method::Publish, &deep).is_err());
    let deep = format!(r#"{{"channel":"a","data":{}1{}}}"#, "[".repeat(500), "]".repeat(500));
    let _ = parse(Method::Publish, &deep);
    assert!(Request::parse(Method::Publish, b"{\"channel\":\"\xff\",\"data\":1}").is_err());
    assert!(Request::parse(Method::Publish, b"{\"channel\":\"a\",\"data\":\"\xff\"}").is_err());
}

#[test]
fn whom_a_command_is_about() {
    let Request::Disconnect(request) = parse(
        Method::Disconnect,
        r#"{"user":"ann","whitelist":["9007199254740991"],"disconnect":{"code":4501,"reason":"enough"}}"#,
    )
    .unwrap() else {
        panic!()
    };
    assert_eq!(
        request.target,
        Target {
            user: "ann".into(),
            client: "".into(),
            session: "".into(),
            all_users: false,
            label_filter: None,
        }
    );
    assert_eq!(request.whitelist, [client()]);
    assert_eq!((request.code, &*request.reason), (4501, "enough"));

    let Request::Disconnect(request) =
        parse(Method::Disconnect, r#"{"user":"","client":"9007199254740991"}"#).unwrap()
    else {
        panic!()
    };
    assert_eq!(request.target.client, "9007199254740991");
    assert_eq!((request.code, &*request.reason), (3503, "force disconnect"));
}

#[test]
fn subscribe_with_other_options_than_the_channels() {
    let Request::Subscribe(request) = parse(
        Method::Subscribe,
        r#"{"user":"ann","channel":"a","data":{"welcome":true},"recover_since":{"offset":3,"epoch":"A"},
            "override":{"presence":{"value":true},"force_recovery":{"value":false},"join_leave":null}}"#,
    )
    .unwrap() else {
        panic!()
    };
    assert_eq!(request.data.unwrap().as_bytes(), br#"{"welcome":true}"#);
    assert_eq!(request.recover_since, Some(position(3, 10)));
    let channel = ChannelOptions { force_recovery: true, join_leave: true, ..Default::default() };
    let options = request.options.apply(&channel);
    assert!(options.presence && options.join_leave && !options.force_recovery);
}

#[test]
fn history_by_limit() {
    let filter = |body| match parse(Method::History, body).unwrap() {
        Request::History(request) => request.filter(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        filter(r#"{"channel":"a"}"#),
        HistoryFilter { limit: Some(0), ..HistoryFilter::default() }
    );
    assert_eq!(
        filter(r#"{"channel":"a","limit":-1,"reverse":true,"since":{"offset":4,"epoch":"A"}}"#),
        HistoryFilter { since: Some(position(4, 10)), reverse: true, ..HistoryFilter::default() }
    );
}

#[test]
fn cent_batches() {
    let body = br#"{"commands":[{"publish":{"channel":"a","data":1}},{"history":{"channel":"a","limit":1}}],"parallel":false}"#;
    let batch = Batch::parse(body, usize::MAX).unwrap();
    assert!(!batch.parallel);
    let commands = batch.texts.iter().enumerate().map(|(at, text)| Batch::command(at, text));
    let methods: Vec<_> = commands.map(|command| command.unwrap().method().name()).collect();
    assert_eq!(methods, ["publish", "history"]);
    assert_eq!(batch.at_once(), 2);
}

#[test]
fn one_wrong_command_of_a_batch_disturbs_no_other() {
    let body = br#"{"commands":[{"publish":{"channel":"a","data":1}},{"teleport":{}},{"publish":{}},{"publish":{"channel":5}},{},null,
        {"publish":null,"info":{}},{"info":{},"channels":{}}],"parallel":true}"#;
    let batch = Batch::parse(body, usize::MAX).unwrap();
    assert!(batch.parallel);
    let reported: Vec<_> = batch
        .texts
        .iter()
        .enumerate()
        .map(|(at, text)| match Batch::command(at, text) {
            Ok(request) => request.method().name().to_owned(),
            Err(error) => error.to_string(),
        })
        .collect();
    assert_eq!(reported[0], "publish");
    assert!(
        reported[1]
            .starts_with("104: not found: there is no method \"teleport\"; there are publish, ")
    );
    assert_eq!(reported[2], "107: bad request: commands[2].publish: channel: is missing or empty");
    assert_eq!(
        reported[3],
        "107: bad request: commands[3].publish: channel: invalid type: integer `5`, expected a string"
    );
    assert_eq!(
        reported[4],
        "107: bad request: commands[4] should be an object of one method and its request"
    );
    assert_eq!(reported[5], reported[4].replace('4', "5"));
    assert_eq!(reported[6], "info");
    assert_eq!(reported[7], reported[4].replace('4', "7"));
}

/// A command about users goes to all workers; in the order of the batch it waits until those before it are answered.
#[test]
fn commands_begin_at_once_up_to_the_first_one_about_users() {
    let at_once = |commands: &str| {
        let body = format!(r#"{{"commands":[{commands}]}}"#);
        Batch::parse(body.as_bytes(), usize::MAX).unwrap().at_once()
    };
    let of_channel = r#" { "publish" :{}},{"history":{}}"#;
    assert_eq!(at_once(of_channel), 2);
    for about_users in [
        r#"{"disconnect":{"user":"1"}}"#,
        r#"{"publish":null,"disconnect":{}}"#,
        r#"{"publi\u0073h":{}}"#,
        "{}",
        "7",
    ] {
        assert_eq!(
            at_once(&format!("{of_channel},{about_users},{of_channel}")),
            2,
            "{about_users}"
        );
    }
    assert_eq!(at_once(r#"{"unblock_user":{}}"#), 0);
}

#[test]
fn a_body_that_is_no_batch() {
    let error = |body: &str| Batch::parse(body.as_bytes(), usize::MAX).unwrap_err();
    assert_eq!(
        error(r#"{"commands":{"publish":{}}}"#).to_string(),
        "107: bad request: commands: invalid type: map, expected a sequence"
    );
    assert_eq!(error("nonsense").status(), 400);
    assert_eq!(error("").status(), 400);
}

#[test]
fn gocent_uses_the_single_endpoint() {
    let body = concat!(
        "{\"method\":\"publish\",\"params\":{\"channel\":\"a\",\"data\":{\"x\":1}}}\n",
        "{\"method\":\"subscribe\",\"params\":{\"channel\":\"a\",\"user\":\"42\",\"presence\":true,\"recover\":true}}\n",
        "{\"id\":3,\"method\":\"DISCONNECT\",\"params\":{\"user\":\"42\",\"Disconnect\":{\"reason\":\"bye\",\"reconnect\":true},\"ClientWhitelist\":null}}",
        "{\"method\":7,\"params\":{\"channel\":\"a\"}}",
        "{\"method\":\"teleport\"}",
        "{\"method\":\"info\"}",
    );
    let commands = LegacyCommand::parse(body.as_bytes(), usize::MAX).unwrap();
    let reported: Vec<_> = commands
        .iter()
        .map(|command| match command.request() {
            Ok(request) => request.method().name().to_owned(),
            Err(error) => error.code.to_string(),
        })
        .collect();
    assert_eq!(reported, ["publish", "subscribe", "disconnect", "history_remove", "104", "info"]);
    let Ok(Request::Disconnect(request)) = commands[2].request() else { panic!() };
    assert_eq!((request.code, &*request.reason), (3011, "bye"));

    let mut out = Vec::new();
    let replies = [
        (0, Ok(CommandOutcome::Published(published(2)))),
        (3, Err(ApiErrorCode::UnknownChannel.into())),
    ];
    write_legacy(&mut out, &replies, &NodeFacts::default(), usize::MAX);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"result\":{\"offset\":2,\"epoch\":\"A\"}}\n{\"id\":3,\"error\":{\"code\":102,\"message\":\"unknown channel\"}}"
    );
    assert_eq!(LegacyCommand::parse(b" ", usize::MAX).unwrap_err().status(), 400);
    assert_eq!(
        LegacyCommand::parse(b"{\"method\":\"publish\"", usize::MAX).unwrap_err().status(),
        400
    );
    assert_eq!(LegacyCommand::parse(b"[]", usize::MAX).unwrap_err().status(), 400);
}

#[test]
fn answers_as_the_walkthrough_has_them() {
    assert_eq!(
        written(&Ok(CommandOutcome::Published(published(1)))),
        json!({"result": {"offset": 1, "epoch": "A"}})
    );
    assert_eq!(
        written(&Ok(CommandOutcome::Published(Published::default()))),
        json!({"result": {}})
    );
    assert_eq!(written(&Ok(CommandOutcome::Done)), json!({"result": {}}));
    assert_eq!(
        written(&Err(ApiErrorCode::UnknownChannel.into())),
        json!({"error": {"code": 102, "message": "unknown channel"}})
    );
    let responses = vec![Ok(published(3)), Err(ApiErrorCode::UnknownChannel.into())];
    assert_eq!(
        written(&Ok(CommandOutcome::Broadcast(responses))),
        json!({"result": {"responses": [
            {"result": {"offset": 3, "epoch": "A"}},
            {"error": {"code": 102, "message": "unknown channel"}},
        ]}})
    );
    let info = Arc::new(ClientInfo {
        user_is_number: false,
        foreign_client: None,
        user: "42".into(),
        client: client(),
        conn_info: None,
        chan_info: Some(b"{\"a\":1}".as_slice().into()),
    });
    assert_eq!(
        written(&Ok(CommandOutcome::Presence(vec![info]))),
        json!({"result": {"presence": {"9007199254740991": {
            "client": "9007199254740991", "user": "42", "chan_info": {"a": 1},
        }}}})
    );
    assert_eq!(
        written(&Ok(CommandOutcome::PresenceStats(PresenceStats { clients: 0, users: 0 }))),
        json!({"result": {"num_clients": 0, "num_users": 0}})
    );
    let publications = [2, 3].map(|offset| {
        let data = b"{\"text\":\"hello\"}".as_slice().into();
        Publication::from(PublicationParts { offset, data, ..PublicationParts::default() })
    });
    assert_eq!(
        written(&Ok(CommandOutcome::History(History {
            publications: publications.into(),
            position: position(4, 10),
        }))),
        json!({"result": {"epoch": "A", "offset": 4, "publications": [
            {"data": {"text": "hello"}, "offset": 2},
            {"data": {"text": "hello"}, "offset": 3},
        ]}})
    );
    let channels = vec![ChannelSummary { name: "a\"b".into(), clients: 2 }];
    assert_eq!(
        written(&Ok(CommandOutcome::Channels(channels))),
        json!({"result": {"channels": {"a\"b": {"num_clients": 2}}}})
    );
    assert_eq!(
        written(&Ok(CommandOutcome::Info(Info {
            clients: 3,
            users: 1,
            channels: 2,
            subscriptions: 3
        }))),
        json!({"result": {"nodes": [{
            "uid": "u", "name": "host", "version": "0.1.0", "num_clients": 3, "num_users": 1,
            "num_channels": 2, "uptime": 7, "num_subs": 3,
        }]}})
    );
}

#[test]
fn a_batch_is_answered_in_order() {
    let replies = [
        (Some(Method::Publish), Ok(CommandOutcome::Published(Published::default()))),
        (Some(Method::Publish), Err(ApiErrorCode::UnknownChannel.into())),
        (None, Err(ApiErrorCode::NotFound.into())),
    ];
    let mut out = Vec::new();
    write_batch(&mut out, &replies, &NodeFacts::default(), usize::MAX);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"replies":[{"publish":{}},{"error":{"code":102,"message":"unknown channel"}},{"error":{"code":104,"message":"not found"}}]}"#
    );
}

/// Errors were written whatever room there was: 4 MB of refused commands were answered with 39 MB.
#[test]
fn response_to_many_commands_ends_at_its_bound_whatever_came_of_them() {
    let long = ApiErrorCode::BadRequest.with_reason("x".repeat(200));
    let position = StreamPosition { offset: 1 << 40, epoch: Epoch::from_u64(u64::MAX) };
    let published = Published { position, ..Published::default() };
    for bytes_max in [65_536, 1 << 20] {
        let count = commands_max(bytes_max);
        for answer in [
            Err(long.clone()),
            Err(ApiErrorCode::UnknownChannel.into()),
            Ok(CommandOutcome::Published(published)),
            Ok(CommandOutcome::Broadcast(vec![Ok(published); 400])),
        ] {
            let replies = vec![(Some(Method::Publish), answer.clone()); count];
            let mut out = Vec::new();
            write_batch(&mut out, &replies, &NodeFacts::default(), bytes_max);
            assert!(out.len() <= bytes_max, "{} of {bytes_max}", out.len());
            let batch: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(batch["replies"].as_array().map(Vec::len), Some(count));
            let replies = vec![(u32::MAX, answer); count];
            out.clear();
            write_legacy(&mut out, &replies, &NodeFacts::default(), bytes_max);
            assert!(out.len() <= bytes_max, "{} of {bytes_max}", out.len());
            let lines = serde_json::Deserializer::from_slice(&out).into_iter::<Value>();
            assert_eq!(lines.filter(Result::is_ok).count(), count);
        }
        let channels = (1..).take_while(|&count| check_channels(count, bytes_max).is_ok()).count();
        let parts = [Ok(published), Err(long.clone())].into_iter().cycle().take(channels);
        let mut out = Vec::new();
        let broadcast = Ok(CommandOutcome::Broadcast(parts.collect()));
        write_response(&mut out, &broadcast, &NodeFacts::default(), bytes_max);
        assert!(out.len() <= bytes_max, "{} of {bytes_max}", out.len());
        let answer: Value = serde_json::from_slice(&out).unwrap();
        let responses = answer["result"]["responses"].as_array().unwrap();
        assert_eq!(responses.len(), channels);
        assert!(responses.last().unwrap()["error"]["code"] == 107, "a code is never left out");
    }
}

#[test]
fn call_with_more_commands_than_its_response_has_room_for_is_refused_whole() {
    let body = format!(r#"{{"commands":[{}]}}"#, vec!["{}"; 1_001].join(","));
    let error = Batch::parse(body.as_bytes(), 1_000).unwrap_err();
    assert!(error.code == 106 && error.message.contains("answer_bytes_max"), "{error}");
    assert!(Batch::parse(body.as_bytes(), 1_001).is_ok());
    let body = "{}\n".repeat(1_001);
    assert_eq!(LegacyCommand::parse(body.as_bytes(), 1_000).unwrap_err().code, 106);
}

#[test]
fn every_method_is_found_by_its_name() {
    for &method in Method::ALL {
        assert_eq!(Method::of(method.name()), Some(method));
    }
    let error = Method::find("rpc").unwrap_err();
    assert_eq!((error.code, error.transport_status()), (104, 404));
}

proptest! {
    #[test]
    fn anything_at_all_is_read_or_refused(body in "\\PC{0,200}") {
        for &method in Method::ALL {
            let _ = Request::parse(method, body.as_bytes());
        }
        let _ = Batch::parse(body.as_bytes(), usize::MAX);
        let _ = LegacyCommand::parse(body.as_bytes(), usize::MAX);
    }

    #[test]
    fn a_publication_is_published_as_it_was_sent(
        channel in "\\PC{1,50}",
        text in "\\PC{0,200}",
        tag in "\\PC{0,20}",
        pretty: bool,
    ) {
        let body = json!({"channel": channel, "data": {"text": text}, "tags": {tag.clone(): text}});
        let body = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) }.unwrap();
        let Ok(Request::Publish(request)) = parse(Method::Publish, &body) else { panic!() };
        prop_assert_eq!(&request.channel, &channel);
        let publish = request.message.to_publish();
        let data: Value = serde_json::from_slice(&publish.data).unwrap();
        prop_assert_eq!(data, json!({"text": &text}));
        prop_assert_eq!(&*publish.tags, &[(tag.into(), text.into())]);
    }
}

/// Returns the names of an object's properties in the OpenAPI document, where `schema` may be a reference.
fn properties(document: &Value, schema: &Value) -> Vec<String> {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    let mut names: Vec<_> = schema["properties"].as_object().unwrap().keys().cloned().collect();
    names.sort();
    names
}

fn sorted(members: &[&str]) -> Vec<String> {
    let mut names: Vec<_> = members.iter().map(|name| (*name).to_owned()).collect();
    names.sort();
    names
}

#[test]
fn the_openapi_document_and_the_reference_have_every_method_field_and_error() {
    use super::member::{members, members_within};
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let page = include_str!("../../../../docs/reference/server-api.md");
    for method in Method::ALL {
        let name = method.name();
        let schema = document
            .pointer(&format!("/paths/~1{name}/post/requestBody/content/application~1json/schema"));
        let schema = schema.unwrap_or_else(|| panic!("{name}"));
        let members = members(*method);
        assert_eq!(properties(&document, schema), sorted(members), "{name}");
        assert!(page.contains(&format!("## `{name}`")), "{name} in the reference");
        let section = page.split(&format!("## `{name}`")).nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        for member in members {
            let is_there = section.contains(&format!("`{member}`"))
                || section.contains("[target](#target)")
                    && ["user", "client", "session", "all_users", "label_filter"].contains(member)
                || section.contains("[message](#message)")
                    && page.contains(&format!("| `{member}` |"));
            assert!(is_there, "{name}.{member} in the reference");
            let Some(within) = members_within(member) else { continue };
            let reference = schema["$ref"].as_str().unwrap().trim_start_matches('#');
            let property = document.pointer(&format!("{reference}/properties/{member}")).unwrap();
            assert_eq!(properties(&document, property), sorted(within), "{name}.{member}");
        }
    }
    let own: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
    for path in document["paths"].as_object().unwrap().keys() {
        let name = path.trim_start_matches('/');
        let is_one =
            own.contains(&name) || name == "batch" || name.split('/').next() == Some("push");
        assert!(is_one, "{path} is no method");
    }
    let codes = &document["components"]["schemas"]["Error"]["properties"]["code"]["enum"];
    let all: Vec<u64> = codes.as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    for code in [
        ApiErrorCode::Internal,
        ApiErrorCode::UnknownChannel,
        ApiErrorCode::PermissionDenied,
        ApiErrorCode::NotFound,
        ApiErrorCode::LimitExceeded,
        ApiErrorCode::BadRequest,
        ApiErrorCode::NotAvailable,
        ApiErrorCode::UnrecoverablePosition,
    ] {
        assert!(all.contains(&u64::from(code.code())), "{code:?}");
        assert!(page.contains(&format!("| {} | {} |", code.code(), code.text())), "{code:?}");
    }
}

#[test]
fn the_reference_of_the_client_protocol_has_every_code() {
    use dunlin_protocol::centrifuge::{DisconnectCode, ErrorCode, UnsubscribeCode};
    let page = include_str!("../../../../docs/reference/client-protocol.md");
    let errors = ErrorCode::ALL.iter().map(|of| (of.code(), of.text()));
    let unsubscribes = UnsubscribeCode::ALL.iter().map(|of| (of.code(), of.text()));
    for (code, text) in errors.chain(unsubscribes) {
        assert!(page.contains(&format!("| {code} | {text} |")), "{code} {text}");
    }
    for of in DisconnectCode::ALL {
        let returns = if dunlin_hub::code::reconnects(u32::from(of.code())) { "yes" } else { "no" };
        let row = format!("| {} | {} | {returns} |", of.code(), of.text());
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn null_in_any_member_of_a_body_is_as_if_it_were_absent() {
    use dunlin_protocol::json::members_without_null as without_null;

    use super::{body, request};
    let all = [
        without_null::<body::PublishBody<'_>>("{}"),
        without_null::<body::BroadcastBody<'_>>("{}"),
        without_null::<body::InboxPublishBody<'_>>("{}"),
        without_null::<body::InboxCancelBody<'_>>("{}"),
        without_null::<body::SubscribeBody<'_>>("{}"),
        without_null::<body::OverrideBody>("{}"),
        without_null::<body::BoolValue>("{}"),
        without_null::<body::UnsubscribeBody<'_>>("{}"),
        without_null::<body::DisconnectBody<'_>>("{}"),
        without_null::<body::DisconnectObject<'_>>("{}"),
        without_null::<body::RefreshBody<'_>>("{}"),
        without_null::<body::SendBody<'_>>("{}"),
        without_null::<body::HistoryBody<'_>>("{}"),
        without_null::<body::PositionBody<'_>>("{}"),
        without_null::<request::RevokeTokenRequest<'_>>("{}"),
        without_null::<request::InvalidateUserTokensRequest<'_>>("{}"),
        without_null::<request::BlockUserRequest<'_>>("{}"),
        without_null::<request::UnblockUserRequest<'_>>("{}"),
        without_null::<request::ConnectionsRequest<'_>>("{}"),
        without_null::<request::ChannelsRequest<'_>>("{}"),
    ];
    assert_eq!(all.concat(), Vec::<&str>::new());
}
