//! One request to the admin port, and its response. Uses HTTP/1.0: the response ends with the connection, so that an
//! event stream and a document are read the same way.

use std::io::{self, BufReader, Read};
use std::path::Path;

use dunlin_load::client::ResponseHead;
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
        let mut body = BufReader::new(stream);
        let head = ResponseHead::read(&mut body)?;
        if head.chunked {
            return Err(io::Error::other("it answers HTTP/1.0 in chunks"));
        }
        Ok(Response { status: head.status, etag: head.etag, body: Box::new(body) })
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
