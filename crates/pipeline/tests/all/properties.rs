//! Properties of every sequence of answers, however it is cut: each answer is complete and goes to its request.

use crate::fuzz_targets::{GatheredResponse, converse};
use dunlin_pipeline::{ConnectionLimits, Kind, Progress, ReplayDecision};
use dunlin_wire::http1::{ResponseWriter, Version, encode_chunk, encode_last_chunk};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Length,
    Chunked { piece: usize, trailer: bool },
    None,
}

#[derive(Clone, Debug)]
struct Exchange {
    kind: Kind,
    interim: bool,
    status: u16,
    framing: Framing,
    body: Vec<u8>,
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let kind = prop_oneof![4 => Just(Kind::GET), 1 => Just(Kind::POST), 1 => Just(Kind::HEAD)];
    let framing = prop_oneof![
        4 => Just(Framing::Length),
        2 => (1..40usize, any::<bool>())
            .prop_map(|(piece, trailer)| Framing::Chunked { piece, trailer }),
        1 => Just(Framing::None),
    ];
    // Few different statuses and lengths, so that heads repeat.
    let body = prop_oneof![Just(b"the same again".to_vec()), vec(any::<u8>(), 0..100)];
    (kind, any::<bool>(), prop_oneof![4 => Just(200u16), 1 => Just(404)], framing, body).prop_map(
        |(kind, interim, status, framing, body)| Exchange {
            kind,
            interim: interim && status == 404,
            status: if framing == Framing::None { 204 } else { status },
            framing,
            body,
        },
    )
}

impl Exchange {
    fn write(&self, out: &mut Vec<u8>, last: bool) {
        if self.interim {
            out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        }
        let head = self.kind.is_head();
        let writer = ResponseWriter::new(out, self.status).keep_alive(!last, Version::Http11);
        match self.framing {
            Framing::None => writer.no_body(),
            Framing::Length if head => writer.content_length(self.body.len() as u64),
            Framing::Length => writer.body(&self.body),
            Framing::Chunked { .. } if head => writer.chunked(),
            Framing::Chunked { piece, trailer } => {
                writer.chunked();
                self.body.chunks(piece).for_each(|data| encode_chunk(out, data));
                encode_last_chunk(out, if trailer { &[("Digest", "x")] } else { &[] });
            }
        }
    }

    fn answer(&self) -> GatheredResponse {
        let bodiless = self.kind.is_head() || self.framing == Framing::None;
        let trailer = matches!(self.framing, Framing::Chunked { trailer: true, .. }) && !bodiless;
        GatheredResponse {
            status: self.status,
            body: if bodiless { Vec::new() } else { self.body.clone() },
            trailers: if trailer { vec![("Digest".into(), b"x".to_vec())] } else { Vec::new() },
            ended: true,
        }
    }
}

/// Parts of answers and complete ones, to be combined in any order.
const WORDS: &[&str] = &[
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
    "HTTP/1.1 304 Not Modified\r\n",
    "Content-Length: 3\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "\r\n",
    "3\r\nabc\r\n",
    "0\r\n\r\n",
    "0\r\nA: b\r\n\r\n",
    "abc",
    "\r",
    "\n",
    "H",
];

proptest! {
    #[test]
    fn whatever_a_server_says_every_request_comes_to_one_end(
        settings: u8,
        kinds: u8,
        words in vec(0..WORDS.len(), 0..12),
    ) {
        let mut data = vec![settings, kinds];
        words.iter().for_each(|&word| data.extend_from_slice(WORDS[word].as_bytes()));
        crate::fuzz_targets::answers(&data);
    }

    #[test]
    fn every_answer_goes_to_its_request(
        exchanges in vec(exchange(), 0..30),
        piece in prop_oneof![1..8usize, 1..2000usize],
        unanswered in 0..5usize,
        closes: bool,
    ) {
        let mut bytes = Vec::new();
        for (index, exchange) in exchanges.iter().enumerate() {
            exchange.write(&mut bytes, closes && index + 1 == exchanges.len());
        }
        let mut kinds: Vec<Kind> = exchanges.iter().map(|exchange| exchange.kind).collect();
        kinds.extend([Kind::GET, Kind::POST].into_iter().cycle().take(unanswered));
        let outcome = converse(&kinds, &ConnectionLimits::default(), &bytes, piece);
        let expected: Vec<GatheredResponse> = exchanges.iter().map(Exchange::answer).collect();
        prop_assert_eq!(outcome.judge.answers, expected);
        let notice = closes && !exchanges.is_empty();
        let progress = if notice { Progress::LastAnswer } else { Progress::Open };
        prop_assert_eq!(outcome.result, Ok(progress));
        for (tag, decision) in outcome.decisions {
            let expected = match kinds[tag as usize].is_idempotent() {
                _ if notice => ReplayDecision::NotProcessed,
                true => ReplayDecision::Replay,
                false => ReplayDecision::Uncertain,
            };
            prop_assert_eq!(decision, expected);
        }
    }

    #[test]
    fn a_connection_cut_anywhere_loses_no_request(
        exchanges in vec(exchange(), 1..12),
        cut in any::<prop::sample::Index>(),
        piece in 1..200usize,
    ) {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for exchange in &exchanges {
            exchange.write(&mut bytes, false);
            ends.push(bytes.len());
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        let kinds: Vec<Kind> = exchanges.iter().map(|exchange| exchange.kind).collect();
        // `converse` checks that each request ends once.
        let outcome = converse(&kinds, &ConnectionLimits::default(), &bytes, piece);
        let whole = ends.iter().filter(|&&end| end <= bytes.len()).count();
        prop_assert_eq!(outcome.decisions.len(), exchanges.len() - whole);
        for (answer, exchange) in outcome.judge.answers.iter().zip(&exchanges).take(whole) {
            prop_assert_eq!(answer, &exchange.answer());
        }
    }
}
