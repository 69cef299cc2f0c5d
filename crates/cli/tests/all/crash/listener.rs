//! Somebody else's WebSocket client (`tungstenite`), in the words of the Centrifugal protocol.
#![allow(unreachable_pub, reason = "a part of a test")]

use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use crate::kit::TIMEOUT;

pub struct Listener(WebSocket<TcpStream>);

impl Listener {
    /// A client that is connected; `None` when the server has gone.
    pub fn connect(at: SocketAddr) -> Option<Listener> {
        let stream = TcpStream::connect(at).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        let url = format!("ws://{at}/connection/websocket");
        let (socket, _) = tungstenite::client(url, stream).ok()?;
        let mut listener = Listener(socket);
        let reply = listener.ask(&json!({ "id": 1, "connect": {} }))?;
        assert!(reply["connect"]["client"].is_string(), "{reply}");
        Some(listener)
    }

    /// Whether it may listen to a channel; `None` when the server has gone.
    pub fn subscribe(&mut self, channel: &str) -> Option<bool> {
        let reply = self.ask(&json!({ "id": 2, "subscribe": { "channel": channel } }))?;
        match reply["error"]["code"].as_u64() {
            None => Some(true),
            Some(103) => Some(false),
            Some(_) => panic!("{reply}"),
        }
    }

    /// The next thing published.
    pub fn publication(&mut self) -> Option<Value> {
        self.find(|line| Some(line["push"]["pub"]["data"].clone()).filter(|data| !data.is_null()))
    }

    fn ask(&mut self, command: &Value) -> Option<Value> {
        self.0.send(Message::text(command.to_string())).ok()?;
        let id = command["id"].clone();
        self.find(|line| (line["id"] == id).then(|| line.clone()))
    }

    fn find<T>(&mut self, wanted: impl Fn(&Value) -> Option<T>) -> Option<T> {
        loop {
            let Message::Text(text) = self.0.read().ok()? else { continue };
            let mut lines = text.as_str().lines().map(|line| serde_json::from_str(line).unwrap());
            if let Some(found) = lines.find_map(|line: Value| wanted(&line)) {
                return Some(found);
            }
        }
    }
}
