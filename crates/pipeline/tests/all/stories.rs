//! Tests of a connection, input by input.

use dunlin_pipeline::{
    Close, Connection, ConnectionLimits, Head, InFlight, Kind, Progress, ProtocolError,
    ReplayDecision, Sink,
};
use dunlin_wire::http1::Error;

/// Records all events.
#[derive(Default)]
struct Notes(Vec<String>);

impl Sink for Notes {
    fn on_head(&mut self, request: &InFlight, head: &Head<'_>) {
        self.0.push(format!("{}: {}", request.tag, head.status));
    }

    fn on_interim(&mut self, request: &InFlight, head: &Head<'_>) {
        self.0.push(format!("{}: interim {}", request.tag, head.status));
    }

    fn on_body(&mut self, request: &InFlight, bytes: &[u8]) {
        self.0.push(format!("{}: {}", request.tag, String::from_utf8_lossy(bytes)));
    }

    fn on_trailer(&mut self, request: &InFlight, name: &str, value: &[u8]) {
        let value = String::from_utf8_lossy(value);
        self.0.push(format!("{}: trailer {name}={value}", request.tag));
    }

    fn on_end(&mut self, request: &InFlight) {
        self.0.push(format!("{}: end", request.tag));
    }
}

struct Story {
    connection: Connection,
    notes: Notes,
}

fn story() -> Story {
    Story { connection: Connection::new(&ConnectionLimits::default()), notes: Notes::default() }
}

impl Story {
    fn sends(mut self, tag: u64, kind: Kind) -> Story {
        self.connection.handle_sent(tag, 1, kind, tag);
        self
    }

    #[track_caller]
    fn hears(self, bytes: &str) -> Story {
        self.hears_and(bytes, Ok(Progress::Open))
    }

    #[track_caller]
    fn hears_and(mut self, bytes: &str, expected: Result<Progress, ProtocolError>) -> Story {
        assert_eq!(self.connection.handle_input(bytes.as_bytes(), &mut self.notes), expected);
        self
    }

    #[track_caller]
    fn hears_the_end(mut self, expected: Close) -> Story {
        assert_eq!(self.connection.handle_eof(&mut self.notes), expected);
        self
    }

    #[track_caller]
    fn notes(self, expected: &[&str]) -> Story {
        assert_eq!(self.notes.0, expected);
        self
    }

    #[track_caller]
    fn leaves(mut self, expected: &[(u64, ReplayDecision)]) {
        let left: Vec<(u64, ReplayDecision)> =
            std::iter::from_fn(|| self.connection.poll_unanswered())
                .map(|(request, decision)| (request.tag, decision))
                .collect();
        assert_eq!(left, expected);
        assert_eq!((self.connection.in_flight(), self.connection.room(100)), (0, 0));
    }
}

const NO_WORD: Close = Close { notice: false, at_budget: false, cut: false, idle: false };

#[test]
fn answers_are_matched_in_their_order() {
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::HEAD)
        .sends(3, Kind::GET)
        .sends(4, Kind::GET)
        .hears("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        .hears("HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n")
        .notes(&["1: 200", "1: ab", "1: end", "2: 200", "2: end", "3: 204", "3: end", "4: 304", "4: end"]);
}

#[test]
fn interim_answers_come_before_the_one_they_announce() {
    story()
        .sends(1, Kind::GET)
        .hears("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        .hears("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .notes(&["1: interim 100", "1: interim 103", "1: 200", "1: end"]);
}

#[test]
fn chunks_lose_their_framing_and_trailers_follow() {
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::GET)
        .hears("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab")
        .hears("c\r\n2;x=y\r\nde\r\n0\r\nDigest: q")
        .hears("\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .notes(&[
            "1: 200",
            "1: ab",
            "1: c",
            "1: de",
            "1: trailer Digest=q",
            "1: end",
            "2: 200",
            "2: end",
        ]);
}

#[test]
fn a_body_until_close_is_the_last_answer() {
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::POST)
        .hears("HTTP/1.1 200 OK\r\n\r\nall of")
        .hears(" it")
        .hears_the_end(Close { notice: true, ..NO_WORD })
        .notes(&["1: 200", "1: all of", "1:  it", "1: end"])
        .leaves(&[(2, ReplayDecision::NotProcessed)]);
}

#[test]
fn after_101_the_bytes_are_somebody_elses() {
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::GET)
        .sends(3, Kind::POST)
        .hears_and(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nHELLO",
            Ok(Progress::Upgraded { rest: 5 }),
        )
        .notes(&["1: 101", "1: end"])
        .leaves(&[(2, ReplayDecision::Replay), (3, ReplayDecision::Uncertain)]);
}

