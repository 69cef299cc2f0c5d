//! Instructions of the hot structures, counted by Cachegrind: the same on a busy machine and on a quiet one.
//!
//! ```text
//! cargo bench -p dunlin-bench --bench instructions            # all; one JSON object on the last line
//! ```
//!
//! Each structure runs under Valgrind twice, once for N and once for 2N operations. The difference is what N operations
//! take; setting up, starting and the allocator's first steps cancel out.

use std::hint::black_box;
use std::io::IoSlice;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use dunlin_hub::{
    ChannelOptions, ChannelRef, Hub, HubConfig, NewPublication, NewSession, Now, SubscribeOptions,
};
use dunlin_protocol::centrifuge::Command as ClientCommand;
use dunlin_protocol::{Encoding, FrameEncoder};
use dunlin_wire::http1::{self, HeaderSlots, decode_request};
use dunlin_wire::websocket::{Decoder, Event, Limits, Opcode, Role, encode_frame_masked};

struct Kernel {
    /// What one operation is.
    name: &'static str,
    run: fn(operations: u64) -> u64,
    /// Operations of the shorter run.
    operations: u64,
    /// Things an operation does, of which one is reported.
    each: u64,
}

const SUBSCRIBERS: u64 = 1_000;
const BURST: u64 = 100;

const KERNELS: [Kernel; 8] = [
    Kernel {
        name: "WebSocket: a masked 109-byte text message decoded",
        run: websocket_message,
        operations: 10_000,
        each: 1,
    },
    Kernel {
        name: "WebSocket: a client's pong (`{}`) decoded",
        run: websocket_pong,
        operations: 10_000,
        each: 1,
    },
    Kernel {
        name: "HTTP/1.1: the head of a publish decoded",
        run: http_head,
        operations: 10_000,
        each: 1,
    },
    Kernel {
        name: "HTTP/1.1: the head of a WebSocket handshake decoded",
        run: handshake_head,
        operations: 10_000,
        each: 1,
    },
    Kernel {
        name: "Centrifugal protocol: a subscribe command parsed",
        run: subscribe_command,
        operations: 10_000,
        each: 1,
    },
    Kernel {
        name: "hub: a publish to 1,000 sessions and its flush, per session",
        run: fanout,
        operations: 20,
        each: SUBSCRIBERS,
    },
    Kernel {
        name: "hub: 100 publishes to 1,000 sessions and one flush, per message and session",
        run: burst,
        operations: 2,
        each: SUBSCRIBERS * BURST,
    },
    Kernel {
        name: "hub: a session opened, subscribed and closed",
        run: sessions,
        operations: 2_000,
        each: 1,
    },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    // `cargo test --benches` only wants to know that they work.
    if arguments.peek().is_none() {
        for kernel in &KERNELS {
            black_box((kernel.run)(1));
        }
        return ExitCode::SUCCESS;
    }
    if arguments.next().as_deref() == Some("kernel") {
        let (Some(name), Some(operations)) = (arguments.next(), arguments.next()) else {
            return ExitCode::from(2);
        };
        let (Some(kernel), Ok(operations)) =
            (KERNELS.iter().find(|kernel| kernel.name == name), operations.parse())
        else {
            return ExitCode::from(2);
        };
        black_box((kernel.run)(operations));
        return ExitCode::SUCCESS;
    }
    let mut kernels = Vec::new();
    for kernel in &KERNELS {
        let counted = instructions(kernel, kernel.operations)
            .and_then(|once| Ok((once, instructions(kernel, 2 * kernel.operations)?)));
        let (once, twice) = match counted {
            Ok(counted) => counted,
            Err(why) => {
                eprintln!("{}: {why}", kernel.name);
                return ExitCode::FAILURE;
            }
        };
        let each = (twice - once) as f64 / (kernel.operations * kernel.each) as f64;
        eprintln!("{each:>10.1}  {}", kernel.name);
        kernels.push(serde_json::json!({"name": kernel.name, "instructions": each}));
    }
    let mut host = serde_json::json!(dunlin_load::host::Host::now());
    host["command"] = "cargo bench -p dunlin-bench --bench instructions".into();
    println!("{}", serde_json::json!({"host": host, "kernels": kernels}));
    ExitCode::SUCCESS
}

