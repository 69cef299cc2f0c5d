//! The bytes of an answer, and when each of them may leave.

use std::time::Duration;

use dunlin_wire::http1::{Method, reason_phrase};

use super::behaviour::{Behaviour, BrokenAnswer, ConnectionEnd, HELLO};

/// What happens to the connection once a step has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterStep {
    /// The next step.
    Go,
    /// FIN.
    Finish,
    /// RST: what is still under way is lost too.
    Reset,
    /// Nothing more, ever, and no end either.
    Silence,
}

/// One piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// Not before this time on the server's clock, nanoseconds.
    pub(super) due_ns: u64,
    pub(super) bytes: Vec<u8>,
    /// One byte in each span of this length, nanoseconds; 0: all at once.
    pub(super) pace_ns: u64,
    pub(super) then: AfterStep,
}

/// What of a request its answer depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestFacts<'a> {
    pub(super) head: bool,
    /// The request's id, if it has one.
    pub(super) id: Option<&'a str>,
    /// Number of this answer among all of the server's.
    pub(super) served: u64,
    /// How the connection ends behind this answer, if it does.
    pub(super) end: Option<ConnectionEnd>,
    /// A body the behaviour did not make: the echo, a listing, an explanation.
    pub(super) body: Option<&'a [u8]>,
}

impl<'a> RequestFacts<'a> {
    pub(super) fn new(method: Method<'_>) -> Self {
        Self { head: method == Method::Head, id: None, served: 0, end: None, body: None }
    }
}

/// Headers a flood sends before it ends, far beyond what any client takes.
const FLOOD_HEADERS: usize = 20_000;

/// Appends the steps of one answer.
pub(super) fn steps(
    behaviour: &Behaviour,
    asked: RequestFacts<'_>,
    now_ns: u64,
    out: &mut Vec<Step>,
) {
    let mut step = Step {
        due_ns: now_ns + ns(behaviour.delay),
        bytes: Vec::new(),
        pace_ns: behaviour.slow.map_or(0, |pace| ns(pace).max(1)),
        then: AfterStep::Go,
    };
    if let Some(fault) = behaviour.broken {
        broken(fault, &mut step);
        return out.push(step);
    }
    let end = match asked.end {
        None if behaviour.until_close => AfterStep::Finish,
        None => AfterStep::Go,
        Some(ConnectionEnd::Said | ConnectionEnd::Dropped) => AfterStep::Finish,
        Some(ConnectionEnd::Reset) => AfterStep::Reset,
    };
    head(behaviour, asked, &mut step.bytes);
    if asked.head || has_no_body(behaviour.status) {
        step.then = end;
        return out.push(step);
    }
    match behaviour.body_after {
        None => {
            body(behaviour, asked, &mut step.bytes);
            step.then = end;
            out.push(step);
        }
        Some(after) => {
            let mut rest = Step { bytes: Vec::new(), then: end, ..step.clone() };
            rest.due_ns += ns(after);
            body(behaviour, asked, &mut rest.bytes);
            out.push(step);
            out.push(rest);
        }
    }
}

