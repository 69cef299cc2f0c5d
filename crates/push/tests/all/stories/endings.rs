//! How pushes end when something is in the way.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dunlin_push::apns::Apns;
use dunlin_push::rustls::AlertDescription;
use dunlin_push::{
    Connect, Connecting, Connections, Io, NotSent, Outcome, SenderConfig, Stage, Uncertain,
};
use dunlin_wire::http2::frame;
use dunlin_wire::http2::{ErrorCode, Setting};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::harness::{Act, Script, Server, push, send_all};

fn script(act: impl Fn(usize) -> Act + Send + Sync + 'static) -> Script {
    Script { act: Arc::new(act), rtt: Duration::from_millis(20), ..Script::default() }
}

const ONE: Connections = Connections::Fixed(1);

#[tokio::test(start_paused = true)]
async fn a_push_is_accepted_or_rejected_with_apples_word() {
    let server = Server::new(script(|number| match number {
        0 => Act::Accept,
        1 => Act::Refuse(410, "Unregistered"),
        _ => Act::Refuse(400, "SomethingNew"),
    }));
    let apns = server.sender(ONE);
    let mut feed = apns.follow_dead_tokens();
    let Outcome::Accepted(accepted) = apns.send(&push(1, 100)).await else { panic!() };
    assert_eq!(accepted.id, "ID");
    let Outcome::Rejected(rejected) = apns.send(&push(2, 100)).await else { panic!() };
    assert_eq!((rejected.status, &*rejected.reason), (410, "Unregistered"));
    assert_eq!(rejected.timestamp_ms, Some(9));
    let dead = feed.recv().await.unwrap();
    assert_eq!((dead.token, dead.timestamp_ms), (format!("{:064x}", 2), Some(9)));
    let Outcome::Rejected(rejected) = apns.send(&push(3, 100)).await else { panic!() };
    assert_eq!((rejected.status, &*rejected.reason), (400, "SomethingNew"));
}

