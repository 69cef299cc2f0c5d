//! One request to the admin port, and its response. Uses HTTP/1.0: the response ends with the connection, so that an
//! event stream and a document are read the same way. It is no `ureq`: Unix sockets and our TLS would reach that through a
//! connector and a transport of its unversioned interface, which are longer than what they replaced here.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use dunlin_wire::http1::{Decoded, HeaderSlots, Limits, Method as Http1Method, decode_response};
use serde_json::Value;

use super::address::{AdminAddress, Stream, own_socket};
use crate::error::CliError;

/// The longest refusal that is read.
const REFUSAL_BYTES_MAX: u64 = 1 << 20;

/// How a port that speaks TLS answers to plain HTTP.
const SPEAKS_TLS: &[u8] = b"This port speaks TLS";

/// The address of a server, and the credentials for it.
pub(super) struct Client {
    pub(super) admin: AdminAddress,
    pub(super) token: Option<String>,
}

#[derive(Clone, Copy)]
pub(super) enum Method {
    Get,
    Put,
    Patch,
    Post,
    Delete,
}

/// A response whose body has not been read.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) etag: Option<String>,
    pub(super) body: Box<dyn Read>,
}

impl Client {
    /// Sends a request. If it is refused for lack of a token, it is sent again through the server's socket, provided
    /// that it is on this machine and this user may use it.
    pub(super) fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: Option<&str>,
    ) -> Result<Response, CliError> {
        let mut response = self.send(self.admin.connect()?, method, path, headers, body)?;
        if !matches!(response.status, 400 | 401 | 403) {
            return Ok(response);
        }
        let mut text = Vec::new();
        response.body.take(REFUSAL_BYTES_MAX).read_to_end(&mut text)?;
        if text.starts_with(SPEAKS_TLS) {
            let admin = &self.admin;
            return Err(format!("{admin} speaks TLS; write --admin https://{admin}").into());
        }
        if self.token.is_some() || response.status == 400 {
            response.body = Box::new(io::Cursor::new(text));
            return Ok(response);
        }
        let refusal: Value = serde_json::from_slice(&text).unwrap_or_default();
        if let Some(stream) =
            refusal["socket"].as_str().and_then(|path| own_socket(Path::new(path)))
        {
            return self.send(stream, method, path, headers, body);
        }
        response.body = Box::new(io::Cursor::new(text));
        Ok(response)
    }

    fn send(
        &self,
        mut stream: Box<dyn Stream>,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: Option<&str>,
    ) -> Result<Response, CliError> {
        let method = match method {
            Method::Get => "GET",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Post => "POST",
            Method::Delete => "DELETE",
        };
        let mut head = format!("{method} {path} HTTP/1.0\r\nHost: {}\r\n", self.admin.host());
        let token = self.token.iter().map(|token| ("Authorization", format!("Bearer {token}")));
        let length = body.map(|body| ("Content-Length", body.len().to_string()));
        let own = token.chain(length);
        let sent = headers.iter().map(|(name, value)| (*name, value.clone()));
        for (name, value) in own.chain(sent) {
            if value.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
                return Err(format!("{name} must not hold line ends").into());
            }
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body.unwrap_or_default().as_bytes()));
        match Response::begin(stream) {
            Ok(response) => Ok(response),
            // A server that refuses a body may have answered before all of it was sent.
            Err(error) => Err(match (self.admin.tls_fault(&error), sent) {
                (Some(sentence), _) => sentence.into(),
                (None, Err(sent)) => format!("{} broke off: {sent}", self.admin).into(),
                (None, Ok(())) => {
                    format!("{} does not answer as a server should: {error}", self.admin).into()
                }
            }),
        }
    }
}

impl Response {
    fn begin(stream: Box<dyn Stream>) -> io::Result<Response> {
        let limits = Limits { body_bytes_max: u64::MAX, ..Limits::default() };
        let mut body = BufReader::new(stream);
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let room = (limits.head_bytes_max + 1 - bytes.len()) as u64;
            if body.by_ref().take(room).read_until(b'\n', &mut bytes)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the head has no end"));
            }
        }
        let mut slots = HeaderSlots::new();
        let Decoded::Head(head, _) = decode_response(&bytes, &mut slots, &limits, Http1Method::Get)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?
        else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not HTTP"));
        };
        let etag = head.headers.get_str("etag").map(|etag| etag.trim_matches('"').to_owned());
        Ok(Response { status: head.status, etag, body: Box::new(body) })
    }
}

/// Percent-encodes all but unreserved characters (RFC 3986 §2.3) and those of `kept`.
pub(super) fn encoded(text: &str, kept: &[u8]) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
