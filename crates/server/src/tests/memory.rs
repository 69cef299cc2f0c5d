//! Limits on the memory used for a peer, before and after authentication.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use dunlin_config::{Config, Secret};
use dunlin_testkit::handshake;

use super::{Cluster, TIMEOUT};
use crate::metrics::Metric;

/// Sets the smallest limits that are consistent with each other.
fn small(config: &mut Config) {
    let limits = &mut config.limits;
    limits.publication_bytes_max = 16 << 10;
    limits.body_bytes_max = 256 << 10;
    limits.answer_bytes_max = 64 << 10;
    limits.buffered_bytes_per_address_max = 1 << 20;
    limits.buffered_bytes_max = 8 << 20;
}

fn connect(to: SocketAddr, from: [u8; 4]) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.into()
}

#[test]
fn caller_without_a_key_is_answered_before_its_body_is_read() {
    let cluster = Cluster::start_with(1, |config| {
        config.api.without_key = false;
        config.api.keys.insert("backend", Secret::new("a key that nobody guesses"));
    });
    let post = |key: &str, sends: usize| {
        let mut stream = connect(cluster.address, [127, 0, 0, 1]);
        let length = 4 << 20;
        write!(
            stream,
            "POST /api/publish HTTP/1.1\r\nHost: d\r\n{key}Content-Length: {length}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(&vec![b' '; sends]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = post("", 100_000);
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("Connection: close"), "{answer}");
    let answer = post("X-API-Key: another one, long enough\r\n", 1);
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // With a valid key, the whole body is read.
    let key = "Connection: close\r\nX-API-Key: a key that nobody guesses\r\n";
    let answer = post(key, 4 << 20);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    // Outside the API, a body may only have the size of one client message.
    let mut stream = connect(cluster.address, [127, 0, 0, 1]);
    write!(stream, "POST /emulation HTTP/1.1\r\nHost: d\r\nContent-Length: 1000000\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

/// Opens a WebSocket and sends this many bytes of a frame of 60,000 bytes.
fn half_a_frame(to: SocketAddr, from: [u8; 4], bytes: usize) -> TcpStream {
    let mut stream = connect(to, from);
    stream.write_all(handshake("/connection/websocket", "").as_bytes()).unwrap();
    let mut head = [0; 1024];
    let read = stream.read(&mut head).unwrap();
    assert!(head[..read].starts_with(b"HTTP/1.1 101"));
    let mut frame = vec![0x81, 0xfe];
    frame.extend_from_slice(&60_000u16.to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.resize(8 + bytes, b' ');
    stream.write_all(&frame).unwrap();
    stream
}

#[test]
fn half_frames_are_their_senders_and_cost_him_alone() {
    let mut cluster = Cluster::start_with(1, small);
    let mut other = half_a_frame(cluster.address, [127, 0, 0, 2], 59_000);
    let held: Vec<TcpStream> =
        (0..40).map(|_| half_a_frame(cluster.address, [127, 0, 0, 1], 59_000)).collect();
    // The half frames of this address need 2.4 MB; it may use 1 MiB.
    cluster.look_after_until(|state| state.counters[0].get(Metric::BuffersEvicted) >= 20);
    let is_open = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let open = held.iter().filter(|stream| is_open(stream)).count();
    assert!((15..=20).contains(&open), "{open} have kept their places");
    // The frame from the other address is accepted when it is complete, and gets a response.
    other.write_all(&[b' '; 1000]).unwrap();
    assert!(other.read(&mut [0; 64]).unwrap() > 0);
}

#[test]
fn answers_end_at_a_bound_and_history_goes_on_with_the_next_page() {
    let cluster = Cluster::start_with(1, small);
    let data = "x".repeat(15_000);
    for _ in 0..20 {
        let body = format!("{{\"channel\":\"news\",\"data\":\"{data}\"}}");
        assert!(cluster.post("/api/publish", &body).contains("offset"));
    }
    let mut seen = Vec::new();
    let mut since = String::new();
    while seen.len() < 20 {
        let body = format!("{{\"channel\":\"news\",\"limit\":100{since}}}");
        let answer = cluster.post("/api/history", &body);
        assert!(answer.len() < 96 << 10, "{} bytes", answer.len());
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let page = answer["result"]["publications"].as_array().unwrap();
        assert!(!page.is_empty(), "a page has one at least");
        seen.extend(page.iter().map(|of| of["offset"].as_u64().unwrap()));
        let epoch = answer["result"]["epoch"].as_str().unwrap();
        since = format!(",\"since\":{{\"offset\":{},\"epoch\":\"{epoch}\"}}", seen.last().unwrap());
    }
    assert!(seen.into_iter().eq(1..=20));

    let command = "{\"history\":{\"channel\":\"news\",\"limit\":100}}";
    let commands = vec![command; 500].join(",");
    let answer = cluster.post("/api/batch", &format!("{{\"commands\":[{commands}]}}"));
    assert!(answer.len() <= 64 << 10, "{} bytes", answer.len());
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let replies = answer["replies"].as_array().unwrap();
    assert_eq!(replies.len(), 500);
    assert_eq!(replies[499]["error"]["code"], 106, "{}", replies[499]);
}

/// The bound was one for results alone.
#[test]
fn batch_of_refused_commands_is_answered_within_the_bound() {
    let cluster = Cluster::start_with(1, small);
    for command in ["{}", "{\"x\":{}}", "{\"publish\":{}}", "{\"history\":{\"channel\":\"\"}}"] {
        for count in [800, 250_000 / (command.len() + 1)] {
            let commands = vec![command; count].join(",");
            let answer = cluster.post("/api/batch", &format!("{{\"commands\":[{commands}]}}"));
            assert!(answer.len() <= 64 << 10, "{command}: {} bytes", answer.len());
            if count == 800 {
                let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
                assert_eq!(answer["replies"].as_array().map(Vec::len), Some(800), "{command}");
            } else {
                assert!(answer.contains("limits.answer_bytes_max"), "{command}: {answer}");
            }
        }
        let lines = format!("{{\"method\":\"{}\"}}\n", "x".repeat(40)).repeat(4_000);
        let answer = cluster.post("/api", &lines);
        assert!(answer.contains("limits.answer_bytes_max"), "{answer}");
    }
    let channels = vec!["\"\""; 50_000].join(",");
    let broadcast = format!("{{\"channels\":[{channels}],\"data\":1}}");
    let answer = cluster.post("/api/broadcast", &broadcast);
    assert!(answer.len() <= 64 << 10, "{} bytes", answer.len());
}

#[test]
fn keys_and_tags_have_a_length() {
    let cluster = Cluster::start_with(1, |_| {});
    let publish = |more: String| {
        cluster.post("/api/publish", &format!("{{\"channel\":\"news\",\"data\":1,{more}}}"))
    };
    let key = |bytes: usize| format!("\"idempotency_key\":\"{}\"", "k".repeat(bytes));
    assert!(publish(key(255)).contains("\"offset\""));
    assert!(publish(key(256)).contains("\"code\":106"));
    let tags = |count: usize| {
        let tags: Vec<String> = (0..count).map(|at| format!("\"{at}\":\"\"")).collect();
        format!("\"tags\":{{{}}}", tags.join(","))
    };
    assert!(publish(tags(200)).contains("\"offset\""));
    assert!(publish(tags(1000)).contains("\"code\":106"));
    assert!(
        publish(format!("\"version\":1,\"version_epoch\":\"{}\"", "e".repeat(5000)))
            .contains("106")
    );
}

#[test]
fn a_poll_that_missed_much_is_given_a_page_of_it() {
    let cluster = Cluster::start_with(1, |config| {
        small(config);
        config.channel.without_namespace.history_size = 1000;
    });
    let data = "x".repeat(15_000);
    for _ in 0..20 {
        let body = format!("{{\"channel\":\"news\",\"data\":\"{data}\"}}");
        assert!(cluster.post("/api/publish", &body).contains("offset"));
    }
    let mut cursor = "0".to_owned();
    let mut items = 0;
    while items < 20 {
        let mut stream = connect(cluster.address, [127, 0, 0, 1]);
        let path = format!("/connection/poll?channel=news&timeout=0&cursor={cursor}");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.len() < 96 << 10, "{} bytes", answer.len());
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let body: serde_json::Value =
            serde_json::from_str(body).unwrap_or_else(|_| panic!("{body}"));
        cursor = body["cursor"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
        let page = body["publications"].as_array();
        let page = page.unwrap_or_else(|| panic!("{body}")).len();
        assert!(page > 0, "{body}");
        items += page;
    }
    assert_eq!(items, 20);
}
