//! Tests of the fault profile, and that the ledger records the outcome even when the sender gets no answer.

use std::time::{Duration, Instant};

use dunlin_simulate::apns::{
    AnswerTime, Behaviour, Config, FlipStreams, GoAway, Order, PeriodicDelay, ReplyOutcome,
    Simulator, SlowDown, Unavailable,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::sender::{Sender, TIMEOUT, TOKEN, plain, read, scenario};

const BODY: &[u8] = br#"{"aps":{}}"#;

/// Waits until the stream limit is `limit`: SETTINGS arrive after the answer that caused them.
async fn streams(sender: &Sender, limit: usize) {
    while sender.requests.current_max_send_streams() != limit {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn one_stream_until_the_first_push_is_accepted_then_a_thousand() {
    let simulator = plain(Behaviour::default());
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        let dead = format!("dead{}", &TOKEN[4..]);
        assert_eq!(sender.push(&dead, &[]).await.status, 410);
        assert_eq!(sender.push(&dead, &[]).await.status, 410);
        assert_eq!(sender.requests.current_max_send_streams(), 1);
        assert_eq!(sender.push(TOKEN, &[]).await.status, 200);
        streams(&sender, 1_000).await;
    });
}

#[test]
fn the_stream_limit_is_lowered_after_a_4xx_and_flips_under_load() {
    let slow_down = SlowDown { streams: 7, answers: 2 };
    let simulator = plain(Behaviour { slow_down, ..Behaviour::default() });
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        sender.push(TOKEN, &[]).await;
        streams(&sender, 1_000).await;
        sender.push(&format!("bad0{}", &TOKEN[4..]), &[]).await;
        streams(&sender, 7).await;
        sender.push(TOKEN, &[]).await;
        assert_eq!(sender.requests.current_max_send_streams(), 7);
        sender.push(TOKEN, &[]).await;
        streams(&sender, 1_000).await;

        let flip_streams = FlipStreams { every: 3, low: 2 };
        simulator.set_behaviour(Behaviour { flip_streams, ..Behaviour::default() }).unwrap();
        let mut sender = Sender::connect(&simulator).await;
        for limit in [2, 1_000, 2] {
            for _ in 0..3 {
                sender.push(TOKEN, &[]).await;
            }
            streams(&sender, limit).await;
        }
    });
}

#[test]
fn lost_half_and_reset_answers_are_accepted_pushes() {
    let behaviour = Behaviour {
        lose_answer_every: 3,
        half_answer_every: 4,
        reset_every: 5,
        reset_code: 2,
        ..Behaviour::default()
    };
    let simulator = plain(behaviour);
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        sender.push(TOKEN, &[]).await;
        let mut answers = Vec::new();
        for _ in 2..=6 {
            answers.push(sender.begin(TOKEN, &[], BODY).await.unwrap());
        }
        // The answer to the sixth is lost: a later push shows that it was processed.
        sender.push(TOKEN, &[]).await;
        let ledger: Vec<ReplyOutcome> =
            simulator.ledger().iter().map(|entry| entry.answer).collect();
        let expected = [
            ReplyOutcome::Sent,
            ReplyOutcome::Sent,
            ReplyOutcome::Lost,
            ReplyOutcome::Half,
            ReplyOutcome::Reset,
            ReplyOutcome::Lost,
            ReplyOutcome::Sent,
        ];
        assert_eq!(ledger, expected);
        let counts = simulator.counts();
        assert_eq!((counts.accepted, counts.answers_lost), (7, 2));
        assert_eq!((counts.answers_half, counts.answers_reset), (1, 1));
        let reset = read(answers.remove(3)).await.unwrap_err();
        assert_eq!(reset.reason(), Some(h2::Reason::INTERNAL_ERROR));
        assert_eq!(read(answers.remove(0)).await.unwrap().status, 200);
    });
}

#[test]
fn a_refused_stream_was_not_processed() {
    let simulator = plain(Behaviour { reset_every: 2, ..Behaviour::default() });
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        sender.push(TOKEN, &[]).await;
        let refused = sender.begin(TOKEN, &[], BODY).await.unwrap();
        let error = read(refused).await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM));
        assert_eq!((simulator.ledger().len(), simulator.counts().unprocessed), (1, 1));
    });
}