#[test]
fn close_in_an_answer_means_the_others_were_not_processed() {
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::GET)
        .sends(3, Kind::POST)
        .hears_and(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n garbage",
            Ok(Progress::LastAnswer),
        )
        .notes(&["1: 200", "1: x", "1: end"])
        .leaves(&[(2, ReplayDecision::NotProcessed), (3, ReplayDecision::NotProcessed)]);
}

#[test]
fn the_last_answer_may_come_in_pieces() {
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::POST)
        .hears("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nab")
        .hears_and("cdgarbage behind the last answer", Ok(Progress::LastAnswer))
        .notes(&["1: 200", "1: ab", "1: cd", "1: end"])
        .leaves(&[(2, ReplayDecision::NotProcessed)]);
}

#[test]
fn after_a_bare_end_only_idempotent_requests_are_sent_again() {
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::POST)
        .sends(3, Kind::POST.idempotent(true))
        .sends(4, Kind::of_method("DELETE"))
        .hears_the_end(NO_WORD)
        .leaves(&[
            (1, ReplayDecision::Replay),
            (2, ReplayDecision::Uncertain),
            (3, ReplayDecision::Replay),
            (4, ReplayDecision::Replay),
        ]);
}

#[test]
fn an_end_at_the_known_budget_is_notice_enough() {
    let mut connection = Connection::new(&ConnectionLimits::default());
    connection.handle_sent(1, 4, Kind::POST, 0);
    connection.set_budget(Some(2));
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".repeat(2);
    assert_eq!(connection.handle_input(&answer, &mut ()), Ok(Progress::Open));
    let close = connection.handle_eof(&mut ());
    assert_eq!(close, Close { at_budget: true, ..NO_WORD });
    let decisions: Vec<ReplayDecision> =
        std::iter::from_fn(|| connection.poll_unanswered()).map(|(_, decision)| decision).collect();
    assert_eq!(decisions, [ReplayDecision::NotProcessed; 2]);
}

#[test]
fn no_request_is_sent_beyond_the_budget() {
    let mut connection = Connection::new(&ConnectionLimits::default());
    connection.set_budget(Some(100));
    assert_eq!(connection.room(64), 64);
    connection.handle_sent(1, 64, Kind::GET, 0);
    assert_eq!(connection.room(128), 36);
    connection.handle_sent(65, 36, Kind::GET, 1);
    assert_eq!((connection.room(1000), connection.is_open()), (0, false));
}

#[test]
fn an_idle_connection_ends_by_408_or_by_nothing_at_all() {
    let farewell = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let idle = Close { idle: true, ..NO_WORD };
    story().hears_and(farewell, Ok(Progress::LastAnswer)).leaves(&[]);
    story().hears_the_end(idle).leaves(&[]);
    // Cut in two: after the first byte no request may be sent.
    let (begin, end) = farewell.split_at(20);
    let half = story().hears(begin);
    assert_eq!(half.connection.room(10), 0);
    half.hears_and(end, Ok(Progress::LastAnswer)).leaves(&[]);
}

#[test]
fn a_408_that_crosses_a_request_is_no_answer_to_it_but_the_second_is() {
    let farewell = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    story()
        .sends(1, Kind::POST)
        .hears_and(farewell, Ok(Progress::LastAnswer))
        .notes(&[])
        .leaves(&[(1, ReplayDecision::NotProcessed)]);
    story()
        .sends(1, Kind::POST.replayed())
        .hears_and(farewell, Ok(Progress::LastAnswer))
        .notes(&["1: 408", "1: end"])
        .leaves(&[]);
}

#[test]
fn an_answer_cut_short_was_processed() {
    story()
        .sends(1, Kind::POST)
        .sends(2, Kind::GET)
        .hears("HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nabc")
        .hears_the_end(Close { cut: true, ..NO_WORD })
        .notes(&["1: 201", "1: abc"])
        .leaves(&[
            (1, ReplayDecision::Cut { status: 201, idempotent: false }),
            (2, ReplayDecision::Replay),
        ]);
    story()
        .sends(1, Kind::GET)
        .hears("HTTP/1.1 20")
        .hears_the_end(Close { cut: true, ..NO_WORD })
        .leaves(&[(1, ReplayDecision::Cut { status: 0, idempotent: true })]);
    // In the last answer: the requests after it were not processed all the same.
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::POST)
        .hears("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10\r\n\r\nabc")
        .hears_the_end(Close { cut: true, notice: true, ..NO_WORD })
        .leaves(&[
            (1, ReplayDecision::Cut { status: 200, idempotent: true }),
            (2, ReplayDecision::NotProcessed),
        ]);
}

