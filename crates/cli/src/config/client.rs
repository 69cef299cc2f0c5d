//! One request to the admin port, and its answer. HTTP/1.0: what is sent ends with the connection, so that a
//! stream of events and a document are read the same way.

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use dunlin_load::client::ResponseHead;
use serde_json::Value;

use crate::error::CliError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the longest canary.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(330);
/// The longest refusal that is looked at.
const REFUSAL_BYTES_MAX: u64 = 1 << 20;

/// How a port that speaks TLS answers to plain HTTP.
const SPEAKS_TLS: &[u8] = b"This port speaks TLS";

/// What is in front of the path of a Unix socket.
const UNIX: &str = "unix:";

/// Where a server is, and how to be let in.
pub(super) struct Client {
    pub(super) admin: String,
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

/// What came back; the body is still to be read.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) etag: Option<String>,
    pub(super) body: Box<dyn Read>,
}

/// A connection, over TCP or through the server's socket.
trait Stream: Read + Write {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl Client {
    /// Sends a request. One that is refused for want of a token is sent again through the server's socket, if it lies on
    /// this machine and this user may use it.
    pub(super) fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: Option<&str>,
    ) -> Result<Response, CliError> {
        let mut response = self.send(self.connect()?, method, path, headers, body)?;
        if !matches!(response.status, 400 | 401 | 403) {
            return Ok(response);
        }
        let mut text = Vec::new();
        response.body.take(REFUSAL_BYTES_MAX).read_to_end(&mut text)?;
        if text.starts_with(SPEAKS_TLS) {
            return Err(self.wants_socket());
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

    fn wants_socket(&self) -> CliError {
        format!(
            "{} speaks TLS, and this command does not: on the server's machine, as its user, write --admin unix:DIR/admin-socket, \
             where DIR is the --state of the server; from elsewhere use curl, see docs/operating/changing.md",
            self.admin
        )
        .into()
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
        let mut head = format!("{method} {path} HTTP/1.0\r\nHost: {}\r\n", self.host());
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
            // A server that refuses a body has often answered before it was sent.
            Err(error) => Err(match sent {
                Err(sent) => format!("{} broke off: {sent}", self.admin).into(),
                Ok(()) => {
                    format!("{} does not answer as a server should: {error}", self.admin).into()
                }
            }),
        }
    }

    /// What the request is for: a socket has no name.
    fn host(&self) -> &str {
        if self.admin.starts_with(UNIX) { "localhost" } else { &self.admin }
    }

    fn connect(&self) -> Result<Box<dyn Stream>, CliError> {
        use std::net::ToSocketAddrs;
        if let Some(path) = self.admin.strip_prefix(UNIX) {
            let stream = UnixStream::connect(path)
                .and_then(|stream| stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map(|()| stream))
                .map_err(|error| format!("no server answers at {path}: {error}"))?;
            return Ok(Box::new(stream));
        }
        if self.admin.starts_with("https://") {
            return Err(self.wants_socket());
        }
        let addresses = self.admin.to_socket_addrs().map_err(|error| {
            format!("{} is no address: {error}; write --admin 127.0.0.1:8001", self.admin)
        })?;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                    stream.set_nodelay(true)?;
                    return Ok(Box::new(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(format!(
            "no server answers at {}: {last}; start one with `dunlin serve`, or name its admin port \
             with --admin",
            self.admin
        )
        .into())
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

/// A connection through a socket that a server has named. Only one of this user or of root is used: whoever else serves
/// the address could name any.
fn own_socket(path: &Path) -> Option<Box<dyn Stream>> {
    let owner = fs::metadata(path).ok()?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return None;
    }
    let stream = UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    Some(Box::new(stream))
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// All that was said was to ask with https://, which is refused as well.
    #[test]
    fn where_the_admin_port_speaks_tls_the_socket_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap();
            assert!(read > 0);
            let answer = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 42\r\n\r\n\
                This port speaks TLS: ask with https://.\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
        });
        for admin in [admin.clone(), format!("https://{admin}")] {
            let client = Client { admin, token: Some("a token".to_owned()) };
            let Err(error) = client.call(Method::Get, "/config", &[], None) else {
                panic!("it is no answer")
            };
            assert!(error.to_string().contains("unix:DIR/admin-socket"), "{error}");
        }
        server.join().unwrap();
    }
}
