//! A minimal HTTP client: one blocking socket, one request at a time.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::{Context, Error};

/// Longer than any response takes.
const TIMEOUT: Duration = Duration::from_secs(60);

const HEAD_BYTES_MAX: usize = 64 << 10;

/// The fields of a response head that a blocking client needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// Length of the body, if declared.
    pub content_length: Option<u64>,
    /// Whether the body is chunked.
    pub chunked: bool,
    /// The entity tag, without quotes.
    pub etag: Option<String>,
}

impl ResponseHead {
    /// Reads a head and leaves the body unread.
    ///
    /// # Errors
    /// When the socket fails, or this is not HTTP.
    pub fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let room = (HEAD_BYTES_MAX - head.len()) as u64;
            if reader.by_ref().take(room).read_until(b'\n', &mut head)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the head has no end"));
            }
        }
        Self::parse(&head)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is not HTTP"))
    }

    fn parse(head: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
        let mut parsed = Self { status, content_length: None, chunked: false, etag: None };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                parsed.content_length = value.parse().ok();
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                parsed.chunked = true;
            } else if name.eq_ignore_ascii_case("etag") {
                parsed.etag = Some(value.trim_matches('"').to_owned());
            }
        }
        Some(parsed)
    }
}

/// A keep-alive connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    address: SocketAddr,
    /// The header line with the token; empty without one.
    authorization: String,
    request: Vec<u8>,
    response: Vec<u8>,
    /// Range of the last body in the buffer.
    body: Range<usize>,
    revision: u64,
}

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn connect(address: SocketAddr) -> Result<Client, Error> {
        let sentence = || format!("cannot connect to {address}");
        let stream = TcpStream::connect(address).context(sentence())?;
        stream.set_nodelay(true).context(sentence())?;
        stream.set_read_timeout(Some(TIMEOUT)).context(sentence())?;
        let response = vec![0; 64 << 10];
        let (authorization, request) = (String::new(), Vec::new());
        Ok(Client { stream, address, authorization, request, response, body: 0..0, revision: 1 })
    }

    /// Sets the token to send with each request.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Client {
        self.authorization = format!("Authorization: Bearer {token}\r\n");
        self
    }

    /// Returns the newest revision that a response named as its entity tag.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the body of the last response.
    pub fn body(&self) -> &[u8] {
        &self.response[self.body.clone()]
    }

    /// Sends a request and waits for its response. Returns the status and how long it took.
    ///
    /// As for [`send`](Self::send) and [`receive`](Self::receive).
    /// As of [`send`](Self::send) and [`receive`](Self::receive).
    pub fn call(
        &mut self,
        method: &str,
        target: &str,
        kind: &str,
        body: &[u8],
    ) -> Result<(u16, Duration), Error> {
        let began = Instant::now();
        self.send(method, target, kind, body)?;
        let status = self.receive()?;
        Ok((status, began.elapsed()))
    }

    /// Makes a change that must succeed.
    ///
    /// # Errors
    /// The server's error message.
    pub fn change(&mut self, target: &str, body: &[u8]) -> Result<Duration, Error> {
        let (status, took) = self.call("PUT", target, "application/json", body)?;
        self.expect_success("PUT", target, status)?;
        Ok(took)
    }

    /// Checks the status of the last response.
    ///
    /// # Errors
    /// The body of the response, if its status is not a success.
    pub fn expect_success(&self, method: &str, target: &str, status: u16) -> Result<(), Error> {
        if (200..300).contains(&status) {
            return Ok(());
        }
        let body: String = String::from_utf8_lossy(self.body()).chars().take(400).collect();
        Err(Error::new(format!("{method} {target} is answered with {status}: {body}")))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the connection is closed.
    pub fn send(
        &mut self,
        method: &str,
        target: &str,
        kind: &str,
        body: &[u8],
    ) -> Result<(), Error> {
        self.request.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(
            self.request,
            "{method} {target} HTTP/1.1\r\nHost: {}\r\n{}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            self.authorization,
            body.len()
        );
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).context("cannot send a request")
    }

    /// Waits for the next response and returns its status.
    ///
    /// # Errors
    /// When none arrives in time, or it is not HTTP.
    pub fn receive(&mut self) -> Result<u16, Error> {
        let mut held = 0;
        loop {
            if held == self.response.len() {
                self.response.resize(held * 2, 0);
            }
            let read = self.stream.read(&mut self.response[held..]).context("no response")?;
            if read == 0 {
                return Err(Error::new("the server closed the connection before it answered"));
            }
            held += read;
            let Some(end) = memchr::memmem::find(&self.response[..held], b"\r\n\r\n") else {
                continue;
            };
            let head = ResponseHead::parse(&self.response[..end])
                .ok_or_else(|| Error::new("the response is not HTTP"))?;
            let body = end + 4..end + 4 + head.content_length.unwrap_or(0) as usize;
            if held >= body.end {
                self.body = body;
                let revision = head.etag.and_then(|etag| etag.parse().ok());
                self.revision = revision.unwrap_or(self.revision);
                return Ok(head.status);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_and_the_body_left_where_it_is() {
        let mut bytes: &[u8] =
            b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\nETag: \"7\"\r\nX: 1\r\n\r\nok";
        let head = ResponseHead::read(&mut bytes).unwrap();
        let etag = Some("7".to_owned());
        let expected = ResponseHead { status: 200, content_length: Some(2), chunked: false, etag };
        assert_eq!((head, bytes), (expected, &b"ok"[..]));
        for wrong in ["HTTP/1.1 200 OK\r\nX: 1", "nonsense\r\n\r\n", ""] {
            assert!(ResponseHead::read(&mut wrong.as_bytes()).is_err(), "{wrong}");
        }
        let endless = "X: 1\r\n".repeat(HEAD_BYTES_MAX);
        assert!(ResponseHead::read(&mut endless.as_bytes()).is_err());
    }
}