#[test]
fn goaway_names_the_last_push_that_was_processed() {
    let goaway = GoAway { every: 10, unprocessed: 4, close: false };
    let simulator = plain(Behaviour { goaway, ..Behaviour::default() });
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        sender.push(TOKEN, &[]).await;
        let mut answers = Vec::new();
        for _ in 2..=10 {
            answers.push(sender.begin(TOKEN, &[], BODY).await.unwrap());
        }
        let mut accepted = 1;
        for answer in answers {
            match read(answer).await {
                Ok(answer) => accepted += u64::from(answer.status == 200),
                Err(error) => assert!(error.is_go_away() && error.is_remote(), "{error}"),
            }
        }
        assert_eq!(accepted, 6);
        let counts = simulator.counts();
        assert_eq!((counts.accepted, counts.unprocessed, counts.goaways), (6, 4, 1));
        assert_eq!(simulator.ledger().len(), 6);
        assert!(sender.begin(TOKEN, &[], BODY).await.is_err(), "the connection is over");
    });
}

#[test]
fn many_bad_tokens_end_the_connection() {
    let simulator = plain(Behaviour { bad_tokens_max: 2, ..Behaviour::default() });
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        let bad = format!("bad0{}", &TOKEN[4..]);
        assert_eq!(sender.push(&bad, &[]).await.status, 400);
        assert_eq!(sender.push(&bad, &[]).await.status, 400);
        let ended = match sender.begin(TOKEN, &[], BODY).await {
            Ok(answer) => read(answer).await.is_err(),
            Err(_) => true,
        };
        assert!(ended);
        assert_eq!(simulator.counts().goaways, 1);
    });
}

#[test]
fn a_goaway_that_is_ordered_during_the_handshake_leaves_after_it() {
    let simulator = Simulator::start(Config::default()).unwrap();
    scenario(async {
        let stream = TcpStream::connect(simulator.addr()).await.unwrap();
        let order = Order::GoAway { last: None, code: 0, close: false };
        while simulator.order(order) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut stream = Sender::open_tls(&simulator, None, stream).await;
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.unwrap();
        let (mut kinds, mut rest) = (Vec::new(), &said[..]);
        while let [a, b, c, kind, ..] = *rest {
            kinds.push(kind);
            rest = &rest[9 + u32::from_be_bytes([0, a, b, c]) as usize..];
        }
        // SETTINGS first, GOAWAY last (RFC 9113 §6.5, §6.8).
        assert_eq!((kinds.first(), kinds.last()), (Some(&4), Some(&7)));
    });
}

#[test]
fn bursts_of_503_come_at_the_end_of_each_round() {
    let unavailable = Unavailable { every: 4, burst: 2 };
    let simulator = plain(Behaviour { unavailable, ..Behaviour::default() });
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        let mut statuses = Vec::new();
        for _ in 0..8 {
            statuses.push(sender.push(TOKEN, &[]).await.status);
        }
        assert_eq!(statuses, [200, 200, 503, 503, 200, 200, 503, 503]);
    });
}

#[test]
fn a_path_takes_its_time_and_carries_a_thousand_pushes_at_once() {
    let behaviour =
        Behaviour { rtt_ms: 60, answer_time: AnswerTime::constant(10.0), ..Behaviour::default() };
    let simulator = Simulator::start(Config { behaviour, ..Config::default() }).unwrap();
    scenario(async {
        let began = Instant::now();
        let mut sender = Sender::connect_tls(&simulator, None).await;
        sender.push(TOKEN, &[]).await;
        // One round trip each for TCP, TLS and the push, and 10 ms to answer.
        assert!(began.elapsed() >= Duration::from_millis(3 * 60 + 10), "{:?}", began.elapsed());
        let mut answers = Vec::new();
        for _ in 0..1_000 {
            answers.push(sender.begin(TOKEN, &[], BODY).await.unwrap());
        }
        for answer in answers {
            assert_eq!(read(answer).await.unwrap().status, 200);
        }
        assert_eq!(simulator.counts().accepted, 1_001);
    });
}

