//! Tests of the client against servers that close, stall and send invalid answers.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};

use crate::support::{Conversation, End, ask, serve, serve_many};
use dunlin_pipeline::{
    BodyMode, Client, ClientConfig, Depth, Effect, ErrorKind, HostConfig, HostError, Request,
    SendError, ThreadedClient, WindowConfig,
};

fn url(addr: SocketAddr) -> String {
    format!("http://{addr}")
}

fn one(depth: u32) -> HostConfig {
    HostConfig { connections: 1, depth: Depth::Fixed(depth), ..HostConfig::default() }
}

fn gets(targets: &[String]) -> Vec<Request<'_>> {
    targets.iter().map(|target| Request::get(target)).collect()
}

fn targets(count: usize) -> Vec<String> {
    (1..=count).map(|id| format!("/{id}")).collect()
}

fn target(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

#[test]
fn requests_leave_before_answers_come() {
    let addr = serve(|_, mut conversation| {
        let heard: Vec<String> = (0..3).map(|_| conversation.hears().unwrap()).collect();
        for head in heard {
            conversation.answers(target(&head));
        }
        conversation.hears();
    });
    let notes = ask(&url(addr), one(3), &gets(&targets(3)));
    let bodies: Vec<String> = notes.ends.iter().map(|(_, end)| end.body()).collect();
    assert_eq!(bodies, ["/1", "/2", "/3"]);
}

#[test]
fn the_window_slides() {
    // The fourth request must be sent when the first has been answered, not when all three have.
    let addr = serve(|_, mut conversation| {
        for _ in 0..3 {
            conversation.hears();
        }
        for _ in 0..10 {
            conversation.answers("x");
            conversation.hears();
        }
        for _ in 0..3 {
            conversation.answers("x");
        }
        conversation.hears();
    });
    let notes = ask(&url(addr), one(3), &gets(&targets(13)));
    assert_eq!(notes.ends.len(), 13);
}

#[test]
fn close_in_an_answer_repeats_what_was_not_processed_even_a_post() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&log);
    let addr = serve(move |_, mut conversation| {
        // Two answers per connection, the second with notice; later requests are not read.
        for last in [false, true] {
            let Some(head) = conversation.hears() else { return };
            heard.lock().unwrap().push(target(&head).to_owned());
            let close = if last { "Connection: close\r\n" } else { "" };
            conversation.says(format!("HTTP/1.1 200 OK\r\n{close}Content-Length: 0\r\n\r\n"));
        }
    });
    let targets = targets(7);
    let posts: Vec<Request<'_>> = targets
        .iter()
        .map(|target| Request { pipelined: true, ..Request::post(target, b"x") })
        .collect();
    let notes = ask(&url(addr), one(5), &posts);
    assert!(
        notes.ends.iter().all(|(_, end)| matches!(end, End::Answered(200, _))),
        "{:?}",
        notes.ends
    );
    assert_eq!(*log.lock().unwrap(), targets, "each once, in order");
}

#[test]
fn after_a_bare_close_gets_are_repeated_and_posts_are_uncertain() {
    let addr = serve(|number, mut conversation| {
        if number == 1 {
            for _ in 0..3 {
                conversation.hears();
            }
            conversation.answers("1");
            return;
        }
        while let Some(head) = conversation.hears() {
            conversation.answers(target(&head));
        }
    });
    let asked = [
        Request::get("/1"),
        Request { pipelined: true, ..Request::post("/2", b"") },
        Request::get("/3"),
    ];
    let mut notes = ask(&url(addr), one(3), &asked);
    notes.ends.sort_by_key(|(tag, _)| *tag);
    assert_eq!(notes.ends[0].1.body(), "1");
    assert!(
        matches!(&notes.ends[1].1, End::Uncertain(error) if error.contains("before sending it again"))
    );
    assert_eq!(notes.ends[2].1.body(), "/3");
}

