//! A protocol of the program's own beside Dunlin's: words in WebSocket messages, on the path `/lines`.
//!
//! `HELLO KEY`, `SUB N CHANNEL`, `PUB N CHANNEL TEXT`; the server says `OK N` or `ERR N CODE`, and `MSG CHANNEL TEXT`. Who may do
//! what the authorizer says, as for every other client.
//!
//! `cargo run -p dunlin-server --example lines`, then `websocat ws://127.0.0.1:8000/lines`.

use dunlin_server::{
    Authorizer, Codec, Config, Connect, ConnectResult, Decision, Denial, ErrorCode, ServeError,
    Server, Subscribe, SubscribeResult, json,
};
use serde_json::Value;

struct Lines;

impl Codec for Lines {
    fn decode(&self, message: &[u8], commands: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(message);
        let words: Vec<&str> = text.trim_end().splitn(4, ' ').collect();
        let id = |n: &str| n.parse::<u32>().unwrap_or(0);
        let command = match *words {
            ["HELLO", key] => json!({"id": 1, "connect": {"token": key}}),
            ["SUB", n, channel] => json!({"id": id(n), "subscribe": {"channel": channel}}),
            ["PUB", n, channel, text] => {
                json!({"id": id(n), "publish": {"channel": channel, "data": text}})
            }
            // It keeps the connection alive, and asks for nothing.
            [""] => return,
            _ => json!({"id": 0}),
        };
        commands.extend_from_slice(command.to_string().as_bytes());
    }

    fn encode(&self, said: &[u8], message: &mut Vec<u8>) {
        let Ok(said) = serde_json::from_slice::<Value>(said) else { return };
        let (push, text) = (&said["push"], &said["push"]["pub"]["data"]);
        let line = match (push["channel"].as_str(), text.as_str(), said["id"].as_u64()) {
            (Some(channel), Some(text), _) => format!("MSG {channel} {text}"),
            (.., Some(id)) if said["error"].is_object() => {
                format!("ERR {id} {}", said["error"]["code"])
            }
            (.., Some(id)) => format!("OK {id}"),
            _ => return,
        };
        message.extend_from_slice(line.as_bytes());
    }

    fn subprotocols(&self) -> &'static [&'static str] {
        &["lines"]
    }
}

struct Keys;

impl Authorizer for Keys {
    fn connect(&mut self, ask: &Connect<'_>) -> Decision<ConnectResult> {
        match ask.token.strip_prefix("key-of-") {
            Some(user) => Decision::grant(ConnectResult::user(user)),
            None => Decision::deny(Denial::disconnect(4501, "nobody has this key")),
        }
    }

    fn subscribe(&mut self, ask: &Subscribe<'_>) -> Decision<SubscribeResult> {
        match ask.channel.strip_prefix("private-") {
            Some(owner) if owner != ask.client.user => Decision::deny(ErrorCode::PermissionDenied),
            _ => Decision::rules(),
        }
    }
}

pub(crate) fn server(config: Config) -> Server {
    Server::new(config).authorizer(|| Keys).protocol("/lines", || Lines)
}

fn main() -> Result<(), ServeError> {
    let serving = |ready: &dunlin_server::Ready| println!("ws://{}/lines", ready.client_addr);
    server(Config::development()).run(serving)
}
