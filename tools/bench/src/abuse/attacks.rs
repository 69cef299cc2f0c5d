//! The attacks, each a function that runs until it is done or its time has elapsed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use super::TALK;
use super::backend::{Service, token_of};
use super::client::{
    AttackPlan, ELSEWHERE, answer_to, connect, connect_as, discard, frame, post, push, websocket,
    websocket_from,
};
use crate::protocol::websocket_frame;
use dunlin_load::{Context, Error};

/// An attack.
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Lines of `[limits]` in place of those with the same keys.
    pub(super) limits: &'static str,
    /// What another client does beside it, near its end, and must be able to do.
    pub(super) other: fn(&AttackPlan) -> Result<(), Error>,
    /// Runs the attack. Returns how much the server accepted.
    pub(super) run: fn(&AttackPlan) -> u64,
    /// What it takes from others beside their messages, if it is that.
    pub(super) takes: Option<Service>,
    /// A metric, and the least of it near the attack's end, in every build that can be attacked: with less, the attack was none and
    /// shows nothing.
    pub(super) effect: Option<(&'static str, u64)>,
}

macro_rules! attacks {
    ($($name:literal, $run:ident, $what:literal $(, $field:ident: $value:expr)*;)+) => {
        pub(super) const ATTACKS: &[Attack] =
            &[$(Attack { name: $name, what: $what, run: $run, $($field: $value,)* ..NOTHING }),+];
    };
}

const NOTHING: Attack = Attack {
    name: "",
    what: "",
    limits: "",
    other: |_| Ok(()),
    run: |_| 0,
    takes: None,
    effect: None,
};

attacks! {
    "frame", one_frame, "45,000 publishes in one frame, to everybody's channel";
    "publishes", publishes, "publishes over one WebSocket as fast as it takes them, to everybody's channel";
    "joins", joins, "30,000 times subscribed to and left everybody's channel, which tells who joins";
    "names", names, "names subscribed to and left, each the channel of a history";
    "history", history, "one publisher fills a history that is larger than all may be";
    "histories", histories, "one publisher fills a thousand histories";
    "large-messages", large_messages, "clients publish messages of 50 kB to ever new names, each a history",
        limits: "history_bytes_max = 8_388_608", effect: Some(("dunlin_history_bytes", 4 << 20));
    "filters", filters, "clients with subscriptions to large filters", other: subscribes_with_filters,
        effect: Some(("dunlin_filter_bytes", 1 << 20));
    "refusals", refusals, "clients beyond their quota of channels, refused again and again",
        limits: "channels_per_user_max = 4_000", effect: Some(("dunlin_client_command_errors_total", 1_000));
    "refused-batch", refused_batch, "batches of 4 MB of commands that are refused",
        effect: Some(("dunlin_api_errors_total", 1));
    "keys", keys, "idempotency keys of 3 MB";
    "bodies", bodies, "bodies of 4 MB without an API key, never finished";
    "frames", half_frames, "halves of WebSocket messages";
    "heads", half_heads, "request heads that come a byte at a time";
    "silence", silence, "4,096 connections to each port that say nothing";
    "polls", polls, "long-polls of a large history whose answers nobody reads";
    "batch", batch, "one batch of calls for a large history";
    "reads", reads, "clients that subscribe and never read";
    "subscriptions", subscriptions, "thousands of subscriptions and of oversized names";
    "emulation", emulation, "commands of an HTTP stream by /emulation";
    "garbage", garbage, "everything that is no HTTP and no WebSocket";
    "guesses", guesses, "API keys guessed";
    "meta", large_meta, "publishes that an expression over 10 kB of meta decides",
        effect: Some(("dunlin_publications_received_total", 1_000));
    "calls", calls, "50 connections of a user call a slow backend", takes: Some(Service::Calls),
        effect: Some(("dunlin_proxy_calls_total", 200));
    "cursors", cursors, "a user acknowledges in ever new channels", other: acknowledges,
        effect: Some(("dunlin_cursor_bytes", 30_000));
    "events", events, "a user subscribes and unsubscribes beside a slow webhook", takes: Some(Service::Events),
        effect: Some(("dunlin_webhook_events_emitted_total", 2_000));
}

