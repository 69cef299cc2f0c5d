//! Tests of two tenants on every transport: a client of one never reads anything of the other.

use std::io::{Read, Write};
use std::net::TcpStream;

use dunlin_testkit::{frame, handshake};
use serde_json::json;

use super::tenant_tests::{TENANTS, api, tenant, token};
use super::testkit::{TIMEOUT, TestServer, development};

/// The transport and encoding of a client.
#[derive(Clone, Copy, Debug)]
enum Transport {
    WebSocket { protobuf: bool },
    Uni(&'static str),
    UniWebSocket,
    Sse,
    HttpStream { protobuf: bool },
}

const TRANSPORTS: [Transport; 8] = [
    Transport::WebSocket { protobuf: false },
    Transport::WebSocket { protobuf: true },
    Transport::UniWebSocket,
    Transport::Uni("uni_sse"),
    Transport::Uni("uni_http_stream"),
    Transport::Sse,
    Transport::HttpStream { protobuf: false },
    Transport::HttpStream { protobuf: true },
];

/// A client with all bytes that it has read.
struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    /// Connects and, on bidirectional transports, sends further commands.
    fn open(server: &TestServer, way: Transport, token: &str) -> Client {
        let mut stream = TcpStream::connect(server.clients).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let connect = json!({ "token": token });
        let command = json!({"id": 1, "connect": connect}).to_string();
        let asks = [
            json!({"id": 2, "presence": {"channel": "room"}}),
            json!({"id": 3, "history": {"channel": "room", "limit": 10}}),
        ];
        let get = |path: &str, said: &str| {
            let said: String = said.bytes().map(|byte| format!("%{byte:02X}")).collect();
            format!("GET /connection/{path}?cf_connect={said} HTTP/1.1\r\nHost: d\r\n\r\n")
                .into_bytes()
        };
        let post = |path: &str, kind: &str, body: &[u8]| {
            let head = format!(
                "POST /connection/{path} HTTP/1.1\r\nHost: d\r\n{kind}Content-Length: {}\r\n\r\n",
                body.len()
            );
            [head.as_bytes(), body].concat()
        };
        let bytes = match way {
            Transport::WebSocket { protobuf: false } => {
                let lines = [&command, &asks[0].to_string(), &asks[1].to_string()];
                websocket("websocket", &lines.map(|of| frame(0x81, of.as_bytes())).concat())
            }
            Transport::WebSocket { protobuf: true } => {
                websocket("websocket?cf_protocol=protobuf", &frame(0x82, &protobuf(token)))
            }
            Transport::UniWebSocket => {
                websocket("uni_websocket", &frame(0x81, connect.to_string().as_bytes()))
            }
            Transport::Uni("uni_sse") => get("uni_sse", &connect.to_string()),
            Transport::Uni(path) => post(path, "", connect.to_string().as_bytes()),
            Transport::Sse => get("sse", &command),
            Transport::HttpStream { protobuf: false } => {
                let lines = [command, asks[0].to_string(), asks[1].to_string()].join("\n");
                post("http_stream", "", lines.as_bytes())
            }
            Transport::HttpStream { protobuf: true } => {
                let kind = "Content-Type: application/octet-stream\r\n";
                post("http_stream", kind, &protobuf(token))
            }
        };
        stream.write_all(&bytes).unwrap();
        Client { stream, read: Vec::new() }
    }

    fn read_until(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        while !self.has_read(text) {
            let taken = self.stream.read(&mut bytes).unwrap_or_else(|error| {
                panic!("{error}: no {text:?} in {:?}", String::from_utf8_lossy(&self.read))
            });
            assert!(taken > 0, "ended: {:?}", String::from_utf8_lossy(&self.read));
            self.read.extend_from_slice(&bytes[..taken]);
        }
    }

    fn has_read(&self, text: &str) -> bool {
        self.read.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

/// Returns a handshake followed by frames.
fn websocket(path: &str, frames: &[u8]) -> Vec<u8> {
    [handshake(&format!("/connection/{path}"), "").as_bytes(), frames].concat()
}

/// Returns the commands connect, presence and history (fields 4, 8 and 10 of a command in client.proto),
/// length-delimited.
fn protobuf(token: &str) -> Vec<u8> {
    let room = bytes(1, b"room");
    let history = [&room[..], &[7 << 3, 10]].concat();
    let commands = [(1, 4, bytes(1, token.as_bytes())), (2, 8, room), (3, 10, history)];
    let commands = commands.map(|(id, field, request)| {
        let command = [&[1 << 3, id][..], &bytes(field, &request)].concat();
        [varint(command.len()), command].concat()
    });
    commands.concat()
}

fn bytes(field: usize, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len()), value.to_vec()].concat()
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

#[test]
fn on_every_transport_a_client_reads_what_is_its_tenants_and_nothing_else() {
    let mut config = development();
    config.client.token.hmac_secret = Some(dunlin_config::Secret::new("the operator's own key"));
    let channels = dunlin_config::ChannelOptions {
        join_leave: true,
        force_push_join_leave: true,
        history_size: 100,
        history_ttl_ms: 300_000,
        ..config.channel.without_namespace.clone()
    };
    for name in TENANTS {
        config.tenants.insert(name, tenant(name, &channels));
    }
    let server = TestServer::begin(2, config, None);
    let ada =
        |of: &str| token(of, &json!({"sub": "ada", "info": {"of": of}, "channels": ["room"]}));
    let publish = |of: &str, said: &str| {
        let said = format!("{said} {of}");
        let published = api(&server, of, "publish", &json!({"channel": "room", "data": said}));
        assert!(published["result"].is_object(), "{published}");
    };
    for of in TENANTS {
        publish(of, "kept by");
    }
    for way in TRANSPORTS {
        let mut clients = TENANTS.map(|of| (of, Client::open(&server, way, &ada(of))));
        for (_, client) in &mut clients {
            client.read_until("room");
        }
        for said in ["said by", "last of"] {
            TENANTS.iter().for_each(|of| publish(of, said));
        }
        for (of, client) in &mut clients {
            client.read_until(&format!("last of {of}"));
            assert!(client.has_read(&format!("said by {of}")), "{way:?}");
            let asked = matches!(way, Transport::WebSocket { .. } | Transport::HttpStream { .. });
            assert_eq!(client.has_read(&format!("kept by {of}")), asked, "{way:?}");
            for other in TENANTS.iter().filter(|other| *other != of) {
                let read = String::from_utf8_lossy(&client.read).into_owned();
                assert!(!client.has_read(other), "{way:?}, {of}: {read}");
            }
        }
        // A poll from the beginning returns the history of its own tenant only.
        for of in TENANTS {
            let line =
                format!("/connection/poll?channel=room&cursor=0&timeout=0&token={}", ada(of));
            let request = format!("GET {line} HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n");
            let mut stream = TcpStream::connect(server.clients).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut polled = String::new();
            stream.read_to_string(&mut polled).unwrap();
            let others = TENANTS.iter().any(|other| *other != of && polled.contains(other));
            assert!(polled.contains("\"positions\"") && !others, "{polled}");
        }
    }
}
