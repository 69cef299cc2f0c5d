//! Clients of a node, and tokens.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::cluster::{Node, SECRET};

/// A client of a node, subscribed to one channel.
pub struct Client {
    lines: BufReader<TcpStream>,
    pub id: String,
}

impl Client {
    /// Connects; `Err` holds what the server sent instead.
    pub fn try_connect(node: &Node, user: &str, channel: &str) -> Result<Client, Value> {
        Client::with_token(node, &token(user), channel)
    }

    pub fn with_token(node: &Node, token: &str, channel: &str) -> Result<Client, Value> {
        let mut stream = TcpStream::connect(node.served.at.client).unwrap();
        stream.set_read_timeout(Some(2 * TIMEOUT)).unwrap();
        let subs = json!({ channel: {} });
        let body = json!({ "token": token, "subs": subs }).to_string();
        write!(
            stream,
            "POST /connection/uni_http_stream HTTP/1.1\r\nHost: d\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut client = Client { lines: BufReader::new(stream), id: String::new() };
        let first = client.next();
        match first["connect"]["client"].as_str() {
            Some(id) => client.id = id.to_owned(),
            None => return Err(first),
        }
        Ok(client)
    }

    pub fn connect(node: &Node, user: &str, channel: &str) -> Client {
        Client::try_connect(node, user, channel).unwrap_or_else(|sent| panic!("{sent}"))
    }

    /// Returns the next push that is not empty.
    pub fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream has ended");
            match serde_json::from_str::<Value>(&line) {
                Ok(Value::Object(push)) if !push.is_empty() => return Value::Object(push),
                // A ping, the head of the response, or the length of a chunk.
                _ => {}
            }
        }
    }

    /// Reads until the join or leave of this user.
    pub fn until_notified(&mut self, kind: &str, user: &str) {
        while self.next()[kind]["info"]["user"] != user {}
    }

    /// Reads until the client is disconnected, and returns the code.
    pub fn until_disconnected(&mut self) -> u64 {
        loop {
            if let Some(code) = self.next()["disconnect"]["code"].as_u64() {
                return code;
            }
        }
    }
}

/// Returns a connection token (RFC 7519) of a user.
pub fn token(user: &str) -> String {
    signed(&json!({ "sub": user }))
}

/// A token with these claims.
pub fn signed(claims: &Value) -> String {
    signed_by(&json!({ "alg": "HS256", "typ": "JWT" }), SECRET, claims)
}

pub fn signed_by(head: &Value, secret: &str, claims: &Value) -> String {
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(head), part(claims));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    let tag = ring::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
}