/// Returns a client's commands, one per line, each with its own id.
fn commands(count: usize, mut command: impl FnMut(usize) -> String) -> String {
    let mut text = String::new();
    for number in 0..count {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{{\"id\":{},{}}}", number + 2, command(number));
    }
    text.pop();
    text
}

fn publish(channel: &str, data: &str) -> String {
    format!("\"publish\":{{\"channel\":\"{channel}\",\"data\":{data}}}")
}

fn there_and_back(number: usize, channel: &str) -> String {
    let verb = if number.is_multiple_of(2) { "subscribe" } else { "unsubscribe" };
    format!("\"{verb}\":{{\"channel\":\"{channel}\"}}")
}

/// Sends frames until the time has elapsed. Returns how many were accepted, times `each`.
fn frames(
    plan: &AttackPlan,
    count: usize,
    each: u64,
    mut text: impl FnMut(usize) -> String,
) -> u64 {
    let Ok(stream) = websocket(plan).map(discard) else { return 0 };
    let mut taken = 0;
    for number in 0..count {
        let mut bytes = Vec::new();
        frame(&text(number), &mut bytes);
        if plan.is_over() || !push(plan, &stream, &bytes) {
            break;
        }
        taken += each;
    }
    plan.hold();
    taken
}

fn one_frame(plan: &AttackPlan) -> u64 {
    let count = plan.scaled(45_000);
    frames(plan, 1, count as u64, |_| commands(count, |_| publish(TALK, "{\"n\":1}")))
}

fn publishes(plan: &AttackPlan) -> u64 {
    let text = commands(500, |_| publish(TALK, "1"));
    frames(plan, plan.scaled(780_000) / 500, 500, |_| text.clone())
}

fn joins(plan: &AttackPlan) -> u64 {
    let text = commands(500, |number| there_and_back(number, TALK));
    frames(plan, plan.scaled(60_000) / 500, 250, |_| text.clone())
}

fn names(plan: &AttackPlan) -> u64 {
    frames(plan, plan.scaled(1_000_000) / 50, 25, |at| {
        commands(50, |number| there_and_back(number, &format!("other:{at}-{}", number / 2)))
    })
}

fn by_api(
    plan: &AttackPlan,
    count: usize,
    mut body: impl FnMut(usize) -> (&'static str, String),
) -> u64 {
    let Ok(stream) = plan.connect().map(discard) else { return 0 };
    let mut taken = 0;
    for number in 0..count {
        let (path, body) = body(number);
        if plan.is_over() || !push(plan, &stream, &post(plan, path, &body)) {
            break;
        }
        taken += 1;
    }
    plan.hold();
    taken
}

fn history(plan: &AttackPlan) -> u64 {
    let data = "x".repeat(400 << 10);
    by_api(plan, plan.scaled(1_000), |_| {
        ("/api/publish", format!("{{\"channel\":\"kept:flood\",\"data\":\"{data}\"}}"))
    })
}

fn histories(plan: &AttackPlan) -> u64 {
    let data = "x".repeat(40 << 10);
    by_api(plan, plan.scaled(8_000), |number| {
        let channel = number % 1_000;
        ("/api/publish", format!("{{\"channel\":\"other:{channel}\",\"data\":\"{data}\"}}"))
    })
}

/// A client for each budget of messages, and the next name for every message.
fn large_messages(plan: &AttackPlan) -> u64 {
    let data = "x".repeat(50_000);
    by_clients(plan, 12, plan.scaled(4_800), |number| {
        commands(1, |_| publish(&format!("kept:large{number}"), &format!("\"{data}\"")))
    })
}

/// Sends frames of several clients with another address than the ordinary ones, until the time has elapsed. Returns how many
/// were accepted.
fn by_clients(
    plan: &AttackPlan,
    clients: usize,
    count: usize,
    mut text: impl FnMut(usize) -> String,
) -> u64 {
    let open = |_| websocket_from(plan, ELSEWHERE).map(discard).ok();
    let clients: Vec<_> = (0..clients).filter_map(open).collect();
    let mut taken = 0;
    for (number, stream) in (0..count).zip(clients.iter().cycle()) {
        let mut bytes = Vec::new();
        frame(&text(number), &mut bytes);
        if plan.is_over() {
            break;
        }
        taken += u64::from(push(plan, stream, &bytes));
    }
    plan.hold();
    taken
}

/// A subscription whose filter is as large as this.
fn filtered(channel: &str, filler: &str) -> String {
    format!(
        "\"subscribe\":{{\"channel\":\"{channel}\",\"tf\":{{\"key\":\"k\",\"cmp\":\"eq\",\"val\":\"{channel}{filler}\"}}}}"
    )
}

fn filters(plan: &AttackPlan) -> u64 {
    let filler = "x".repeat(15_000);
    let (clients, each) = (plan.scaled(100), 120);
    by_clients(plan, clients, clients * each, |number| {
        commands(1, |_| filtered(&format!("room:filter{number}"), &filler))
    })
}

fn subscribes_with_filters(plan: &AttackPlan) -> Result<(), Error> {
    for number in 0..12 {
        let mut stream = websocket(plan).context("another client cannot connect")?;
        let mut bytes = Vec::new();
        frame(&commands(1, |_| filtered(&format!("room:mine{number}"), "")), &mut bytes);
        stream.write_all(&bytes).context("another client cannot subscribe")?;
        let answer = answer_to(&mut stream, 2).context("another client is not answered")?;
        if answer.contains("\"error\"") {
            return Err(Error::new(format!("another client is refused its filter: {answer}")));
        }
    }
    Ok(())
}

fn refusals(plan: &AttackPlan) -> u64 {
    let clients = plan.scaled(50);
    let each = 200;
    by_clients(plan, clients, clients * 100, |number| {
        commands(each, |at| publish(&format!("kept:quota{number}-{at}"), "1"))
    }) * each as u64
}

fn refused_batch(plan: &AttackPlan) -> u64 {
    let commands = vec!["{\"x\":{}}"; plan.scaled(400_000)].join(",");
    let body = format!("{{\"commands\":[{commands}]}}");
    by_api(plan, 40, |_| ("/api/batch", body.clone()))
}

fn keys(plan: &AttackPlan) -> u64 {
    let filler = "x".repeat(3 << 20);
    by_api(plan, plan.scaled(300), |number| {
        let key = format!("{number}{filler}");
        (
            "/api/publish",
            format!("{{\"channel\":\"kept:k\",\"data\":1,\"idempotency_key\":\"{key}\"}}"),
        )
    })
}

/// Opens many connections, sends the same bytes on each, and holds them. Returns how many accepted all of it.
fn many(
    plan: &AttackPlan,
    count: usize,
    open: impl Fn() -> std::io::Result<TcpStream>,
    bytes: &[u8],
) -> u64 {
    let mut held = Vec::new();
    let mut taken = 0;
    for _ in 0..count {
        if plan.is_over() {
            break;
        }
        let Ok(stream) = open() else { continue };
        taken += u64::from(push(plan, &stream, bytes));
        held.push(stream);
    }
    plan.hold();
    taken
}

fn bodies(plan: &AttackPlan) -> u64 {
    let mut bytes = format!(
        "POST /api/publish HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n",
        plan.client
    )
    .into_bytes();
    bytes.resize(bytes.len() + 3_900_000, b' ');
    many(plan, plan.scaled(320), || plan.connect(), &bytes)
}

fn half_frames(plan: &AttackPlan) -> u64 {
    let mut bytes = Vec::new();
    websocket_frame(0x1, &vec![b' '; 120_000], &mut bytes);
    bytes.truncate(60_000);
    many(plan, plan.scaled(8_000), || websocket(plan), &bytes)
}

fn half_heads(plan: &AttackPlan) -> u64 {
    let opened: Vec<_> = (0..plan.scaled(2_000)).filter_map(|_| plan.connect().ok()).collect();
    let mut head =
        b"GET /connection/websocket HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x'));
    let mut taken = 0;
    while !plan.is_over() {
        let Some(byte) = head.next() else { break };
        for stream in &opened {
            taken += u64::from(push(plan, stream, &[*byte]));
        }
    }
    taken
}

fn silence(plan: &AttackPlan) -> u64 {
    let open = |address: SocketAddr| {
        let count = plan.scaled(4_096);
        (0..count).filter_map(|_| connect(address).ok()).collect::<Vec<_>>()
    };
    let held = [open(plan.admin), open(plan.client)];
    plan.hold();
    held.iter().map(|held| held.len() as u64).sum()
}

/// Fills a history with 8 MB.
fn large_history(plan: &AttackPlan) {
    let data = "x".repeat(80 << 10);
    let body = format!("{{\"channel\":\"kept:large\",\"data\":\"{data}\"}}");
    for _ in 0..100 {
        // If one fails, the attack is smaller.
        let _ = super::request(plan, "/api/publish", &body);
    }
}

fn polls(plan: &AttackPlan) -> u64 {
    large_history(plan);
    let ask = format!(
        "GET /connection/poll?channel=kept:large&cursor=0 HTTP/1.1\r\nHost: {}\r\n\r\n",
        plan.client
    );
    many(plan, plan.scaled(320), || plan.connect(), ask.as_bytes())
}

fn batch(plan: &AttackPlan) -> u64 {
    large_history(plan);
    let count = plan.scaled(400);
    let ask = "{\"history\":{\"channel\":\"kept:large\",\"limit\":1000}}";
    let body = format!("{{\"commands\":[{}]}}", vec![ask; count].join(","));
    let bytes = post(plan, "/api/batch", &body);
    many(plan, 1, || plan.connect(), &bytes) * count as u64
}

fn reads(plan: &AttackPlan) -> u64 {
    let mut ask = Vec::new();
    frame(&commands(1, |_| there_and_back(0, "room:deaf")), &mut ask);
    let deaf = (0..plan.scaled(500)).filter_map(|_| {
        let stream = websocket(plan).ok()?;
        // The client's receive buffer would count against the TCP memory that it shares with the server here.
        let small = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10);
        small.is_ok().then_some(stream)
    });
    let deaf: Vec<_> = deaf.collect();
    let deaf: Vec<_> = deaf.into_iter().filter(|stream| push(plan, stream, &ask)).collect();
    let data = "x".repeat(100 << 10);
    let body = format!("{{\"channel\":\"room:deaf\",\"data\":\"{data}\"}}");
    by_api(plan, plan.scaled(400), |_| ("/api/publish", body.clone())).min(deaf.len() as u64)
}

fn subscriptions(plan: &AttackPlan) -> u64 {
    let long = "x".repeat(300);
    frames(plan, plan.scaled(400_000) / 100, 100, |at| {
        commands(100, |number| {
            let name = if number % 2 == 0 { &*long } else { "n" };
            format!("\"subscribe\":{{\"channel\":\"room:{name}{at}-{number}\"}}")
        })
    })
}

fn emulation(plan: &AttackPlan) -> u64 {
    use std::io::{Read, Write};
    let open = || -> std::io::Result<(Arc<TcpStream>, String)> {
        let mut stream = plan.connect()?;
        let body = "{\"connect\":{},\"id\":1}";
        stream.write_all(&post(plan, "/connection/http_stream", body))?;
        let (mut answer, mut piece) = (String::new(), [0; 4096]);
        let session = loop {
            let read = stream.read(&mut piece)?;
            answer.push_str(&String::from_utf8_lossy(&piece[..read]));
            let found =
                answer.split_once("\"session\":\"").and_then(|(_, rest)| rest.split_once('"'));
            if let Some((session, _)) = found {
                break session.to_owned();
            }
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        };
        Ok((discard(stream), session))
    };
    let Ok((_stream, session)) = open() else { return 0 };
    let said = commands(500, |_| publish(TALK, "1"))
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    let body = format!("{{\"session\":\"{session}\",\"node\":\"\",\"data\":\"{said}\"}}");
    500 * by_api(plan, plan.scaled(780_000) / 500, |_| ("/emulation", body.clone()))
}

fn garbage(plan: &AttackPlan) -> u64 {
    let get = |rest: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{rest}").into_bytes();
    let mut pieces = vec![
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        vec![0; 1_000],
        get(&format!("X: {}\r\n\r\n", "x".repeat(100_000))),
        get(&"X: 1\r\n".repeat(5_000)),
        get("Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        get("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        get("Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
        get("Content-Length: 99999999999\r\n\r\n"),
        b"GET / HTTP/1.1\nHost: a\n\n".to_vec(),
    ];
    let mut framed = |bytes: &[u8]| {
        let opening =
            get("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
        let opening = String::from_utf8_lossy(&opening).replacen("/ ", "/connection/websocket ", 1);
        pieces.push([opening.as_bytes(), bytes].concat());
    };
    framed(b"\x81\x05hello");
    framed(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
    framed(b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00");
    framed(b"\x81\x83\x00\x00\x00\x00\xff\xfe\xfd");
    framed(b"\x81\x82\x00\x00\x00\x00{}\x81\x81\x00\x00\x00\x00[");
    let mut taken = 0;
    for number in 0..plan.scaled(20_000) {
        if plan.is_over() {
            break;
        }
        let Ok(stream) = plan.connect() else { continue };
        taken += u64::from(push(plan, &stream, &pieces[number % pieces.len()]));
    }
    taken
}

fn guesses(plan: &AttackPlan) -> u64 {
    let wrong = AttackPlan { key: "a-key-of-somebody-else", ..*plan };
    by_api(&wrong, plan.scaled(50_000), |_| ("/api/info", "{}".to_owned()))
}

/// Sends frames as this user until the time has elapsed. Returns how many were accepted, times `each`.
fn frames_of(plan: &AttackPlan, token: &str, each: u64, text: &str) -> u64 {
    let Ok((stream, _)) = connect_as(plan, token) else { return 0 };
    let stream = discard(stream);
    let mut bytes = Vec::new();
    frame(text, &mut bytes);
    let mut taken = 0;
    while !plan.is_over() && push(plan, &stream, &bytes) {
        taken += each;
    }
    taken
}

fn large_meta(plan: &AttackPlan) -> u64 {
    let roles: Vec<String> = (0..1_000).map(|number| format!("role{number}")).collect();
    let token = token_of("attacker", &serde_json::json!({ "roles": roles }));
    frames_of(plan, &token, 500, &commands(500, |_| publish("ruled:a", "1")))
}

fn calls(plan: &AttackPlan) -> u64 {
    let token = token_of("attacker", &serde_json::json!({}));
    let text = commands(100, |_| "\"rpc\":{\"method\":\"a\",\"data\":1}".to_owned());
    std::thread::scope(|scope| {
        let run = || frames_of(plan, &token, 100, &text);
        let all: Vec<_> = (0..50).map(|_| scope.spawn(run)).collect();
        all.into_iter().map(|one| one.join().unwrap_or(0)).sum()
    })
}

fn events(plan: &AttackPlan) -> u64 {
    let token = token_of("attacker", &serde_json::json!({}));
    frames_of(plan, &token, 500, &commands(500, |at| there_and_back(at, "loop:a")))
}

/// Subscribes to channels, publishes to each, acknowledges, and leaves them. Returns the answers to the acknowledgements.
fn acknowledged(stream: &mut TcpStream, name: &str, count: usize) -> std::io::Result<String> {
    let mut answers = String::new();
    for step in 0..4 {
        let text = commands(count, |at| match step {
            0 => format!("\"subscribe\":{{\"channel\":\"acked:{name}{at}\"}}"),
            1 => publish(&format!("acked:{name}{at}"), "1"),
            2 => format!(
                "\"rpc\":{{\"method\":\"dunlin.ack\",\"data\":{{\"channel\":\"acked:{name}{at}\",\"offset\":1}}}}"
            ),
            _ => format!("\"unsubscribe\":{{\"channel\":\"acked:{name}{at}\"}}"),
        });
        let mut bytes = Vec::new();
        frame(&text, &mut bytes);
        stream.write_all(&bytes)?;
        let answer = answer_to(stream, count as u32 + 1)?;
        if step == 2 {
            answers = answer;
        }
    }
    Ok(answers)
}

fn cursors(plan: &AttackPlan) -> u64 {
    let token = token_of("attacker", &serde_json::json!({}));
    let Ok((mut stream, _)) = connect_as(plan, &token) else { return 0 };
    let mut taken = 0;
    for number in 0..plan.scaled(4_000) {
        if plan.is_over() || acknowledged(&mut stream, &format!("{number}-"), 50).is_err() {
            break;
        }
        taken += 50;
    }
    plan.hold();
    taken
}

fn acknowledges(plan: &AttackPlan) -> Result<(), Error> {
    for user in 0..20 {
        let token = token_of(&format!("other{user}"), &serde_json::json!({}));
        let (mut stream, _) = connect_as(plan, &token).context("another client cannot connect")?;
        let answer = acknowledged(&mut stream, &format!("of{user}-"), 1);
        let answer = answer.context("another client is not answered")?;
        if !answer.contains("\"unread\":0") {
            return Err(Error::new(format!("another client cannot acknowledge: {answer}")));
        }
    }
    Ok(())
}
