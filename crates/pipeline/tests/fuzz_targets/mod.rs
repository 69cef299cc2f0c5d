//! Fuzz targets and the properties that they check.
//!
//! Shared by `fuzz/`, which explores, and `tests/fuzz_corpus.rs`, which replays the seeds.

use dunlin_pipeline::{
    Connection, ConnectionLimits, Head, InFlight, Kind, Progress, ProtocolError, ReplayDecision,
    Sink,
};

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets with their names; `fuzz/corpus/NAME` holds the seeds of each.
pub const TARGETS: &[(&str, Target)] = &[("pipeline_answers", answers)];

const LIMITS: ConnectionLimits = ConnectionLimits {
    head_bytes_max: 1024,
    headers_max: 16,
    body_bytes_max: 4096,
    chunk_overhead_bytes_max: 256,
};

const KINDS: [Kind; 4] = [Kind::GET, Kind::POST, Kind::HEAD, Kind::POST.idempotent(true)];

/// The answer to one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatheredResponse {
    pub status: u16,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
    pub ended: bool,
}

/// Checks the order of a connection's events, and gathers the answers.
#[derive(Default)]
pub struct Judge {
    pub answers: Vec<GatheredResponse>,
    interim: usize,
    under_way: bool,
}

impl Judge {
    fn answer(&mut self, request: &InFlight) -> &mut GatheredResponse {
        assert!(self.under_way, "a body has a head");
        assert_eq!(request.tag as usize, self.answers.len() - 1, "in the order of the requests");
        self.answers.last_mut().expect("its head came")
    }
}

impl Sink for Judge {
    fn on_head(&mut self, request: &InFlight, head: &Head<'_>) {
        assert!(!self.under_way, "one answer at a time");
        assert_eq!(request.tag as usize, self.answers.len(), "in the order of the requests");
        assert!(head.bytes.ends_with(b"\r\n\r\n") && head.bytes.len() <= LIMITS.head_bytes_max);
        assert!(head.status >= 200 || head.status == 101);
        self.under_way = true;
        self.answers.push(GatheredResponse { status: head.status, ..GatheredResponse::default() });
    }

    fn on_interim(&mut self, request: &InFlight, head: &Head<'_>) {
        assert!(!self.under_way && (100..200).contains(&head.status) && head.status != 101);
        assert_eq!(request.tag as usize, self.answers.len());
        self.interim += 1;
    }

    fn on_body(&mut self, request: &InFlight, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        assert!(!request.kind.is_head(), "an answer to HEAD has no body");
        self.answer(request).body.extend_from_slice(bytes);
    }

    fn on_trailer(&mut self, request: &InFlight, name: &str, value: &[u8]) {
        self.answer(request).trailers.push((name.to_owned(), value.to_owned()));
    }

    fn on_end(&mut self, request: &InFlight) {
        self.answer(request).ended = true;
        self.under_way = false;
    }
}

/// The result of a connection.
pub struct Outcome {
    pub judge: Judge,
    pub result: Result<Progress, ProtocolError>,
    /// Bytes consumed as HTTP.
    taken: usize,
    pub decisions: Vec<(u64, ReplayDecision)>,
}

/// Sends requests of these kinds, passes `data` to the connection in pieces, then ends the connection.
pub fn converse(kinds: &[Kind], limits: &ConnectionLimits, data: &[u8], piece: usize) -> Outcome {
    let mut connection = Connection::new(limits);
    for (tag, &kind) in kinds.iter().enumerate() {
        connection.handle_sent(tag as u64, 1, kind, tag as u64 / 3);
    }
    let mut judge = Judge::default();
    let mut result = Ok(Progress::Open);
    let mut taken = 0;
    for bytes in data.chunks(piece) {
        result = connection.handle_input(bytes, &mut judge);
        taken += bytes.len();
        match result {
            Ok(Progress::Open) => {
                assert!(connection.poll_unanswered().is_none(), "not before the connection ends");
            }
            Ok(Progress::Upgraded { rest }) => {
                taken -= rest;
                break;
            }
            Ok(Progress::LastAnswer) | Err(_) => break,
        }
    }
    if result == Ok(Progress::Open) {
        connection.handle_eof(&mut judge);
    }
    assert_eq!(connection.room(1000), 0, "nothing leaves on a connection that is over");
    let decisions: Vec<(u64, ReplayDecision)> = std::iter::from_fn(|| connection.poll_unanswered())
        .map(|(request, decision)| (request.tag, decision))
        .collect();

    // Each request ends once: answered, or reported as unanswered, in order.
    let ended = judge.answers.iter().filter(|answer| answer.ended).count();
    assert_eq!(connection.answered() as usize, ended);
    let left: Vec<u64> = decisions.iter().map(|&(tag, _)| tag).collect();
    assert_eq!(left, (ended as u64..kinds.len() as u64).collect::<Vec<u64>>());
    for (at, &(tag, decision)) in decisions.iter().enumerate() {
        let kind = kinds[tag as usize];
        match decision {
            ReplayDecision::NotProcessed => {}
            ReplayDecision::Replay => assert!(kind.is_idempotent()),
            ReplayDecision::Uncertain => assert!(!kind.is_idempotent()),
            ReplayDecision::Cut { idempotent, .. } | ReplayDecision::TimedOut { idempotent } => {
                assert!(at == 0 && idempotent == kind.is_idempotent());
            }
            ReplayDecision::ProtocolError(violation) => {
                assert!(at == 0 && result == Err(violation));
            }
        }
    }
    Outcome { judge, result, taken, decisions }
}

/// Passes any input to a connection with a few requests: the result does not depend on how the input is cut, and every
/// request ends once.
pub fn answers(data: &[u8]) {
    let Some((&[settings, kinds], data)) = data.split_first_chunk() else { return };
    let kinds: Vec<Kind> =
        (0..settings % 5).map(|index| KINDS[usize::from(kinds >> (2 * index % 8) & 3)]).collect();
    let whole = converse(&kinds, &LIMITS, data, usize::MAX);
    let cut = converse(&kinds, &LIMITS, data, usize::from(settings / 5) % 16 + 1);
    let ended = |outcome: &Outcome| -> Vec<GatheredResponse> {
        outcome.judge.answers.iter().filter(|answer| answer.ended).cloned().collect()
    };
    assert_eq!(ended(&whole), ended(&cut));
    // Errors may be found earlier in one piece than in many. Without errors, the results are equal.
    if whole.result.is_ok() {
        assert_eq!(whole.result.is_ok(), cut.result.is_ok());
        assert_eq!(whole.judge.answers, cut.judge.answers);
        assert_eq!(whole.judge.interim, cut.judge.interim);
        assert_eq!(whole.decisions, cut.decisions);
        if matches!(whole.result, Ok(Progress::Upgraded { .. })) {
            assert_eq!(whole.taken, cut.taken);
        }
    }
}
