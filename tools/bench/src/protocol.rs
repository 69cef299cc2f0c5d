//! The bytes with which a client subscribes, and how messages are framed.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;

/// The protocol the clients speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolName {
    /// Plain WebSocket: each text or binary frame is a message
    Websocket,
    /// The Centrifugal client protocol, JSON, over WebSocket
    Centrifuge,
    /// The same in Protobuf; `cf_protocol=protobuf` is added to the URL's path
    CentrifugeProtobuf,
    /// Server-sent events, unidirectional (`/connection/uni_sse`)
    Sse,
    /// HTTP streaming, unidirectional, one JSON document a line (`/connection/uni_http_stream`)
    HttpStream,
    /// Redis pub/sub
    Redis,
    /// NATS core
    Nats,
    /// MQTT 3.1.1, quality of service 0
    Mqtt,
}

/// How the bytes after the opening are cut into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// WebSocket frames (RFC 6455 §5.2); with `lines`, each line of a text frame is a document of its own.
    WebSocket { lines: bool },
    /// WebSocket frames of Protobuf replies, each behind its length.
    WebSocketProtobuf,
    /// Text that ends in a line feed.
    Lines,
    /// MQTT 3.1.1 control packets.
    Mqtt,
}

/// Bits that say which answers a client has seen; see [`Protocol::needed`].
pub(crate) const ANSWERED_CONNECT: u8 = 1;
pub(crate) const ANSWERED_SUBSCRIBE: u8 = 2;

/// One protocol with the parameters of this run.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    pub(crate) name: ProtocolName,
    /// `Host` header and target of the opening request.
    pub(crate) host: String,
    pub(crate) path: String,
    /// Channel to subscribe to. `{n}` stands for the client's number, `{n%K}` for its remainder by K.
    pub(crate) channel: Option<String>,
    /// First text frame of a plain WebSocket client, with the same placeholders.
    pub(crate) hello: Option<String>,
    /// Connection tokens of the Centrifugal protocol, used in turn; empty: no token.
    pub(crate) tokens: Arc<[String]>,
    /// Whether subscribers of the Centrifugal protocol negotiate deltas.
    pub(crate) delta: bool,
    /// Whether subscribers of the Centrifugal protocol ask for joins and leaves.
    pub(crate) join_leave: bool,
}

/// Key of every opening handshake, and the answer RFC 6455 §4.2.2 prescribes for it.
pub(crate) const WEBSOCKET_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(crate) const WEBSOCKET_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Every frame of a client is masked (RFC 6455 §5.3). One key for all: nothing here needs to be unpredictable, and
/// a key other than zero makes the server pay for unmasking.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

impl Protocol {
    pub(crate) fn framing(&self) -> Framing {
        match self.name {
            ProtocolName::Websocket => Framing::WebSocket { lines: false },
            ProtocolName::Centrifuge => Framing::WebSocket { lines: true },
            ProtocolName::CentrifugeProtobuf => Framing::WebSocketProtobuf,
            ProtocolName::Mqtt => Framing::Mqtt,
            _ => Framing::Lines,
        }
    }

    /// Returns whether the opening is an HTTP request whose response head comes before the first message.
    pub(crate) fn opens_with_http(&self) -> bool {
        !matches!(self.name, ProtocolName::Redis | ProtocolName::Nats | ProtocolName::Mqtt)
    }