#[test]
fn a_post_has_its_connection_to_itself() {
    let addr = serve(|_, mut conversation| {
        while let Some(head) = conversation.hears() {
            if head.starts_with("POST") {
                conversation.stream.set_nonblocking(true).unwrap();
                let mut byte = [0];
                let more = std::io::Read::read(&mut conversation.stream, &mut byte);
                assert!(more.is_err(), "nothing follows a POST before its answer");
                conversation.stream.set_nonblocking(false).unwrap();
            }
            conversation.answers(target(&head));
        }
    });
    let asked =
        [Request::get("/1"), Request::get("/2"), Request::post("/3", b"x"), Request::get("/4")];
    let notes = ask(&url(addr), one(10), &asked);
    let bodies: Vec<String> = notes.ends.iter().map(|(_, end)| end.body()).collect();
    assert_eq!(bodies, ["/1", "/2", "/3", "/4"]);
}

#[test]
fn the_budget_of_a_server_is_learned_and_kept() {
    // The server closes without notice after 25 answers, and counts the requests sent beyond.
    let beyond = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(&beyond);
    let addr = serve(move |_, mut conversation| {
        for _ in 0..25 {
            let Some(head) = conversation.hears() else { return };
            conversation.answers(target(&head));
        }
        conversation.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut more = 0;
        while conversation.hears().is_some() {
            more += 1;
        }
        counted.lock().unwrap().push(more);
    });
    let notes = ask(&url(addr), one(10), &gets(&targets(500)));
    assert_eq!(notes.ends.len(), 500);
    for (tag, end) in &notes.ends {
        assert_eq!(end.body(), format!("/{tag}"));
    }
    let beyond = beyond.lock().unwrap();
    assert!(beyond[..2].iter().all(|&more| more > 0), "it does not know yet: {beyond:?}");
    assert!(beyond[2..].iter().all(|&more| more == 0), "it knows: {beyond:?}");
}

#[test]
fn a_budget_that_was_an_accident_is_forgotten() {
    // Two connections close after ten answers each; no other ever closes.
    let addr = serve_many(|number, mut conversation| {
        let mut left = if number <= 2 { 10 } else { usize::MAX };
        while let Some(head) = conversation.hears() {
            conversation.answers(target(&head));
            left -= 1;
            if left == 0 {
                return;
            }
        }
    });
    let notes = ask(&url(addr), one(4), &gets(&targets(60)));
    assert!(notes.ends.iter().all(|(tag, end)| end.body() == format!("/{tag}")));
    assert_eq!(notes.ends.len(), 60);
}

#[test]
fn half_a_farewell_ends_a_connection_all_the_same() {
    let addr = serve_many(|number, mut conversation| {
        while let Some(head) = conversation.hears() {
            assert!(number > 1 || target(&head) == "/1", "nothing is sent behind half an answer");
            let behind = if number == 1 { "HTTP/1.1 408 Requ" } else { "" };
            let length = target(&head).len();
            conversation.says(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{}{behind}",
                target(&head)
            ));
        }
    });
    let notes = ask(&url(addr), one(1), &gets(&targets(3)));
    for (tag, end) in &notes.ends {
        assert_eq!(end, &End::Answered(200, format!("/{tag}").into_bytes()));
    }
}

#[test]
fn only_the_oldest_pays_for_a_stalled_answer() {
    let addr = serve_many(|number, mut conversation| {
        while let Some(head) = conversation.hears() {
            if number == 1 && target(&head) == "/2" {
                // This request is never answered.
                while conversation.hears().is_some() {}
                return;
            }
            conversation.answers(target(&head));
        }
    });
    let config = HostConfig { answer_timeout_ms: NonZeroU64::new(200), ..one(4) };
    let mut notes = ask(&url(addr), config, &gets(&targets(6)));
    notes.ends.sort_by_key(|(tag, _)| *tag);
    for (tag, end) in &notes.ends {
        match tag {
            2 => assert!(matches!(end, End::Failed(error) if error.contains("answer_timeout_ms"))),
            _ => assert_eq!(end.body(), format!("/{tag}")),
        }
    }
}

#[test]
fn a_full_queue_refuses_and_tells_when_there_is_room() {
    let addr = serve_many(|_, mut conversation| {
        while let Some(head) = conversation.hears() {
            conversation.answers(target(&head));
        }
    });
    let config = HostConfig { queue_max: 10, ..one(4) };
    let notes = ask(&url(addr), config, &gets(&targets(200)));
    assert_eq!(notes.ends.len(), 200);
    assert!(notes.refusals > 5, "{}", notes.refusals);
}

