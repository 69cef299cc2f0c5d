//! An HTTP client that costs as little as a client can: one blocking socket, one request at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::{Context, Error};

/// Longer than any change may take.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    address: SocketAddr,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// Where in it the last body stands.
    body: Range<usize>,
    revision: u64,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Result<Client, Error> {
        let sentence = || format!("cannot connect to {address}");
        let stream = TcpStream::connect(address).context(sentence())?;
        stream.set_nodelay(true).context(sentence())?;
        stream.set_read_timeout(Some(TIMEOUT)).context(sentence())?;
        let answer = vec![0; 64 << 10];
        Ok(Client { stream, address, request: Vec::new(), answer, body: 0..0, revision: 1 })
    }

    /// The newest revision it was told of.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The body of the last answer.
    pub fn body(&self) -> &[u8] {
        &self.answer[self.body.clone()]
    }

    /// Sends a request and waits for its answer; gives the status and how long it took.
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

    /// The same, for a change that has to succeed.
    pub fn change(&mut self, target: &str, body: &[u8]) -> Result<Duration, Error> {
        let (status, took) = self.call("PUT", target, "application/json", body)?;
        self.expect_success("PUT", target, status)?;
        Ok(took)
    }

    pub fn expect_success(&self, method: &str, target: &str, status: u16) -> Result<(), Error> {
        if (200..300).contains(&status) {
            return Ok(());
        }
        let body: String = String::from_utf8_lossy(self.body()).chars().take(400).collect();
        Err(Error::new(format!("{method} {target} is answered with {status}: {body}")))
    }

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
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).context("cannot send a request")
    }

    /// The status of the next answer.
    pub fn receive(&mut self) -> Result<u16, Error> {
        let mut held = 0;
        loop {
            if held == self.answer.len() {
                self.answer.resize(held * 2, 0);
            }
            let read = self.stream.read(&mut self.answer[held..]).context("no answer")?;
            if read == 0 {
                return Err(Error::new("the server closed the connection before it answered"));
            }
            held += read;
            let Some(head) = memchr::memmem::find(&self.answer[..held], b"\r\n\r\n") else {
                continue;
            };
            let length = content_length(&self.answer[..head]).unwrap_or(0);
            self.revision = etag(&self.answer[..head]).unwrap_or(self.revision);
            if held >= head + 4 + length {
                self.body = head + 4..head + 4 + length;
                let status = std::str::from_utf8(&self.answer[9..12]).ok();
                return status
                    .and_then(|status| status.parse().ok())
                    .ok_or_else(|| Error::new("the answer is not HTTP"));
            }
        }
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    header(head, "content-length")?.parse().ok()
}

/// The revision an answer is about.
fn etag(head: &[u8]) -> Option<u64> {
    header(head, "etag")?.trim_matches('"').parse().ok()
}

fn header<'h>(head: &'h [u8], wanted: &str) -> Option<&'h str> {
    let head = std::str::from_utf8(head).ok()?;
    head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::{content_length, etag};

    #[test]
    fn the_length_of_a_body_is_in_its_head() {
        assert_eq!(content_length(b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 12"), Some(12));
        assert_eq!(content_length(b"HTTP/1.1 200 OK\r\nX: 1"), None);
        assert_eq!(etag(b"HTTP/1.1 200 OK\r\nETag: \"7\"\r\nX: 1"), Some(7));
    }
}