#[test]
fn only_the_oldest_is_timed_out() {
    let mut story = story().sends(1, Kind::GET).sends(2, Kind::GET).sends(3, Kind::POST);
    assert_eq!(story.connection.handle_timeout(), NO_WORD);
    story.leaves(&[
        (1, ReplayDecision::TimedOut { idempotent: true }),
        (2, ReplayDecision::Replay),
        (3, ReplayDecision::Uncertain),
    ]);
}

#[test]
fn an_answer_nobody_asked_for_ends_the_connection() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    story().hears_and(answer, Err(ProtocolError::Unsolicited)).leaves(&[]);
    story()
        .sends(1, Kind::GET)
        .hears_and(&answer.repeat(2), Err(ProtocolError::Unsolicited))
        .notes(&["1: 200", "1: end"])
        .leaves(&[]);
    story().hears_and("hello", Err(ProtocolError::Unsolicited)).leaves(&[]);
}

#[test]
fn bad_answers_end_the_oldest_and_nobody_gets_a_wrong_one() {
    let head = "HTTP/1.1 200 OK\r\n";
    let malformed = |error| ProtocolError::Malformed(error);
    for (bytes, violation) in [
        ("SSH-2.0-OpenSSH_9.2\r\n".to_owned(), ProtocolError::NotHttp),
        ("\u{15}\u{3}\u{1}".to_owned(), ProtocolError::NotHttp),
        ("HTTP/2.0 200 OK\r\n\r\n".to_owned(), malformed(Error::Version)),
        ("HTTP/1.1 20x OK\r\n\r\n".to_owned(), malformed(Error::StatusCode)),
        ("HTTP/1.1 700 What\r\nContent-Length: 0\r\n\r\n".to_owned(), malformed(Error::StatusCode)),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n".to_owned(), malformed(Error::StartLine)),
        (
            format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            malformed(Error::ContentLengthRepeated),
        ),
        (
            format!("{head}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            malformed(Error::LengthAndCoding),
        ),
        (format!("{head}Content-Length: -1\r\n\r\n"), malformed(Error::ContentLength)),
        (
            format!("{head}Content-Length: 99999999999999999999\r\n\r\n"),
            malformed(Error::ContentLength),
        ),
        (
            format!("{head}Transfer-Encoding: gzip, chunked\r\n\r\n"),
            malformed(Error::TransferCodingUnknown),
        ),
        (format!("{head}Transfer-Encoding: chunked\r\n\r\nxyz\r\n"), malformed(Error::ChunkSize)),
        (
            format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n"),
            malformed(Error::ChunkFraming),
        ),
        (
            format!("{head}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
            malformed(Error::ChunkSize),
        ),
        (format!("{head}A b: c\r\n\r\n"), malformed(Error::HeaderName)),
        (format!("{head}A: b\nB: c\r\n\r\n"), malformed(Error::BareLineEnd)),
        (format!("{head}{}\r\n", "A: b\r\n".repeat(101)), malformed(Error::TooManyHeaders)),
        (format!("{head}A: {}", "b".repeat(64 << 10)), malformed(Error::HeadTooLong)),
    ] {
        let mut story = story().sends(1, Kind::GET).sends(2, Kind::GET).sends(3, Kind::POST);
        let result = story.connection.handle_input(bytes.as_bytes(), &mut story.notes);
        assert_eq!(result, Err(violation), "{bytes}");
        assert!(!story.notes.0.iter().any(|note| note.ends_with("end")), "{bytes}");
        assert!(violation.message().contains(". "), "what happened, and what to do");
        story.leaves(&[
            (1, ReplayDecision::ProtocolError(violation)),
            (2, ReplayDecision::Replay),
            (3, ReplayDecision::Uncertain),
        ]);
    }
}

#[test]
fn a_head_that_comes_byte_by_byte_is_an_answer_all_the_same() {
    let mut story = story().sends(1, Kind::GET);
    for byte in "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".split_inclusive(|_| true) {
        story = story.hears(byte);
    }
    story.notes(&["1: 200", "1: o", "1: k", "1: end"]);
}

#[test]
fn a_head_repeated_for_another_method_is_read_anew() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
    story()
        .sends(1, Kind::GET)
        .sends(2, Kind::HEAD)
        .sends(3, Kind::HEAD)
        .sends(4, Kind::GET)
        .hears(&format!("{head}ab{head}{head}{head}cd"))
        .notes(&[
            "1: 200", "1: ab", "1: end", "2: 200", "2: end", "3: 200", "3: end", "4: 200", "4: cd",
            "4: end",
        ]);
}

#[test]
fn a_connection_with_nothing_cut_is_small() {
    assert!(size_of::<Connection>() <= 320, "{}", size_of::<Connection>());
}