#[test]
fn bodies_are_gathered_streamed_or_counted() {
    let addr = serve(|_, mut conversation| {
        while conversation.hears().is_some() {
            conversation.says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
            conversation.says("2\r\nde\r\n0\r\n\r\n");
        }
    });
    let asked = [
        Request::get("/"),
        Request { answer: BodyMode::Stream, ..Request::get("/") },
        Request { answer: BodyMode::Count, ..Request::get("/") },
    ];
    let notes = ask(&url(addr), one(3), &asked);
    let bodies: Vec<String> = notes.ends.iter().map(|(_, end)| end.body()).collect();
    assert_eq!(bodies, ["abcde", "", ""]);
    let streamed: Vec<u8> = notes.pieces.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert!(notes.pieces.iter().all(|(tag, _)| *tag == 2) && streamed == b"abcde");

    let config = HostConfig { body_bytes_max: 4, ..one(1) };
    let notes = ask(&url(addr), config, &[Request::get("/")]);
    assert!(notes.ends[0].1.error().contains("body_bytes_max"));
}

/// Old servers, and proxies in front of them, fold long headers and write a length twice.
#[test]
fn answer_with_folded_headers_and_equal_lengths_is_read() {
    let addr = serve_many(|_, mut conversation| {
        while conversation.hears().is_some() {
            conversation.says(
                "HTTP/1.1 200 OK\r\nX-Long: a,\r\n\tb\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            );
        }
    });
    let notes = ask(&url(addr), one(1), &gets(&targets(3)));
    for (_, end) in &notes.ends {
        assert_eq!(end, &End::Answered(200, b"abc".to_vec()));
    }
}

/// Invalid answers, each with a part of the expected error message.
const BAD_ANSWERS: &[(&str, &str)] = &[
    ("HTTP/1.1 200 OK\r\nContent-Le", "in the head of the answer"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "in the body of the answer"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "two Content-Lengths"),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "contradict each other",
    ),
    ("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "no decimal number"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n", "no decimal number"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "A chunk of the answer"),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab", "in the body of the answer"),
    ("220 mail.example ESMTP\r\n", "does not answer in HTTP"),
    ("", "before the answer"),
];

#[test]
fn every_bad_answer_is_an_error_that_says_what_to_do() {
    for &(answer, word) in BAD_ANSWERS {
        let addr = serve(move |_, mut conversation| {
            conversation.hears();
            conversation.says(answer);
        });
        let notes = ask(&url(addr), one(1), &[Request::post("/", b"x")]);
        let [(1, end)] = &notes.ends[..] else { panic!("{answer}: {:?}", notes.ends) };
        let error = end.error();
        assert!(error.contains(word), "{answer:?}: {error}");
        assert!(error.starts_with(&format!("request 1 to http://{addr}: ")), "{error}");
        let uncertain = answer.is_empty();
        assert_eq!(matches!(end, End::Uncertain(_)), uncertain, "{answer}");
    }
}

#[test]
fn a_flood_of_headers_ends_at_its_limit() {
    let addr = serve(|_, mut conversation| {
        conversation.hears();
        conversation.says("HTTP/1.1 200 OK\r\n");
        while std::io::Write::write_all(&mut conversation.stream, b"A: b\r\n").is_ok() {}
    });
    let notes = ask(&url(addr), one(1), &[Request::get("/")]);
    assert!(notes.ends[0].1.error().contains("head of the answer is too long"));
}

#[test]
fn an_answer_nobody_asked_for_is_given_to_nobody() {
    let addr = serve(|number, mut conversation| {
        conversation.hears();
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine";
        match number {
            // Both in one write: bytes that arrive after the next request was sent would be taken for its answer.
            1 => conversation
                .says(format!("{answer}HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nnobody's")),
            _ => conversation.says(answer),
        }
        while conversation.hears().is_some() {
            conversation.answers("mine");
        }
    });
    let notes = ask(&url(addr), one(1), &gets(&targets(3)));
    assert!(notes.ends.iter().all(|(_, end)| end.body() == "mine"), "{:?}", notes.ends);
}