fn head(behaviour: &Behaviour, asked: RequestFacts<'_>, out: &mut Vec<u8>) {
    if behaviour.interim {
        out.extend_from_slice(
            b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n",
        );
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(behaviour.status.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason_phrase(behaviour.status).as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some(id) = asked.id {
        field(out, "X-Request-Id", id);
        field(out, "X-Served", &asked.served.to_string());
    }
    if asked.end == Some(ConnectionEnd::Said) || behaviour.until_close {
        field(out, "Connection", "close");
    }
    if has_no_body(behaviour.status) {
    } else if behaviour.chunked.is_some() {
        field(out, "Transfer-Encoding", "chunked");
    } else if !behaviour.until_close {
        let length = asked.body.map_or(behaviour.bytes, <[u8]>::len);
        field(out, "Content-Length", &length.to_string());
    }
    out.extend_from_slice(b"\r\n");
}

fn body(behaviour: &Behaviour, asked: RequestFacts<'_>, out: &mut Vec<u8>) {
    let made;
    let body = match asked.body {
        Some(body) => body,
        None => {
            made = text(behaviour.bytes);
            &made
        }
    };
    match behaviour.chunked {
        None => out.extend_from_slice(body),
        Some(size) => {
            for chunk in body.chunks(size as usize) {
                out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\nX-Body-Bytes: ");
            out.extend_from_slice(body.len().to_string().as_bytes());
            out.extend_from_slice(b"\r\n\r\n");
        }
    }
}

/// `HELLO` over and over, cut at `bytes`.
fn text(bytes: usize) -> Vec<u8> {
    HELLO.bytes().cycle().take(bytes).collect()
}

fn broken(fault: BrokenAnswer, step: &mut Step) {
    let out = &mut step.bytes;
    let mut say = |text: &str| out.extend_from_slice(text.as_bytes());
    match fault {
        BrokenAnswer::TruncatedHead => {
            say("HTTP/1.1 200 OK\r\nContent-Type: text/pl");
            step.then = AfterStep::Finish;
        }
        BrokenAnswer::HeaderFlood => {
            say("HTTP/1.1 200 OK\r\n");
            for number in 0..FLOOD_HEADERS {
                say(&format!("X-Flood-{number}: of headers without an end\r\n"));
            }
            say("Content-Length: 0\r\n\r\n");
        }
        BrokenAnswer::TwoLengths => {
            say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nhello, ");
        }
        BrokenAnswer::LengthAndChunked => {
            say(
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            );
        }
        BrokenAnswer::NegativeLength => say("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello"),
        BrokenAnswer::HugeLength => {
            say("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nhello");
        }
        BrokenAnswer::BadChunkSize => {
            say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nmany\r\nhello\r\n0\r\n\r\n");
        }
        BrokenAnswer::BadChunkEnd => {
            say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n");
        }
        BrokenAnswer::CutChunk => {
            say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel");
            step.then = AfterStep::Finish;
        }
        BrokenAnswer::Unasked => {
            for body in ["asked for", "unasked for"] {
                let length = body.len();
                say(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"));
            }
        }
        BrokenAnswer::NotHttp => say("220 mail.example ESMTP ready\r\n"),
        BrokenAnswer::BadVersion => say("HTTP/3.7 200 OK\r\nContent-Length: 0\r\n\r\n"),
        BrokenAnswer::BadStatus => say("HTTP/1.1 999 Beyond\r\nContent-Length: 0\r\n\r\n"),
        BrokenAnswer::CutBody | BrokenAnswer::ResetBody => {
            say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello");
            step.then =
                if fault == BrokenAnswer::CutBody { AfterStep::Finish } else { AfterStep::Reset };
        }
        BrokenAnswer::Never => step.then = AfterStep::Silence,
        BrokenAnswer::Nothing => step.then = AfterStep::Finish,
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    // What came in a request goes out in a header: no line of its own.
    out.extend(value.bytes().filter(|byte| !byte.is_ascii_control()));
    out.extend_from_slice(b"\r\n");
}

fn has_no_body(status: u16) -> bool {
    matches!(status, 204 | 304)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(behaviour: &Behaviour, asked: RequestFacts<'_>) -> Vec<(String, AfterStep)> {
        let mut out = Vec::new();
        steps(behaviour, asked, 0, &mut out);
        let reported = |step: Step| (String::from_utf8(step.bytes).unwrap(), step.then);
        out.into_iter().map(reported).collect()
    }

    #[test]
    fn the_plain_answer_is_the_floors() {
        let reported = answer(&Behaviour::default(), RequestFacts::new(Method::Get));
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";
        assert_eq!(reported, [(text.to_owned(), AfterStep::Go)]);
    }

    #[test]
    fn an_id_comes_back_with_the_number_of_the_answer_and_cannot_add_a_header() {
        let asked =
            RequestFacts { id: Some("a\r\nb"), served: 9, ..RequestFacts::new(Method::Head) };
        let (text, _) = answer(&Behaviour::default(), asked).remove(0);
        assert!(text.contains("X-Request-Id: ab\r\nX-Served: 9\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "HEAD has no body: {text}");
    }

    #[test]
    fn only_one_of_the_three_ways_to_end_says_close() {
        let ends = [
            (ConnectionEnd::Said, AfterStep::Finish, true),
            (ConnectionEnd::Dropped, AfterStep::Finish, false),
            (ConnectionEnd::Reset, AfterStep::Reset, false),
        ];
        for (end, then, said) in ends {
            let asked = RequestFacts { end: Some(end), ..RequestFacts::new(Method::Get) };
            let (text, reported) = answer(&Behaviour::default(), asked).remove(0);
            assert_eq!((reported, text.contains("Connection: close")), (then, said), "{end:?}");
        }
    }

    #[test]
    fn chunks_end_with_a_trailer_and_a_late_body_is_a_step_of_its_own() {
        let behaviour = Behaviour {
            bytes: 5,
            chunked: Some(3),
            body_after: Some(Duration::from_secs(1)),
            ..Behaviour::default()
        };
        let mut out = Vec::new();
        steps(&behaviour, RequestFacts::new(Method::Get), 7, &mut out);
        assert_eq!((out[0].due_ns, out[1].due_ns), (7, 1_000_000_007));
        assert_eq!(out[1].bytes, b"3\r\nHel\r\n2\r\nlo\r\n0\r\nX-Body-Bytes: 5\r\n\r\n");
    }
}
