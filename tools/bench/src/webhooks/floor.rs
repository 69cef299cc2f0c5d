//! The floor: a plain HTTP/1.1 client with keep-alive connections, which posts prebuilt requests and waits for each
//! answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::load::{CHANNELS, PublishedCounts};
use super::receiver::unix_ns;
use dunlin_load::{Context, Error};

/// Width of the sequence numbers, which are overwritten in place.
const SEQ_DIGITS: usize = 9;
const AT_DIGITS: usize = 19;
/// Longer than any receiver needs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The results, and the CPU time used.
pub(super) struct Posted {
    pub(super) published: PublishedCounts,
    pub(super) cpu_s: f64,
}

/// Posts requests of `events` each over several connections in turn, from a thread on `cores`.
pub(super) fn post(
    receiver: SocketAddr,
    cores: &[usize],
    connections: usize,
    events: usize,
    duration: Duration,
) -> Result<Posted, Error> {
    std::thread::scope(|scope| {
        let posting = scope.spawn(|| {
            dunlin_load::system::pin(cores).context(format!("cannot run on cores {cores:?}"))?;
            post_here(receiver, connections, events, duration)
        });
        posting.join().map_err(|_| Error::new("the thread of the floor panicked"))?
    })
}

fn post_here(
    receiver: SocketAddr,
    connections: usize,
    events: usize,
    duration: Duration,
) -> Result<Posted, Error> {
    let sentence = || format!("cannot post to {receiver}");
    let mut streams = Vec::new();
    for _ in 0..connections {
        let stream = TcpStream::connect(receiver).context(sentence())?;
        stream.set_nodelay(true).context(sentence())?;
        stream.set_read_timeout(Some(TIMEOUT)).context(sentence())?;
        streams.push(stream);
    }
    let mut request = Request::new(receiver, events);
    let mut answer = [0; 4096];
    let (began, began_ns, cpu_before) = (Instant::now(), unix_ns()?, cpu_s());
    while began.elapsed() < duration {
        for stream in &mut streams {
            stream.write_all(request.next(unix_ns()?)).context(sentence())?;
        }
        for stream in &mut streams {
            let length = stream.read(&mut answer).context(sentence())?;
            // The answer is short, and arrives in one piece.
            if !answer[..length].starts_with(b"HTTP/1.1 200 ") {
                let said = String::from_utf8_lossy(&answer[..length]);
                return Err(Error::new(format!("the receiver answers {}", said.trim())));
            }
        }
    }
    let published = PublishedCounts { events: request.seq, began_ns };
    Ok(Posted { published, cpu_s: cpu_s() - cpu_before })
}

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A prebuilt request in which only numbers and times change.
struct Request {
    bytes: Vec<u8>,
    /// Offsets of the number and the time of each event.
    places: Vec<(usize, usize)>,
    seq: u64,
}

impl Request {
    fn new(receiver: SocketAddr, events: usize) -> Self {
        let mut body = String::from("[");
        let mut places = Vec::new();
        for event in 0..events {
            // As long as one of Dunlin's events.
            body.push_str(if event == 0 { "" } else { "," });
            body.push_str(
                "{\"id\":\"0123456789ab-123456\",\"event\":\"publish\",\"time_ms\":1795269600000,\"node\":\"127.0.0.1:8380\",",
            );
            // One channel per connection, so that the connection's order is the channel's.
            body.push_str(&format!(
                "\"channel\":\"noted:{}\",\"data\":{{\"seq\":",
                event as u64 % CHANNELS
            ));
            let seq = body.len();
            // JSON allows no leading zeros; padding with blanks is allowed.
            body.push_str(&format!("{:>SEQ_DIGITS$},\"at\":", 0));
            let at = body.len();
            body.push_str(&format!("{:>AT_DIGITS$}}}}}", 0));
            places.push((seq, at));
        }
        body.push(']');
        let head = format!(
            "POST /floor HTTP/1.1\r\nHost: {receiver}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let places = places.iter().map(|(seq, at)| (head.len() + seq, head.len() + at)).collect();
        Self { bytes: (head + &body).into_bytes(), places, seq: 0 }
    }

    fn next(&mut self, at_ns: u64) -> &[u8] {
        let at = format!("{at_ns:>AT_DIGITS$}");
        for &(seq_place, at_place) in &self.places {
            self.seq += 1;
            let seq = format!("{:>SEQ_DIGITS$}", self.seq);
            self.bytes[seq_place..seq_place + SEQ_DIGITS].copy_from_slice(seq.as_bytes());
            self.bytes[at_place..at_place + AT_DIGITS].copy_from_slice(at.as_bytes());
        }
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_length_and_is_json_with_the_next_numbers() {
        let mut request = Request::new(SocketAddr::from(([127, 0, 0, 1], 1)), 2);
        request.next(5);
        let text = String::from_utf8(request.next(1_795_269_600_000_000_000).to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body[0]["data"]["seq"], &body[1]["data"]["seq"]), (&3.into(), &4.into()));
        assert_eq!(body[1]["data"]["at"], 1_795_269_600_000_000_000_u64);
        assert_eq!(body[1]["channel"], "noted:1");
    }
}