#[test]
fn one_byte_after_another_is_too_slow_in_the_end() {
    let addr = serve(|_, mut conversation| {
        conversation.hears();
        for byte in "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".bytes() {
            conversation.says([byte]);
            if std::io::Write::write_all(&mut conversation.stream, b"").is_err() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let config = HostConfig { answer_timeout_ms: NonZeroU64::new(200), ..one(1) };
    let notes = ask(&url(addr), config, &[Request::get("/")]);
    assert!(notes.ends[0].1.error().contains("answer_timeout_ms"));
}

#[test]
fn connection_refused_is_reported() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let notes = ask(&url(closed), one(4), &gets(&targets(2)));
    for (_, end) in &notes.ends {
        assert!(matches!(end, End::NotSent(error) if error.contains("check that the server runs")));
    }
    let notes = ask("http://no-such-name.invalid", one(4), &gets(&targets(2)));
    for (_, end) in &notes.ends {
        assert!(
            matches!(end, End::NotSent(error) if error.contains("does not resolve")),
            "{end:?}"
        );
    }
    let notes = ask("unix:/nonexistent/socket", one(4), &gets(&targets(1)));
    assert!(matches!(notes.ends[0].1, End::NotSent(_)));
}

#[test]
fn a_dead_address_holds_up_nobody() {
    let addr = serve_many(|_, mut conversation| {
        while let Some(head) = conversation.hears() {
            conversation.answers(target(&head));
        }
    });
    // A listener that never accepts and has a full backlog: the kernel does not answer at all.
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    silent.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    silent.listen(0).unwrap();
    let silent_addr = silent.local_addr().unwrap().as_socket().unwrap();
    let _waiting: Vec<TcpStream> = (0..4)
        .filter_map(|_| {
            TcpStream::connect_timeout(&silent_addr, std::time::Duration::from_millis(50)).ok()
        })
        .collect();
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for first in [silent_addr, refused] {
        let config = HostConfig {
            addresses: vec![first, addr],
            connect_timeout_ms: NonZeroU64::new(600_000),
            queue_timeout_ms: None,
            ..one(2)
        };
        let notes = ask("http://a.example", config, &gets(&targets(3)));
        assert_eq!(notes.ends[2].1.body(), "/3");
    }
}

#[test]
fn ipv6_names_and_unix_sockets() {
    let echo = |mut conversation: Conversation| {
        while let Some(head) = conversation.hears() {
            conversation.answers(target(&head));
        }
    };
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || echo(Conversation::new(listener.accept().unwrap().0)));
    let notes = ask(&url(addr), one(2), &gets(&targets(2)));
    assert_eq!(notes.ends[1].1.body(), "/2");

    // The name resolves to both families; nobody listens on one of them.
    let addr = serve_many(move |_, conversation| echo(conversation));
    let notes = ask(&format!("http://localhost:{}", addr.port()), one(2), &gets(&targets(2)));
    assert_eq!(notes.ends[1].1.body(), "/2");

    let path = std::env::temp_dir().join(format!("dunlin-pipeline-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut stream = listener.accept().unwrap().0;
        let mut bytes = [0; 4096];
        while stream.read(&mut bytes).unwrap_or(0) > 0 {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").unwrap();
        }
    });
    let notes = ask(&format!("unix:{}", path.display()), one(1), &gets(&targets(2)));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(notes.ends[1].1.body(), "hi");
}

#[test]
fn the_depth_is_found_by_itself() {
    let addr = serve_many(|_, mut conversation| {
        while let Some(head) = conversation.hears() {
            conversation.answers(target(&head));
        }
    });
    let depth = Depth::Auto(WindowConfig { min: 1, max: 64 });
    let config = HostConfig { depth, ..one(1) };
    let notes = ask(&url(addr), config, &gets(&targets(5000)));
    assert!(notes.ends.iter().all(|(tag, end)| end.body() == format!("/{tag}")));
}

/// Uses a server that resets connections at random: before an answer, within one, or after one. Each answer has a
/// unique number, and the server records which request it answered.
#[test]
fn a_server_that_resets_at_random_and_its_client_agree_line_by_line() {
    const REQUESTS: usize = 20_000;
    let ledger = Arc::new(Mutex::new(HashMap::new()));
    let written = Arc::clone(&ledger);
    let addr = serve_many(move |number, mut conversation| {
        // Each connection has its own random generator, the same in every run.
        let mut state = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut left = random(400);
        while let Some(head) = conversation.hears() {
            let mut ledger = written.lock().unwrap();
            let serial = ledger.len() as u64;
            ledger.insert(serial, target(&head).to_owned());
            drop(ledger);
            let body = format!("{serial} {}", target(&head));
            if left == 0 {
                let answer =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                let cut = random(answer.len() as u64 + 1) as usize;
                conversation.says(&answer[..cut]);
                return conversation.resets();
            }
            left -= 1;
            conversation.answers(&body);
        }
    });
    let config = HostConfig {
        connections: 8,
        depth: Depth::Fixed(32),
        queue_max: REQUESTS,
        replays_max: u8::MAX,
        ..HostConfig::default()
    };
    let notes = ask(&url(addr), config, &gets(&targets(REQUESTS)));
    let mut answered = vec![0; REQUESTS + 1];
    let ledger = ledger.lock().unwrap();
    for (tag, end) in &notes.ends {
        answered[*tag as usize] += 1;
        let body = end.body();
        let (serial, echoed) = body.split_once(' ').unwrap();
        assert_eq!(echoed, format!("/{tag}"), "the answer to this request");
        assert_eq!(ledger[&serial.parse().unwrap()], echoed, "as the server wrote down");
    }
    assert!(answered[1..].iter().all(|&times| times == 1), "each exactly once");
    assert!(ledger.len() > REQUESTS, "some were asked twice");
}

#[test]
fn a_threaded_client_asks_for_other_threads_and_reports_once() {
    let addr = serve_many(|_, mut conversation| {
        while let Some(head) = conversation.hears() {
            conversation.answers(target(&head));
        }
    });
    let client = ThreadedClient::start(ClientConfig::default(), 500).unwrap();
    let host = client.host(&url(addr), one(4)).unwrap();
    assert!(client.host("gopher://x", one(1)).is_err());
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (client, done) = (&client, done.clone());
            scope.spawn(move || {
                for id in 0..100 {
                    let path = format!("/{thread}/{id}");
                    let request = client.prepare(host, &Request::get(&path));
                    let done = done.clone();
                    client
                        .send(host, request, move |delivery| {
                            let response = delivery.unwrap();
                            assert_eq!(
                                (response.status, response.body.as_slice()),
                                (200, path.as_bytes())
                            );
                            done.send(path).unwrap();
                        })
                        .unwrap();
                }
            });
        }
    });
    let mut ends: Vec<String> =
        (0..400).map(|_| ended.recv_timeout(crate::support::TIMEOUT).unwrap()).collect();
    ends.sort();
    ends.dedup();
    assert_eq!((ends.len(), client.outstanding()), (400, 0));
}

