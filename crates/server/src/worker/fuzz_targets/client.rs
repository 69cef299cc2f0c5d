//! A client over a WebSocket: what it is answered, and what it is sent besides.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

/// Something a client was sent without having asked for it.
#[derive(Clone, Debug)]
pub(super) struct Push {
    /// Which client; filled in by who knows.
    pub(super) to: usize,
    pub(super) channel: String,
    /// Of a publication.
    pub(super) number: Option<u64>,
    pub(super) kind: String,
}

impl Push {
    fn of(push: &Value) -> Push {
        let kinds = push.as_object().expect("an object").keys().filter(|key| *key != "channel");
        Push {
            to: usize::MAX,
            channel: push["channel"].as_str().unwrap_or_default().to_owned(),
            number: push["pub"]["data"].as_u64(),
            kind: kinds.cloned().collect(),
        }
    }

    pub(super) fn is_publication(&self) -> bool {
        self.kind == "pub"
    }

    pub(super) fn is_unsubscribe(&self) -> bool {
        self.kind == "unsubscribe"
    }

    pub(super) fn is_join_or_leave(&self) -> bool {
        self.kind == "join" || self.kind == "leave"
    }
}

/// What a command was answered.
#[derive(Debug)]
pub(super) struct Reply(pub(super) Value);

impl Reply {
    pub(super) fn is_ok(&self) -> bool {
        self.0.get("error").is_none()
    }

    fn of(&self, method: &str) -> &[Value] {
        let publications = self.0[method]["publications"].as_array();
        publications.or(self.0["publications"].as_array()).map_or(&[], Vec::as_slice)
    }

    /// Whatever came with it is of this channel; publications say of which only in polls.
    pub(super) fn check_channel(&self, channel: &str) {
        for publication in self.of("subscribe").iter().chain(self.of("history")) {
            let of = publication["channel"].as_str().unwrap_or(channel);
            assert_eq!(of, channel, "{self:?}");
        }
    }

    /// How many publications came with it.
    pub(super) fn publications(&self) -> usize {
        self.of("subscribe").len() + self.of("history").len()
    }
}

/// An open connection.
pub(super) struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    replies: VecDeque<Value>,
    pushes: Vec<Push>,
    /// The last one that has come on the channel that all are subscribed to.
    barrier: u64,
    closed: bool,
    pub(super) unidirectional: bool,
    last_id: u64,
}

pub(super) const BARRIER: &str = "barrier";

impl Connection {
    /// Connects, and sends the handshake and the first message.
    pub(super) fn open(address: SocketAddr, unidirectional: bool, first: &Value) -> Connection {
        let stream = connect(address);
        let path = if unidirectional { "uni_websocket" } else { "websocket" };
        let mut connection = Connection {
            stream,
            input: Vec::new(),
            replies: VecDeque::new(),
            pushes: Vec::new(),
            barrier: 0,
            closed: false,
            unidirectional,
            last_id: 1,
        };
        let opening = format!(
            "GET /connection/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        connection.stream.write_all(opening.as_bytes()).expect("an empty socket has room");
        connection.send(first);
        connection
    }

    fn send(&mut self, message: &Value) {
        let text = message.to_string();
        let length = u16::try_from(text.len()).expect("a short command");
        let mut frame = vec![0x81];
        match length {
            0..126 => frame.push(0x80 | length as u8),
            length => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&length.to_be_bytes());
            }
        }
        // The mask is zeros.
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(text.as_bytes());
        if self.stream.write_all(&frame).is_err() {
            self.closed = true;
        }
    }

    /// Sends a command; its reply has this id.
    pub(super) fn command(&mut self, method: &str, request: Value) -> u64 {
        self.last_id += 1;
        let mut command = json!({"id": self.last_id});
        command[method] = request;
        self.send(&command);
        self.last_id
    }

    /// The reply with this id, if it has come.
    pub(super) fn reply(&mut self, id: u64) -> Option<Reply> {
        self.read();
        let at = self.replies.iter().position(|reply| reply["id"] == id)?;
        self.replies.remove(at).map(Reply)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn has_passed(&mut self, barrier: u64) -> bool {
        self.read();
        self.closed || self.barrier >= barrier
    }

    pub(super) fn take_pushes(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.pushes)
    }

    /// Takes in what has come.
    fn read(&mut self) {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => self.closed = true,
                Ok(read) => {
                    self.input.extend_from_slice(&piece[..read]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.closed = true,
            }
            break;
        }
        while let Some(text) = self.frame() {
            for line in text.lines() {
                match line {
                    "{}" if self.unidirectional => {}
                    "{}" => self.send(&json!({})),
                    line => self.take(serde_json::from_str(line).expect("JSON of the server")),
                }
            }
        }
    }

    /// The next frame that is complete, behind the head of the handshake's answer.
    fn frame(&mut self) -> Option<String> {
        if self.input.starts_with(b"HTTP") {
            let end = self.input.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
            self.input.drain(..end);
        }
        let (head, length) = match *self.input.get(..2)? {
            [_, length @ 0..126] => (2, usize::from(length)),
            [_, 126] => {
                let &[high, low] = self.input.get(2..4)? else { return None };
                (4, usize::from(u16::from_be_bytes([high, low])))
            }
            _ => panic!("a frame of more than 64 KiB"),
        };
        let text = self.input.get(head..head + length)?.to_vec();
        let opcode = self.input[0] & 0xf;
        self.input.drain(..head + length);
        // A close frame has a code; there is nothing to read in it.
        Some(if opcode == 1 { String::from_utf8(text).expect("UTF-8") } else { String::new() })
    }

    fn take(&mut self, message: Value) {
        if message.get("id").is_some() {
            return self.replies.push_back(message);
        }
        let push = if self.unidirectional { &message } else { &message["push"] };
        if push.get("connect").is_some() {
            return self.replies.push_back(json!({"id": 1, "connect": push["connect"]}));
        }
        if push.get("disconnect").is_some() {
            self.closed = true;
        } else if push["channel"] == BARRIER {
            self.barrier = push["pub"]["data"].as_u64().unwrap_or(self.barrier);
        } else {
            self.pushes.push(Push::of(push));
        }
    }
}

/// A socket that does not wait, and whose end is a reset: thousands in TIME_WAIT would use up the ports.
pub(super) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the worker listens");
    let socket = socket2::SockRef::from(&stream);
    socket.set_linger(Some(Duration::ZERO)).expect("an option of every socket");
    socket.set_tcp_nodelay(true).expect("an option of every socket");
    stream.set_nonblocking(true).expect("an option of every socket");
    stream
}