    /// Returns the status that an HTTP opening must be answered with.
    pub(crate) fn opening_status(&self) -> &'static [u8] {
        match self.framing() {
            Framing::WebSocket { .. } | Framing::WebSocketProtobuf => b"HTTP/1.1 101",
            _ => b"HTTP/1.1 200",
        }
    }

    /// Returns the answers to wait for before a client counts as ready. A plain WebSocket is ready once it is open.
    pub(crate) fn needed(&self) -> u8 {
        let subscribes = if self.channel.is_some() { ANSWERED_SUBSCRIBE } else { 0 };
        match self.name {
            ProtocolName::Websocket => 0,
            ProtocolName::Centrifuge | ProtocolName::CentrifugeProtobuf => {
                ANSWERED_CONNECT | subscribes
            }
            // Unidirectional transports answer connect and subscriptions in one document.
            ProtocolName::Sse | ProtocolName::HttpStream => ANSWERED_CONNECT,
            ProtocolName::Redis | ProtocolName::Nats | ProtocolName::Mqtt => subscribes,
        }
    }

    /// Appends the bytes that client `number` sends as soon as TCP is connected.
    pub(crate) fn opening(&self, number: usize, out: &mut Vec<u8>) {
        let channel = self.channel.as_deref().map(|pattern| expand(pattern, number));
        let channel = channel.as_deref().unwrap_or("");
        let (path, host) = (&self.path, &self.host);
        match self.name {
            ProtocolName::Websocket
            | ProtocolName::Centrifuge
            | ProtocolName::CentrifugeProtobuf => {
                let mut path = expand(path, number);
                if self.name == ProtocolName::CentrifugeProtobuf {
                    path.push_str("?cf_protocol=protobuf");
                }
                out.extend_from_slice(
                    format!(
                        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                         Sec-WebSocket-Key: {WEBSOCKET_KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
                    )
                    .as_bytes(),
                );
            }
            ProtocolName::Sse => {
                let query = percent_encode(&self.unidirectional_connect(number, channel));
                out.extend_from_slice(
                    format!(
                        "GET {path}?cf_connect={query} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n"
                    )
                    .as_bytes(),
                );
            }
            ProtocolName::HttpStream => {
                let body = self.unidirectional_connect(number, channel);
                out.extend_from_slice(
                    format!(
                        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
                         Content-Length: {}\r\n\r\n{body}",
                        body.len()
                    )
                    .as_bytes(),
                );
            }
            ProtocolName::Redis => {
                let length = channel.len();
                out.extend_from_slice(
                    format!("*2\r\n$9\r\nSUBSCRIBE\r\n${length}\r\n{channel}\r\n").as_bytes(),
                );
            }
            ProtocolName::Nats => out.extend_from_slice(
                // The PONG that answers this PING confirms the subscription before it.
                format!("CONNECT {{\"verbose\":false}}\r\nSUB {channel} 1\r\nPING\r\n").as_bytes(),
            ),
            ProtocolName::Mqtt => {
                mqtt_connect(&format!("bench{number}"), out);
                let mut subscribe = vec![0x00, 0x01];
                mqtt_text(channel, &mut subscribe);
                subscribe.push(0);
                mqtt_packet(0x82, &subscribe, out);
            }
        }
    }

    /// Appends the bytes that client `number` sends once its HTTP opening has been answered.
    pub(crate) fn greeting(&self, number: usize, out: &mut Vec<u8>) {
        match self.name {
            ProtocolName::Websocket => {
                if let Some(hello) = &self.hello {
                    websocket_frame(0x1, expand(hello, number).as_bytes(), out);
                }
            }
            ProtocolName::Centrifuge => {
                let mut commands = match self.token(number).map(serde_json::Value::from) {
                    Some(token) => format!("{{\"connect\":{{\"token\":{token}}},\"id\":1}}"),
                    None => "{\"connect\":{},\"id\":1}".to_owned(),
                };
                if let Some(pattern) = &self.channel {
                    let channel = serde_json::Value::from(expand(pattern, number));
                    let join_leave = if self.join_leave { ",\"join_leave\":true" } else { "" };
                    let delta = if self.delta { ",\"delta\":\"fossil\"" } else { "" };
                    // Writing to a String cannot fail.
                    let _ = write!(
                        commands,
                        "\n{{\"subscribe\":{{\"channel\":{channel}{join_leave}{delta}}},\"id\":2}}"
                    );
                }
                websocket_frame(0x1, commands.as_bytes(), out);
            }
            ProtocolName::CentrifugeProtobuf => {
                let (mut connect, mut commands) = (Vec::new(), Vec::new());
                // Command { id = 1, connect = 4 { token = 1 }, subscribe = 5 { channel = 1, join_leave = 11 } }
                if let Some(token) = self.token(number) {
                    protobuf_bytes(1, token.as_bytes(), &mut connect);
                }
                protobuf_command(1, 4, &connect, &mut commands);
                if let Some(pattern) = &self.channel {
                    let mut subscribe = Vec::new();
                    protobuf_bytes(1, expand(pattern, number).as_bytes(), &mut subscribe);
                    if self.join_leave {
                        subscribe.extend_from_slice(&[11 << 3, 1]);
                    }
                    protobuf_command(2, 5, &subscribe, &mut commands);
                }
                websocket_frame(0x2, &commands, out);
            }
            _ => {}
        }
    }

    fn token(&self, number: usize) -> Option<&str> {
        self.tokens.get(number % self.tokens.len().max(1)).map(String::as_str)
    }

    fn unidirectional_connect(&self, number: usize, channel: &str) -> String {
        let mut connect = serde_json::Map::new();
        if let Some(token) = self.token(number) {
            connect.insert("token".into(), token.into());
        }
        if !channel.is_empty() {
            connect.insert("subs".into(), serde_json::json!({ channel: {} }));
        }
        serde_json::Value::Object(connect).to_string()
    }
}

/// Appends one masked frame of a client.
pub(crate) fn websocket_frame(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(0x80 | opcode);
    match payload.len() {
        length @ 0..=125 => out.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&MASK);
    out.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

/// Appends a command prefixed with its length.
fn protobuf_command(id: u8, method: u8, body: &[u8], out: &mut Vec<u8>) {
    let mut command = vec![1 << 3, id];
    protobuf_bytes(method, body, &mut command);
    varint(command.len(), out);
    out.extend_from_slice(&command);
}

/// Appends a length-delimited field.
fn protobuf_bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    varint(bytes.len(), out);
    out.extend_from_slice(bytes);
}