#[test]
fn a_host_of_another_client_is_refused() {
    let mut other = Client::new(ClientConfig::default(), crate::support::Nobody);
    other.requests().host("http://127.0.0.1:1", one(1)).unwrap();
    let foreign = other.requests().host("http://127.0.0.1:2", one(1)).unwrap();
    let request = other.requests().prepare(foreign, &Request::get("/"));

    let mut client = Client::new(ClientConfig::default(), crate::support::Nobody);
    let mut requests = client.requests();
    requests.host("http://127.0.0.1:1", one(1)).unwrap();
    assert_eq!(requests.send(foreign, &request, 0), Err(SendError::UnknownHost));
    assert_eq!((requests.queued(foreign), requests.budget(foreign)), (0, None));
    requests.remove(foreign);

    let threaded = ThreadedClient::start(ClientConfig::default(), 3).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    threaded.send(foreign, request, move |end| done.send(end).unwrap()).unwrap();
    let error = ended.recv_timeout(crate::support::TIMEOUT).unwrap().unwrap_err();
    assert!(matches!(error.kind, ErrorKind::UnknownHost), "{error}");
}

#[test]
fn a_threaded_client_whose_thread_panicked_takes_no_host() {
    let client = ThreadedClient::start(ClientConfig::default(), 3).unwrap();
    let host = client.host("http://127.0.0.1:1", HostConfig { connect_attempts: 1, ..one(1) });
    let request = client.prepare(host.unwrap(), &Request::get("/"));
    client.send(host.unwrap(), request, |_| panic!("a fault of the caller")).unwrap();
    // The thread ends with the request; until then it accepts hosts.
    while client.host("http://127.0.0.1:1", one(1)).is_ok() {
        std::thread::yield_now();
    }
    let error = client.host("http://127.0.0.1:1", one(1)).unwrap_err();
    assert_eq!(error, HostError::Ended);
}

