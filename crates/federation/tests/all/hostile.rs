use dunlin_federation::{
    CloseCode, Event, Fragment, Frame, FrameReader, LinkId, Message, NewLink, Peer, PeerConfig,
    Resume, Side,
};

const LINK: LinkId = LinkId(1);

fn resume() -> Resume {
    Resume { stream: 9, base: 1, credit: 1 << 20, ..Resume::default() }
}

/// A peer with a link, and a script for the other end.
struct Victim(Peer);

impl Victim {
    fn new() -> Victim {
        let mut peer = Peer::new("a.example", "b.example", PeerConfig::default(), (5, 5));
        let reader = FrameReader::default();
        peer.handle_link(0, NewLink { id: LINK, side: Side::Listener, begun_ms: 0, reader });
        peer.poll_transmit(0, &mut Vec::new(), 1 << 20);
        Victim(peer)
    }

    fn resumed() -> Victim {
        let mut victim = Victim::new();
        victim.says(&[Frame::Resume(resume())]);
        victim
    }

    fn says(&mut self, frames: &[Frame<'_>]) {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        self.0.handle_data(1, LINK, &bytes);
    }

    /// Whether the link has ended for a violation.
    fn has_closed(&mut self) -> bool {
        while let Some(event) = self.0.poll_event() {
            if event == Event::Close(LINK) {
                let words = self.0.poll_last_words(LINK).unwrap();
                let mut reader = FrameReader::default();
                reader.push(&words);
                let Ok(Some(Frame::Close(close))) = reader.next(1 << 14) else { panic!() };
                assert_eq!(close.code, CloseCode::Protocol);
                return true;
            }
        }
        false
    }
}

fn body() -> Box<[u8]> {
    Message { to: "bob".into(), data: b"{}".to_vec(), ..Message::default() }.encode()
}

fn fragment(seq: u64, bytes: &[u8], total: usize) -> Frame<'_> {
    Frame::Fragment(Fragment { seq, total: total as u32, bytes })
}

#[test]
fn acknowledgement_of_what_was_never_sent_ends_the_link_and_loses_nothing() {
    let mut victim = Victim::resumed();
    victim.0.push(0, 1, body()).unwrap();
    victim.says(&[Frame::Ack { taken: 1 }]);
    assert!(victim.has_closed());
    assert_eq!(victim.0.stats().queued, 1);
    // Neither at the beginning of a link.
    let mut victim = Victim::new();
    victim.says(&[Frame::Resume(Resume { known: 5, taken: 7, ..resume() })]);
    assert!(victim.has_closed());
    // A failure of what was not sent is no result.
    let mut victim = Victim::resumed();
    victim.0.push(0, 1, body()).unwrap();
    victim.says(&[Frame::Failed { seq: 1, reason: 3 }, Frame::Failed { seq: 99, reason: 3 }]);
    assert!(!victim.has_closed());
    assert_eq!(victim.0.poll_event(), None);
}

#[test]
fn more_than_the_credit_ends_the_link() {
    let mut victim = Victim::resumed();
    let bytes = vec![b'x'; 16 << 10];
    let mut seq = 0;
    let closed = (0..2_000).any(|_| {
        seq += 1;
        victim.says(&[fragment(seq, &bytes, bytes.len())]);
        // Nothing is taken, as by a recipient that is blocked.
        let mut closed = false;
        while let Some(event) = victim.0.poll_event() {
            closed |= event == Event::Close(LINK);
        }
        closed
    });
    assert!(closed);
}

#[test]
fn peer_without_credit_for_us_fills_no_memory() {
    let mut victim = Victim::new();
    victim.says(&[Frame::Resume(Resume { credit: 0, ..resume() })]);
    let mut accepted = 0;
    for seq in 1.. {
        if victim.0.push(0, seq, vec![0; 1 << 20].into()).is_err() {
            break;
        }
        victim.0.handle_stored(seq);
        accepted += 1;
    }
    assert!(accepted <= 64);
    let mut out = Vec::new();
    victim.0.poll_transmit(2, &mut out, 1 << 20);
    assert!(out.len() < 100, "control frames go: {}", out.len());
}

#[test]
fn violations_end_the_link() {
    let whole = body();
    let cases: Vec<(&str, Vec<Frame<'_>>)> = vec![
        ("a gap", vec![fragment(2, &whole, whole.len())]),
        (
            "a number twice",
            vec![fragment(1, &whole, whole.len()), fragment(1, &whole, whole.len())],
        ),
        ("nothing of a message", vec![fragment(1, b"", 7)]),
        ("more than its total", vec![fragment(1, b"abc", 2)]),
        ("another total", vec![fragment(1, b"abc", 7), fragment(1, b"abc", 8)]),
        ("a message of a gigabyte", vec![fragment(1, b"abc", 1 << 30)]),
        ("many begun", (1..=5).map(|seq| fragment(seq, b"abc", 100)).collect()),
        ("a second beginning", vec![Frame::Resume(resume())]),
        ("a signature", vec![Frame::Auth { signature: [0; 64] }]),
        ("a skip ahead", vec![Frame::Skip { seq: 1 << 60 }]),
    ];
    for (case, frames) in cases {
        let mut victim = Victim::resumed();
        victim.says(&frames);
        assert!(victim.has_closed(), "{case}");
    }
    let mut victim = Victim::new();
    victim.says(&[Frame::Ack { taken: 0 }]);
    assert!(victim.has_closed(), "a frame before the streams continue");
}

#[test]
fn message_that_cannot_be_read_fails_alone() {
    let mut victim = Victim::resumed();
    let whole = body();
    victim.says(&[fragment(1, b"junk", 4), fragment(2, &whole, whole.len())]);
    let events: Vec<Event> = std::iter::from_fn(|| victim.0.poll_event()).collect();
    assert!(events.contains(&Event::Taken { stream: 9, taken: 1 }));
    assert!(events.iter().any(|event| matches!(event, Event::Deliver { seq: 2, .. })));
}

#[test]
fn link_that_is_silent_is_asked_and_given_up() {
    let mut victim = Victim::resumed();
    let mut out = Vec::new();
    victim.0.poll_transmit(1, &mut out, 1 << 20);
    out.clear();
    victim.0.handle_timeout(10_001);
    victim.0.poll_transmit(10_001, &mut out, 1 << 20);
    assert_eq!(out, [0, 0, 0, 1, 9], "a ping");
    victim.0.handle_timeout(30_001);
    assert!(std::iter::from_fn(|| victim.0.poll_event()).any(|of| of == Event::Close(LINK)));
}