pub(crate) fn mqtt_connect(client: &str, out: &mut Vec<u8>) {
    let mut connect = Vec::new();
    mqtt_text("MQTT", &mut connect);
    // Protocol level 4, clean session, no keep-alive (MQTT 3.1.1 §3.1.2).
    connect.extend_from_slice(&[4, 2, 0, 0]);
    mqtt_text(client, &mut connect);
    mqtt_packet(0x10, &connect, out);
}

pub(crate) fn mqtt_publish(topic: &str, payload: &[u8], out: &mut Vec<u8>) {
    let mut publish = Vec::new();
    mqtt_text(topic, &mut publish);
    publish.extend_from_slice(payload);
    mqtt_packet(0x30, &publish, out);
}

fn mqtt_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn mqtt_packet(kind: u8, body: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    varint(body.len(), out);
    out.extend_from_slice(body);
}

/// Appends a varint (seven bits per byte, lowest first), as MQTT and Protobuf encode it.
fn varint(mut number: usize, out: &mut Vec<u8>) {
    loop {
        let low = (number % 128) as u8;
        number /= 128;
        out.push(if number > 0 { low | 0x80 } else { low });
        if number == 0 {
            break;
        }
    }
}

/// Replaces `{n}` by `number` and `{n%K}` by its remainder by K. Anything else in braces stays as it is.
pub(crate) fn expand(pattern: &str, number: usize) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    while let Some(start) = rest.find("{n") {
        out.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let value = inside.find('}').and_then(|end| match inside[..end].strip_prefix('%') {
            None if end == 0 => Some((number, end)),
            Some(modulus) => match modulus.parse::<usize>() {
                Ok(modulus) if modulus > 0 => Some((number % modulus, end)),
                _ => None,
            },
            None => None,
        });
        match value {
            Some((value, end)) => {
                // Writing to a String cannot fail.
                let _ = write!(out, "{value}");
                rest = &inside[end + 1..];
            }
            None => {
                out.push_str("{n");
                rest = inside;
            }
        }
    }
    out.push_str(rest);
    out
}

fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(name: ProtocolName) -> Protocol {
        Protocol {
            name,
            host: "127.0.0.1:8000".into(),
            path: "/connection/websocket".into(),
            channel: Some("room:{n%3}".into()),
            hello: None,
            tokens: Arc::default(),
            delta: false,
            join_leave: false,
        }
    }

    #[test]
    fn a_channel_pattern_spreads_clients_over_channels() {
        assert_eq!(expand("c", 7), "c");
        assert_eq!(expand("c{n}", 7), "c7");
        assert_eq!(expand("c{n%3}x{n}", 7), "c1x7");
        assert_eq!(expand("{n%0}{nn}{n", 7), "{n%0}{nn}{n");
    }

    #[test]
    fn a_centrifuge_client_connects_and_subscribes_in_one_frame() {
        let mut frame = Vec::new();
        protocol(ProtocolName::Centrifuge).greeting(4, &mut frame);
        assert_eq!(frame[0], 0x81);
        let payload: Vec<u8> =
            frame[6..].iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(
            String::from_utf8(payload).unwrap(),
            "{\"connect\":{},\"id\":1}\n{\"subscribe\":{\"channel\":\"room:1\"},\"id\":2}"
        );
    }

    #[test]
    fn the_same_in_protobuf() {
        let mut frame = Vec::new();
        protocol(ProtocolName::CentrifugeProtobuf).greeting(4, &mut frame);
        assert_eq!(frame[0], 0x82);
        let payload: Vec<u8> =
            frame[6..].iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(payload, b"\x04\x08\x01\x22\x00\x0c\x08\x02\x2a\x08\x0a\x06room:1");
    }

    #[test]
    fn frames_of_every_length_class_carry_their_length() {
        for (length, head) in [(125, 6), (126, 8), (65_535, 8), (65_536, 14)] {
            let mut frame = Vec::new();
            websocket_frame(2, &vec![0; length], &mut frame);
            assert_eq!(frame.len(), head + length);
        }
    }

    #[test]
    fn an_mqtt_client_connects_with_a_name_of_its_own() {
        let mut bytes = Vec::new();
        protocol(ProtocolName::Mqtt).opening(5, &mut bytes);
        let connect = b"\x10\x12\x00\x04MQTT\x04\x02\x00\x00\x00\x06bench5";
        assert_eq!(&bytes[..connect.len()], connect);
        assert_eq!(&bytes[connect.len()..], b"\x82\x0b\x00\x01\x00\x06room:2\x00");
    }
}