#[test]
fn answers_overtake_each_other_and_workers_make_pushes_wait() {
    let answer_time =
        AnswerTime { stall: PeriodicDelay { every: 2, ms: 80.0 }, ..AnswerTime::constant(1.0) };
    let simulator = plain(Behaviour { answer_time, ..Behaviour::default() });
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        sender.push(TOKEN, &[]).await;
        let began = Instant::now();
        let slow = sender.begin(TOKEN, &[], BODY).await.unwrap();
        let fast = sender.begin(TOKEN, &[], BODY).await.unwrap();
        // A ping takes only the path's delay.
        let mut ping = sender.ping.take().unwrap();
        ping.ping(h2::Ping::opaque()).await.unwrap();
        let mut slow = std::pin::pin!(read(slow));
        tokio::select! {
            biased;
            _ = &mut slow => panic!("the answer that is ready first waits for the other"),
            answer = read(fast) => assert_eq!(answer.unwrap().status, 200),
        }
        slow.await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(80), "{:?}", began.elapsed());

        let answer_time = AnswerTime { workers: 2, ..AnswerTime::constant(20.0) };
        simulator.set_behaviour(Behaviour { answer_time, ..Behaviour::default() }).unwrap();
        let began = Instant::now();
        let mut answers = Vec::new();
        for _ in 0..8 {
            answers.push(sender.begin(TOKEN, &[], BODY).await.unwrap());
        }
        for answer in answers {
            read(answer).await.unwrap();
        }
        assert!(began.elapsed() >= Duration::from_millis(79), "{:?}", began.elapsed());
    });
}

#[test]
fn orders_reach_open_connections() {
    let simulator = plain(Behaviour::default());
    scenario(async {
        for order in [
            Order::GoAway { last: Some(1), code: 0, close: true },
            Order::Close,
            Order::Abort,
            Order::Garbage,
            Order::EndlessHeaders,
        ] {
            let mut sender = Sender::connect(&simulator).await;
            sender.push(TOKEN, &[]).await;
            assert!(simulator.order(order) >= 1, "{order:?}");
            let ended = async {
                loop {
                    let Ok(answer) = sender.begin(TOKEN, &[], BODY).await else { return };
                    if read(answer).await.is_err() {
                        return;
                    }
                }
            };
            tokio::time::timeout(TIMEOUT, ended).await.expect("the connection ends");
        }
        for order in
            [Order::FloodSettings { n: 50 }, Order::FloodPing { n: 50 }, Order::Stall { ms: 20 }]
        {
            let mut sender = Sender::connect(&simulator).await;
            sender.push(TOKEN, &[]).await;
            simulator.order(order);
            assert_eq!(sender.push(TOKEN, &[]).await.status, 200, "{order:?}");
        }
    });
}

#[test]
fn the_control_port_tells_and_takes() {
    let control = Some("127.0.0.1:0".parse().unwrap());
    let simulator = Simulator::start(Config { tls: false, control, ..Config::default() }).unwrap();
    let ask = async |request: &str, body: &str| {
        let mut stream = TcpStream::connect(simulator.control_addr().unwrap()).await.unwrap();
        let length = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        sender.push(TOKEN, &[]).await;
        sender.push(TOKEN, &[]).await;
        let ledger = ask("GET /ledger?after=1", "").await;
        assert!(ledger.contains(r#"{"n":2,"#) && !ledger.contains(r#"{"n":1,"#), "{ledger}");
        assert!(ask("GET /counts", "").await.contains(r#""accepted": 2"#));
        let changed = ask("PATCH /behaviour", r#"{"unavailable": {"every": 1, "burst": 1}}"#).await;
        assert!(changed.contains(r#""burst": 1"#), "{changed}");
        assert_eq!(sender.push(TOKEN, &[]).await.status, 503);
        assert!(ask("PATCH /behaviour", r#"{"rtt": 1}"#).await.contains("400 Bad Request"));
        assert!(ask("POST /order", r#"{"do": "close"}"#).await.contains(r#""connections": 1"#));
        assert!(ask("GET /ca.pem", "").await.contains("BEGIN CERTIFICATE"));
        assert!(ask("GET /nothing", "").await.contains("PATCH  /behaviour"));
    });
}
