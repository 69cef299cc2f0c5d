use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than a server takes to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of the WebSocket protocol (RFC 6455) in the fewest lines, with a codec of its own.
#[derive(Debug)]
pub struct WebSocket {
    /// Its connection.
    pub stream: TcpStream,
    /// The head of the response to its handshake.
    pub head: String,
}

/// The handshake for a target, with these header lines.
pub fn handshake(target: &str, headers: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

/// A frame with this first byte, masked with zeros.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

impl WebSocket {
    /// Opens one at a target of a server, with these header lines.
    ///
    /// # Panics
    /// When the server does not switch protocols.
    pub fn open(address: SocketAddr, target: &str, headers: &str) -> WebSocket {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.write_all(handshake(target, headers).as_bytes()).expect("it reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("it answers");
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        WebSocket { stream, head }
    }

    /// Sends a text.
    pub fn text(&mut self, text: &str) {
        self.send(0x81, text.as_bytes());
    }

    /// Sends a frame with this first byte.
    pub fn send(&mut self, first: u8, payload: &[u8]) {
        self.stream.write_all(&frame(first, payload)).expect("the server reads");
    }

    /// Returns the first byte and the payload of the next frame.
    ///
    /// # Errors
    /// When the connection ends, or nothing comes.
    pub fn frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head)?;
        let length = match head[1] {
            126 => {
                let mut bytes = [0; 2];
                self.stream.read_exact(&mut bytes)?;
                usize::from(u16::from_be_bytes(bytes))
            }
            127 => {
                let mut bytes = [0; 8];
                self.stream.read_exact(&mut bytes)?;
                u64::from_be_bytes(bytes) as usize
            }
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload)?;
        Ok((head[0], payload))
    }
}