#[test]
fn a_threaded_client_that_is_dropped_ends_what_is_outstanding() {
    let addr = serve(|_, mut conversation| while conversation.hears().is_some() {});
    let client = ThreadedClient::start(ClientConfig::default(), 3).unwrap();
    let host = client.host(&url(addr), one(4)).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let request = client.prepare(host, &Request::post("/", b"x"));
    for _ in 0..3 {
        let done = done.clone();
        client.send(host, request.clone(), move |delivery| done.send(delivery).unwrap()).unwrap();
    }
    assert_eq!(client.send(host, request, |_| panic!("refused")), Err(SendError::Outstanding));
    drop(client);
    let ends: Vec<_> = ended.try_iter().collect();
    assert_eq!(ends.len(), 3);
    for end in &ends {
        assert!(end.as_ref().is_err_and(|error| error.effect != Effect::Possible), "{ends:?}");
    }
}

#[test]
fn a_call_is_a_future_with_headers_and_timings() {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let mut cx = std::task::Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(output) => return output,
                std::task::Poll::Pending => std::thread::park(),
            }
        }
    }
    let addr = serve_many(|_, mut conversation| {
        while let Some(head) = conversation.hears() {
            conversation.says(format!(
                "HTTP/1.1 200 OK\r\nX-Path: {}\r\nContent-Length: 2\r\n\r\nhi",
                target(&head)
            ));
        }
    });
    let client = ThreadedClient::start(ClientConfig::default(), 10).unwrap();
    let asked = async {
        let host = client.host(&url(addr), one(4))?;
        let response = client.call(host, &Request::get("/a")).await?;
        assert_eq!((response.status, response.body.as_slice()), (200, &b"hi"[..]));
        assert_eq!(response.header("x-path"), Some(&b"/a"[..]));
        assert!(response.service_ns > 0);
        let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let closed = HostConfig { connect_attempts: 1, ..one(1) };
        let host = client.host(&url(nobody), closed)?;
        let error = client.call(host, &Request::get("/")).await.unwrap_err();
        assert_eq!(error.effect, Effect::None, "{error}");
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    block_on(asked).unwrap();
}

#[test]
fn the_example_is_short_and_does_what_it_says() {
    let source = include_str!("../../examples/pipelined.rs");
    assert!(source.lines().count() <= 40);
    let addr = serve_many(|number, mut conversation| {
        // The first two connections close without notice after 130 answers.
        let mut left = if number <= 2 { 130 } else { usize::MAX };
        while let Some(head) = conversation.hears() {
            conversation.answers(target(&head));
            left -= 1;
            if left == 0 {
                return;
            }
        }
    });
    let output = example("pipelined", &url(addr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1000 answered with 200\n");
    assert!(output.status.success());
}

#[test]
fn examples_without_a_server_say_so_in_a_sentence_and_fail() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (name, argument) in [("pipelined", url(nobody)), ("floor", nobody.to_string())] {
        let output = example(name, &argument);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}: {error}");
        assert!(error.contains("refused") && error.lines().count() == 1, "{name}: {error}");
    }
}

/// Runs an example, which Cargo has built with the tests, in a directory beside theirs.
fn example(name: &str, argument: &str) -> std::process::Output {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.extend(["examples", name]);
    std::process::Command::new(&path).arg(argument).output().unwrap_or_else(|error| {
        panic!("{}: {error}; cargo test builds it unless given --test", path.display())
    })
}