/// Instructions of a whole run of this program under Cachegrind.
fn instructions(kernel: &Kernel, operations: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(program)
        .args(["kernel", kernel.name, &operations.to_string()])
        .output()
        .map_err(|error| format!("cannot start valgrind ({error}): apt-get install valgrind"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let counted = text
        .lines()
        .find_map(|line| line.split_once("I   refs:"))
        .and_then(|(_, number)| number.trim().replace(',', "").parse().ok());
    counted.filter(|_| output.status.success()).ok_or_else(|| text.into_owned())
}

fn masked(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_frame_masked(&mut frame, Opcode::Text, payload, [0x37, 0xfa, 0x21, 0x3d]);
    frame
}

fn decode(payload: &[u8], operations: u64) -> u64 {
    let decoder = Decoder { role: Role::Server, limits: Limits::default(), deflate: false };
    let frame = masked(payload);
    let mut received = frame.clone();
    let mut bytes = 0;
    for _ in 0..operations {
        // Unmasked in place, so each time anew from the wire.
        received.copy_from_slice(&frame);
        if let Ok(decoded) = decoder.decode(None, black_box(&mut received))
            && let Event::Message(message) = decoded.event
        {
            bytes += message.payload.len() as u64;
        }
    }
    assert_eq!(bytes, operations * payload.len() as u64, "every message is decoded");
    bytes
}

fn websocket_message(operations: u64) -> u64 {
    decode(&[b'y'; 109], operations)
}

fn websocket_pong(operations: u64) -> u64 {
    decode(b"{}", operations)
}

fn heads(head: &[u8], operations: u64) -> u64 {
    let limits = http1::Limits::default();
    let mut complete = 0;
    for _ in 0..operations {
        let mut slots = HeaderSlots::new();
        let decoded = decode_request(black_box(head), &mut slots, &limits);
        complete += u64::from(matches!(decoded, Ok(http1::Decoded::Head { .. })));
    }
    assert_eq!(complete, operations, "every head is complete");
    complete
}

fn http_head(operations: u64) -> u64 {
    let head =
        b"POST /api/publish HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nContent-Type: application/json\r\n\
        X-API-Key: secret\r\nContent-Length: 64\r\n\r\n";
    heads(head, operations)
}

fn handshake_head(operations: u64) -> u64 {
    let head = b"GET /connection/websocket HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nOrigin: http://127.0.0.1:8000\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n";
    heads(head, operations)
}

fn subscribe_command(operations: u64) -> u64 {
    let text = br#"{"id":2,"subscribe":{"channel":"chat:index","recover":true,"offset":17,"epoch":"abcd"}}"#;
    let parsed =
        (0..operations).filter(|_| ClientCommand::parse(black_box(&text[..])).is_ok()).count();
    assert_eq!(parsed as u64, operations, "every command is parsed");
    parsed as u64
}

const NOW: Now = Now { ms: 1_000, unix_ms: 1_700_000_000_000 };

fn hub() -> (Hub, Arc<ChannelOptions>) {
    let options =
        ChannelOptions { history_size: 100, history_ttl_ms: 300_000, ..ChannelOptions::default() };
    let hub = Hub::new(HubConfig::default(), Box::new(FrameEncoder::new(None)));
    (hub, Arc::new(options))
}

fn subscriber(hub: &mut Hub, options: &Arc<ChannelOptions>, tag: u64) -> dunlin_hub::SessionId {
    let encoding = dunlin_hub::EncodingId(Encoding::WsJson as u8);
    let new = NewSession { tag, encoding, ..NewSession::default() };
    let Ok(session) = hub.open_session(NOW, new) else { unreachable!("a hub with room") };
    hub.handle_subscribe(
        NOW,
        tag,
        session,
        ChannelRef::new("c", options),
        SubscribeOptions::default(),
    );
    while hub.poll_event().is_some() {}
    session
}

fn publish_and_flush(publishes_at_once: u64, operations: u64) -> u64 {
    let (mut hub, options) = hub();
    for tag in 0..SUBSCRIBERS {
        subscriber(&mut hub, &options, tag);
    }
    let mut bytes = 0;
    for _ in 0..operations {
        for _ in 0..publishes_at_once {
            let data = br#"{"seq":"0000000001","pad":"yyyyyyyyyyyyyyyyyyyyyyyyyyyy"}"#;
            let publish = NewPublication { data: data[..].into(), ..NewPublication::default() };
            hub.handle_publish(NOW, 0, ChannelRef::new("c", &options), publish);
            while hub.poll_event().is_some() {}
        }
        while let Some(flush) = hub.poll_flush() {
            let mut slices = [IoSlice::new(&[]); 16];
            let filled = hub.outbox(flush.session, &mut slices);
            let sent: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
            hub.advance(flush.session, black_box(sent));
            bytes += sent as u64;
        }
    }
    assert!(bytes > operations * publishes_at_once * SUBSCRIBERS * 100, "everybody got everything");
    bytes
}

fn fanout(operations: u64) -> u64 {
    publish_and_flush(1, operations)
}

fn burst(operations: u64) -> u64 {
    publish_and_flush(BURST, operations)
}

fn sessions(operations: u64) -> u64 {
    let (mut hub, options) = hub();
    for tag in 0..operations {
        let session = subscriber(&mut hub, &options, tag);
        hub.close_session(NOW, black_box(session));
        while hub.poll_event().is_some() {}
    }
    operations
}
