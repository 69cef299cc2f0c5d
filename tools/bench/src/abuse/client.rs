//! Connections of an attacker: blocking sockets, with a thread per direction if both are needed.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::{WEBSOCKET_KEY, websocket_frame};
use dunlin_load::{Context, Error};

/// A server that blocks a write for this long gets nothing more.
const TIMEOUT: Duration = Duration::from_millis(500);

/// An address of this machine that is not the ordinary clients'.
pub(super) const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Target, size and end of an attack.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttackPlan {
    pub(super) client: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) key: &'static str,
    pub(super) scale: f64,
    pub(super) until: Instant,
}

impl AttackPlan {
    /// Scales a full-sized attack's count.
    pub(super) fn scaled(&self, full: usize) -> usize {
        ((full as f64 * self.scale).ceil() as usize).max(1)
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Waits for the end of the attack.
    pub(super) fn hold(&self) {
        std::thread::sleep(self.until.saturating_duration_since(Instant::now()));
    }

    /// Connects to the client port.
    pub(super) fn connect(&self) -> io::Result<TcpStream> {
        connect(self.client)
    }
}

/// Connects with time limits for reads and writes.
pub(super) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    with_timeouts(TcpStream::connect_timeout(&address, TIMEOUT)?)
}

/// Connects with another address of this machine, if the target is on it.
fn connect_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect as connect_to, socket};
    let SocketAddr::V4(to) = to else { return connect(to) };
    if !to.ip().is_loopback() {
        return connect(to.into());
    }
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddrV4::new(from, 0))?;
    connect_to(&socket, &to)?;
    with_timeouts(socket.into())
}

fn with_timeouts(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects an anonymous client.
pub(super) fn websocket(plan: &AttackPlan) -> io::Result<TcpStream> {
    connect_as(plan, "").map(|(stream, _)| stream)
}

/// Connects a client with this token, or without one. Returns its id, too.
pub(super) fn connect_as(plan: &AttackPlan, token: &str) -> io::Result<(TcpStream, String)> {
    open(plan, plan.connect()?, token)
}

/// Connects an anonymous client of another address.
pub(super) fn websocket_from(plan: &AttackPlan, from: Ipv4Addr) -> io::Result<TcpStream> {
    open(plan, connect_from(from, plan.client)?, "").map(|(stream, _)| stream)
}

/// Reads up to the reply to a command of a client. Returns what was read.
pub(super) fn answer_to(stream: &mut TcpStream, id: u32) -> io::Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let id = format!("\"id\":{id},");
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    while !answer.contains(&id) {
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => answer.push_str(&String::from_utf8_lossy(&piece[..read])),
        }
    }
    Ok(answer)
}

fn open(plan: &AttackPlan, mut stream: TcpStream, token: &str) -> io::Result<(TcpStream, String)> {
    let mut opening = format!(
        "GET /connection/websocket HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {WEBSOCKET_KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n",
        plan.client
    )
    .into_bytes();
    frame(&format!("{{\"connect\":{{\"token\":\"{token}\"}},\"id\":1}}"), &mut opening);
    stream.write_all(&opening)?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(at) = memchr::memmem::find(&answer, b"\"client\":\"") {
            let rest = &answer[at + 10..];
            if let Some(end) = memchr::memchr(b'"', rest) {
                return Ok((stream, String::from_utf8_lossy(&rest[..end]).into_owned()));
            }
        }
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
}

/// Appends one text frame.
pub(super) fn frame(text: &str, out: &mut Vec<u8>) {
    websocket_frame(0x1, text.as_bytes(), out);
}

/// Reads and discards everything, until the connection ends or is dropped.
pub(super) fn discard(stream: TcpStream) -> Arc<TcpStream> {
    let stream = Arc::new(stream);
    let reader = Arc::downgrade(&stream);
    std::thread::spawn(move || {
        let mut piece = vec![0; 256 << 10];
        while let Some(stream) = reader.upgrade() {
            match (&*stream).read(&mut piece) {
                Ok(0) => return,
                Err(error) if !is_timeout(&error) => return,
                _ => {}
            }
        }
    });
    stream
}

/// Writes until all bytes are accepted, the attack is over, or the server closes. Returns true when all were accepted.
pub(super) fn push(plan: &AttackPlan, mut stream: &TcpStream, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) if is_timeout(&error) && !plan.is_over() => {}
            Err(_) => return false,
        }
    }
    true
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Returns the bytes of a POST with the API key.
pub(super) fn post(plan: &AttackPlan, path: &str, body: &str) -> Vec<u8> {
    let (host, key) = (plan.client, plan.key);
    format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Makes one authorised call of the API.
pub(super) fn request(plan: &AttackPlan, path: &str, body: &str) -> Result<String, Error> {
    let mut stream = TcpStream::connect(plan.client).context("cannot connect")?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).context("no time-out")?;
    let call = String::from_utf8_lossy(&post(plan, path, body)).replacen(
        "\r\n",
        "\r\nConnection: close\r\n",
        1,
    );
    stream.write_all(call.as_bytes()).context("cannot call the API")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("no answer of the API")?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    if head.starts_with("HTTP/1.1 200") && !body.contains("\"error\":{") {
        return Ok(body.to_owned());
    }
    Err(Error::new(format!("{path} is answered {answer}")))
}

/// Returns the response to a GET.
pub(super) fn get(address: SocketAddr, path: &str, timeout: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
