//! The floor of fan-out on this kernel: the cost of sending the same bytes to N sockets, and nothing else.
//!
//! It answers any GET with 101, without parsing it. `POST /pub` sends one prebuilt frame to every connection, with one
//! `send()` each; `POST /burst/N` sends N joined frames to every connection, with one `send()` each; `POST /one/N`
//! sends a frame to each of the next N connections in turn. It does nothing else: no parsing, no sessions, no queues,
//! no check of the result of `send()`. Beyond the minimum it only numbers the frames, once per publish, so that the
//! generator can check its messages like those of other servers. No server can be faster on this kernel unless it joins
//! several publishes in one `send()`.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::swarm::{SEQUENCE_DIGITS, SEQUENCE_MARK};
use dunlin_load::reactor::{EVENTS_MAX, Events, Flags, LISTENER, NONBLOCKING, Reactor, listen};
use dunlin_load::{Context, Error, ExitStatus};

const BURST_MAX: usize = 1_000;

/// Options of `dunlin bench floor`.
#[derive(Debug, clap::Args)]
pub struct Floor {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8300")]
    pub listen: SocketAddr,
    /// Payload of each frame, bytes
    #[arg(long, default_value_t = 109, value_parser = clap::value_parser!(u16).range(30..=125))]
    pub message_bytes: u16,
}

pub(crate) fn run(options: &Floor) -> Result<ExitStatus, Error> {
    dunlin_load::system::descriptors_per_thread();
    let listener = listen(options.listen, false)?;
    let (reactor, mut events) = (Reactor::new()?, Events::with_capacity(EVENTS_MAX));
    let unwatched = "cannot watch another socket";
    reactor.watch(&listener, LISTENER, Flags::IN).context(unwatched)?;
    let mut connections: Vec<Option<OwnedFd>> = Vec::new();
    let mut subscribers: Vec<u32> = Vec::new();
    let mut turn = 0;
    let mut frames = Frames::new(usize::from(options.message_bytes));
    let mut buffer = vec![0; 64 << 10];
    loop {
        reactor.wait(None, &mut events)?;
        for (token, _) in events.iter() {
            if token == LISTENER {
                while let Ok(connection) = rustix::net::accept_with(&listener, NONBLOCKING) {
                    let number = connections.len() as u64;
                    reactor.watch(&connection, number, Flags::IN).context(unwatched)?;
                    connections.push(Some(connection));
                }
                continue;
            }
            let Some(entry) = connections.get_mut(token as usize) else { continue };
            let Some(connection) = entry else { continue };
            let request = match rustix::io::read(&*connection, &mut *buffer) {
                Ok(length @ 1..) => &buffer[..length],
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Ok(0) | Err(_) => {
                    *entry = None;
                    continue;
                }
            };
            if request.starts_with(b"GET") {
                send(connection, b"HTTP/1.1 101 X\r\n\r\n");
                subscribers.push(token as u32);
            } else if request.starts_with(b"POST /") {
                let one = request.starts_with(b"POST /one/");
                let count = count_of(request);
                let bytes = frames.number(if one { 1 } else { count });
                let (start, each) = if one { (turn, count) } else { (0, subscribers.len()) };
                if one {
                    turn += count;
                }
                for at in start..start + each.min(subscribers.len()) {
                    let subscriber = subscribers[at % subscribers.len()];
                    if let Some(Some(connection)) = connections.get(subscriber as usize) {
                        send(connection, bytes);
                    }
                }
                if let Some(Some(connection)) = connections.get(token as usize) {
                    send(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                }
            }
        }
    }
}

/// Ignores errors and short writes: the generator counts, and reports what is missing.
fn send(connection: &OwnedFd, bytes: &[u8]) {
    let _ = rustix::net::send(connection, bytes, SendFlags::NOSIGNAL);
}

/// Returns the number of messages requested: N of `POST /burst/N` and `POST /one/N`, otherwise 1.
fn count_of(request: &[u8]) -> usize {
    let digits =
        [&b"POST /burst/"[..], b"POST /one/"].iter().find_map(|of| request.strip_prefix(*of));
    let count = digits
        .unwrap_or_default()
        .iter()
        .take_while(|digit| digit.is_ascii_digit())
        .fold(0usize, |count, digit| (count * 10 + usize::from(digit - b'0')).min(BURST_MAX));
    count.max(1)
}

/// Prebuilt consecutive frames in which only the numbers change.
#[derive(Debug)]
struct Frames {
    bytes: Vec<u8>,
    frame_bytes: usize,
    sent: u32,
}

impl Frames {
    fn new(message_bytes: usize) -> Self {
        let mut frame = vec![0x81, message_bytes as u8];
        frame.extend_from_slice(format!("{{{SEQUENCE_MARK}{:0SEQUENCE_DIGITS$}\",", 0).as_bytes());
        frame.resize(2 + message_bytes, b'y');
        Self { frame_bytes: frame.len(), bytes: frame.repeat(BURST_MAX), sent: 0 }
    }

    /// Numbers the next `count` frames and returns them.
    fn number(&mut self, count: usize) -> &[u8] {
        const DIGITS_AT: usize = 2 + 1 + SEQUENCE_MARK.len();
        for frame in self.bytes.chunks_exact_mut(self.frame_bytes).take(count) {
            self.sent += 1;
            let digits = format!("{:0SEQUENCE_DIGITS$}", self.sent);
            frame[DIGITS_AT..DIGITS_AT + SEQUENCE_DIGITS].copy_from_slice(digits.as_bytes());
        }
        &self.bytes[..count * self.frame_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_numbered_on_and_keep_their_length() {
        let mut frames = Frames::new(109);
        assert_eq!(frames.number(1).len(), 111);
        let burst = String::from_utf8_lossy(frames.number(100)).into_owned();
        assert_eq!(frames.number(1).len(), 111);
        assert!(
            burst.contains("\"seq\":\"0000000002\"") && burst.contains("\"seq\":\"0000000101\"")
        );
        assert_eq!(frames.sent, 102);
    }

    #[test]
    fn the_number_of_messages_is_in_the_path() {
        assert_eq!(count_of(b"POST /pub HTTP/1.1"), 1);
        assert_eq!(count_of(b"POST /burst/100 HTTP/1.1"), 100);
        assert_eq!(count_of(b"POST /burst/99999999999999999999 HTTP/1.1"), BURST_MAX);
        assert_eq!(count_of(b"POST /burst/x"), 1);
        assert_eq!(count_of(b"POST /one/20 HTTP/1.1"), 20);
    }
}