#[tokio::test(start_paused = true)]
async fn a_token_once_dead_takes_the_connection_of_suspects() {
    let server = Server::new(script(|number| match number {
        0 => Act::Refuse(400, "BadDeviceToken"),
        _ => Act::Accept,
    }));
    let apns = server.sender(ONE);
    apns.send(&push(1, 100)).await;
    assert_eq!(server.ledger.lock().unwrap().connections, 1);
    let outcome = apns.send(&push(1, 100)).await;
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome:?} {:?}", apns.metrics());
    assert_eq!(server.ledger.lock().unwrap().connections, 2);
    // It was accepted: no suspect any more.
    apns.send(&push(1, 100)).await;
    let answered: Vec<u64> = apns.metrics().connections.iter().map(|c| c.answered).collect();
    assert_eq!(answered, [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_did_not_process_is_sent_again_at_once() {
    for act in [Act::RefuseStream, Act::GoAway] {
        let server = Server::new(script(move |number| if number == 3 { act } else { Act::Accept }));
        let apns = server.sender(ONE);
        let pushes: Vec<_> = (0..50).map(|number| push(number, 100)).collect();
        let outcomes = send_all(&apns, &pushes).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
        assert!(pushes.iter().all(|push| server.accepted(push) == 1), "{act:?}");
    }
}

/// A connection that is reset, once it is broken, with an unread GOAWAY that says that nothing was processed.
struct Reset {
    broken: Arc<AtomicBool>,
    unread: Vec<u8>,
}

impl AsyncRead for Reset {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Poll::Pending;
        }
        buffer.put_slice(&std::mem::take(&mut self.unread));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Reset {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.broken.load(Relaxed) {
            return Poll::Ready(Ok(bytes.len()));
        }
        frame::encode_go_away(&mut self.unread, 0, ErrorCode::NO_ERROR, b"");
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_before_a_reset_is_heard_though_writing_fails_first() {
    /// The first connection is reset, the others are the server's.
    struct First(Mutex<Option<Reset>>, Server);
    impl Connect for First {
        fn connect(&self, stage: Stage) -> Connecting<'_> {
            match self.0.lock().unwrap().take() {
                Some(reset) => Box::pin(async { Ok(Box::new(reset) as Io) }),
                None => self.1.connect(stage),
            }
        }
    }
    let broken = Arc::new(AtomicBool::new(false));
    let mut unread = Vec::new();
    frame::encode_settings(&mut unread, &[(Setting::MaxConcurrentStreams, 100)]);
    let first = Reset { broken: Arc::clone(&broken), unread };
    let server = Server::new(script(|_| Act::Accept));
    let connect = First(Mutex::new(Some(first)), server.clone());
    let config = SenderConfig { connections: ONE, ..SenderConfig::default() };
    let apns = Apns::start_with("push.test".to_owned(), None, connect, config);
    let resets = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        broken.store(true, Relaxed);
        apns.send(&push(2, 100)).await
    };
    let first = push(1, 100);
    let (one, two) = tokio::join!(apns.send(&first), resets);
    assert!(matches!((&one, &two), (Outcome::Accepted(_), Outcome::Accepted(_))), "{one}, {two}");
    assert_eq!(server.accepted(&first), 1, "by the next connection");
}

/// How a peer that has processed nothing ends a connection after it has taken a request.
#[derive(Clone, Copy, Debug)]
enum Farewell {
    /// An alert about our certificate: its handshake was not complete.
    Alert,
    /// A GOAWAY before its settings.
    GoAway,
}

/// A connection to that peer.
struct Leaving {
    farewell: Farewell,
    taken: usize,
    is_over: bool,
    waker: Option<Waker>,
}

impl AsyncRead for Leaving {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // The preface has less, the request more.
        if self.taken < 150 {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let farewell = self.farewell;
        match farewell {
            Farewell::Alert => {
                let alert = AlertDescription::CertificateRevoked;
                let error = rustls::Error::AlertReceived(alert);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
            Farewell::GoAway if !self.is_over => {
                let mut bytes = Vec::new();
                frame::encode_go_away(&mut bytes, 0, ErrorCode::ENHANCE_YOUR_CALM, b"full");
                buffer.put_slice(&bytes);
                self.is_over = true;
            }
            Farewell::GoAway => {}
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Leaving {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.taken += bytes.len();
        self.waker.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn push_at_a_peer_that_refuses_the_connection_goes_to_the_next_one_unmarked() {
    struct First(Mutex<Option<Leaving>>, Server);
    impl Connect for First {
        fn connect(&self, stage: Stage) -> Connecting<'_> {
            match self.0.lock().unwrap().take() {
                Some(leaving) => Box::pin(async { Ok(Box::new(leaving) as Io) }),
                None => self.1.connect(stage),
            }
        }
    }
    for farewell in [Farewell::Alert, Farewell::GoAway] {
        let first = Leaving { farewell, taken: 0, is_over: false, waker: None };
        let server = Server::new(script(|_| Act::Accept));
        let connect = First(Mutex::new(Some(first)), server.clone());
        let config = SenderConfig { connections: ONE, ..SenderConfig::default() };
        let apns = Apns::start_with("push.test".to_owned(), None, connect, config);
        let outcome = apns.send(&push(1, 200)).await;
        let Outcome::Accepted(accepted) = outcome else { panic!("{farewell:?}: {outcome}") };
        assert!(!accepted.possible_duplicate, "{farewell:?}");
        assert_eq!(server.accepted(&push(1, 200)), 1, "{farewell:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn connection_that_refuses_every_stream_is_left_for_another_that_serves() {
    /// The first connection leads to a server that refuses, the others to one that serves.
    struct Two(AtomicBool, Server, Server);
    impl Connect for Two {
        fn connect(&self, stage: Stage) -> Connecting<'_> {
            let server = if self.0.swap(true, Relaxed) { &self.2 } else { &self.1 };
            server.connect(stage)
        }
    }
    let refuses = Server::new(script(|_| Act::RefuseStream));
    let serves = Server::new(script(|_| Act::Accept));
    let connect = Two(AtomicBool::new(false), refuses.clone(), serves.clone());
    let config = SenderConfig { connections: ONE, ..SenderConfig::default() };
    let apns = Apns::start_with("push.test".to_owned(), None, connect, config);
    let pushes: Vec<_> = (0..20).map(|number| push(number, 100)).collect();
    let outcomes = send_all(&apns, &pushes).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
    assert_eq!(refuses.ledger.lock().unwrap().connections, 1);
    assert!(pushes.iter().all(|push| serves.accepted(push) == 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_without_an_answer_is_uncertain_and_resent_only_if_allowed() {
    for act in [Act::AcceptAndReset, Act::Cut] {
        let server = Server::new(script(move |number| if number == 0 { act } else { Act::Accept }));
        let apns = server.sender(ONE);
        let outcome = apns.send(&push(1, 100)).await;
        let why = if act == Act::Cut { Uncertain::ConnectionLost } else { Uncertain::Reset };
        assert_eq!(outcome, Outcome::Uncertain(why));

        let server = Server::new(script(move |number| if number == 0 { act } else { Act::Accept }));
        let apns = server.sender(ONE);
        let mut allowed = push(1, 100);
        allowed.collapse_id = Some("score".to_owned());
        let Outcome::Accepted(accepted) = apns.send(&allowed).await else { panic!() };
        assert!(accepted.possible_duplicate);
        assert_eq!(server.accepted(&allowed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_streams_is_asked_ever_more_rarely() {
    let server = Server::new(script(|number| match number {
        0..400 => Act::RefuseStream,
        _ => Act::Accept,
    }));
    let apns = server.sender(ONE);
    let pushes: Vec<_> = (0..50).map(|number| push(number, 100)).collect();
    let begin = Instant::now();
    let outcomes = send_all(&apns, &pushes).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
    // Eight refusals each: 20 + 40 + … + 1,280 ms, more or less.
    assert!(begin.elapsed() > Duration::from_secs(1), "{:?}", begin.elapsed());

    let server = Server::new(script(|_| Act::RefuseStream));
    let apns = server.sender(ONE);
    let Outcome::NotSent(why) = apns.send(&push(1, 100)).await else { panic!() };
    assert_eq!(why, NotSent::Connect("the peer refuses every stream".to_owned()));
    assert!(server.ledger.lock().unwrap().arrived.len() < 40);
}

#[tokio::test(start_paused = true)]
async fn a_push_that_left_just_before_its_deadline_is_answered() {
    let server = Server::new(script(|_| Act::Accept));
    let apns = server.sender(ONE);
    let mut late = push(1, 100);
    // A connection is there after none of it, an answer after 20 ms.
    late.timeout = Duration::from_millis(10);
    let outcome = apns.send(&late).await;
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_comes_is_uncertain_at_the_deadline() {
    let server = Server::new(script(|_| Act::AcceptSilently));
    let apns = server.sender(ONE);
    let mut push = push(1, 100);
    push.timeout = Duration::from_secs(3);
    let begin = Instant::now();
    assert_eq!(apns.send(&push).await, Outcome::Uncertain(Uncertain::Deadline));
    assert!(begin.elapsed() < Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_asked_again_until_the_deadline() {
    let server = Server::new(script(|number| match number {
        0 | 1 => Act::Refuse(503, "ServiceUnavailable"),
        2 => Act::Refuse(429, "TooManyRequests"),
        _ => Act::Accept,
    }));
    let apns = server.sender(ONE);
    let begin = Instant::now();
    assert!(matches!(apns.send(&push(1, 100)).await, Outcome::Accepted(_)));
    let waited = begin.elapsed();
    assert!(
        waited > Duration::from_secs(7) && waited < Duration::from_secs(9),
        "1 + 2 + 4 s: {waited:?}"
    );

    let server = Server::new(script(|_| Act::Refuse(503, "ServiceUnavailable")));
    let apns = server.sender(ONE);
    let Outcome::Rejected(rejected) = apns.send(&push(1, 100)).await else { panic!() };
    assert_eq!(rejected.status, 503);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_leads_nowhere_is_reported_at_the_deadline() {
    struct Nowhere;
    impl Connect for Nowhere {
        fn connect(&self, _: Stage) -> Connecting<'_> {
            Box::pin(async { Err("push.test cannot be looked up".to_owned().into()) })
        }
    }
    let config = SenderConfig::default();
    let apns = Apns::start_with("push.test".to_owned(), None, Nowhere, config);
    let mut push = push(1, 100);
    push.timeout = Duration::from_secs(5);
    let why = "push.test cannot be looked up".to_owned();
    assert_eq!(apns.send(&push).await, Outcome::NotSent(NotSent::Connect(why)));
    assert!(apns.metrics().failed >= 4, "and was tried again, ever more slowly");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_makes_callers_wait_and_loses_nothing() {
    let server = Server::new(script(|_| Act::Accept));
    let config = SenderConfig { queue_bytes_max: 10_000, connections: ONE, ..Default::default() };
    let apns = Apns::start_with("push.test".to_owned(), None, server.clone(), config);
    let pushes: Vec<_> = (0..500).map(|number| push(number, 1_000)).collect();
    let outcomes = send_all(&apns, &pushes).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
    assert!(pushes.iter().all(|push| server.accepted(push) == 1));
}

#[tokio::test(start_paused = true)]
async fn a_closed_sender_ends_what_it_has() {
    let server =
        Server::new(script(|number| if number == 0 { Act::AcceptSilently } else { Act::Accept }));
    let apns = server.sender(ONE);
    let pushes: Vec<_> = (0..20).map(|number| push(number, 100)).collect();
    let closing = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        apns.close();
    };
    let (outcomes, ()) = tokio::join!(send_all(&apns, &pushes), closing);
    assert!(matches!(outcomes[0], Outcome::Uncertain(_)), "its time to be answered is over");
    assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
    assert_eq!(apns.send(&push(1, 100)).await, Outcome::NotSent(NotSent::Closed));
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_kept_and_used_again() {
    let server = Server::new(script(|_| Act::Accept));
    let apns = server.sender(Connections::Auto { max: 4 });
    apns.send(&push(1, 100)).await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    apns.send(&push(2, 100)).await;
    assert_eq!(server.ledger.lock().unwrap().connections, 1);
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_is_refused_is_used_no_more_but_for_one_push_now_and_then() {
    let server = Server::new(script(|number| match number {
        0 => Act::Accept,
        1..=4 => Act::Refuse(403, "InvalidProviderToken"),
        // The new key has come round.
        _ => Act::Accept,
    }));
    let arrived = || server.ledger.lock().unwrap().arrived.len();
    let apns = server.sender(ONE);
    assert!(matches!(apns.send(&push(0, 100)).await, Outcome::Accepted(_)));
    for number in 1..=3 {
        let Outcome::Rejected(rejected) = apns.send(&push(number, 100)).await else { panic!() };
        assert!(rejected.advice.unwrap().contains("key id and team id"));
    }
    // All that waits ends with the reason and the remedy, and nothing is sent.
    let pushes: Vec<_> = (0..500).map(|number| push(number, 100)).collect();
    for outcome in send_all(&apns, &pushes).await {
        let Outcome::NotSent(NotSent::Credential(why)) = outcome else { panic!("{outcome}") };
        assert!(why.contains("403 InvalidProviderToken: check key id and team id"), "{why}");
    }
    assert_eq!(arrived(), 4);
    // One tries, in vain.
    tokio::time::sleep(Duration::from_secs(31)).await;
    let outcomes = send_all(&apns, &pushes).await;
    let tried = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Rejected(_))).count();
    assert_eq!((tried, arrived()), (1, 5));
    // Twice as long later one tries and passes, and with it those behind.
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(matches!(apns.send(&push(1, 100)).await, Outcome::Accepted(_)));
    let outcomes = send_all(&apns, &pushes).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
}

#[tokio::test(start_paused = true)]
async fn a_window_that_is_never_returned_is_the_end_of_its_connection_and_not_of_a_push() {
    let script = Script { window_more: 0, window_return: u32::MAX, ..script(|_| Act::Accept) };
    let server = Server::new(script);
    let apns = server.sender(ONE);
    let begin = Instant::now();
    let pushes: Vec<_> = (0..1_000).map(|number| push(number, 437)).collect();
    let outcomes = send_all(&apns, &pushes).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Accepted(_))));
    assert!(pushes.iter().all(|push| server.accepted(push) == 1));
    // A window holds 149 of them, and a little of the next one.
    assert_eq!(server.ledger.lock().unwrap().connections, 7);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}
