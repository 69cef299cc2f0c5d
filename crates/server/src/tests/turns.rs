//! Fairness of the server API: large calls take turns with all other work.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{Cluster, Listener, TIMEOUT};

fn publish(channel: &str, data: &str) -> String {
    format!("{{\"publish\":{{\"channel\":\"{channel}\",\"data\":{data}}}}}")
}

fn batch(commands: impl Iterator<Item = String>) -> String {
    format!("{{\"commands\":[{}]}}", commands.collect::<Vec<_>>().join(","))
}

fn post(to: SocketAddr, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = "Host: 127.0.0.1\r\nConnection: close";
    write!(stream, "POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n", body.len())
        .unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Regression: deliveries were made after the last command had begun, without checking the outboxes that they filled.
#[test]
fn one_batch_throws_out_no_reader_who_reads() {
    for workers in [1, 2] {
        let cluster = Cluster::start_with(workers, |config| {
            config.limits.publication_bytes_max = 12 << 10;
            config.limits.outbox_bytes_max = 16 << 10;
        });
        let mut readers: Vec<Listener> =
            (0..4).map(|_| Listener::connect(cluster.address, "room")).collect();
        // In total less than a socket buffers for a reader that does not read yet.
        let data = format!("\"{}\"", "x".repeat(10));
        let answer = cluster.post("/api/batch", &batch((0..3_000).map(|_| publish("room", &data))));
        assert_eq!(answer.matches("\"offset\"").count(), 3_000);
        for reader in &mut readers {
            for offset in 1..=3_000 {
                let push = reader.next().expect("a message and not the end");
                assert_eq!(push["pub"]["offset"], offset, "{push}");
            }
        }
    }
}

#[test]
fn others_are_served_while_a_batch_is_carried_out() {
    let cluster = Cluster::start(1);
    let address = cluster.address;
    let commands = batch((0..4_000).map(|n| publish("room", &n.to_string())));
    // This thread may be late, after the end of the batch; then try again.
    let interleaved = (0..5).any(|round| {
        let mut reader = Listener::connect(address, "room");
        let last = 4_001 * (round + 1);
        std::thread::scope(|scope| {
            let whole = scope.spawn(|| post(address, "/api/batch", &commands));
            reader.next().expect("the first of the batch");
            let other = cluster.post("/api/publish", "{\"channel\":\"room\",\"data\":\"other\"}");
            assert_eq!(whole.join().unwrap().matches("\"offset\"").count(), 4_000);
            !other.contains(&format!("\"offset\":{last},"))
        })
    });
    assert!(interleaved, "another's message always came behind all of the batch");
}

#[test]
fn a_broadcast_to_many_channels_takes_turns_and_is_answered_in_order() {
    let cluster = Cluster::start(2);
    for n in 0..3_000 / 500 {
        let body = format!("{{\"channel\":\"c{}\",\"data\":0}}", n * 500);
        cluster.post("/api/publish", &body);
    }
    let names: Vec<String> =
        (0..3_000).map(|n| if n == 1_234 { "\"\"".into() } else { format!("\"c{n}\"") }).collect();
    let broadcast = format!("{{\"channels\":[{}],\"data\":1}}", names.join(","));
    let in_order = |answer: &str, commands: &str| {
        let answer: serde_json::Value = serde_json::from_str(answer).unwrap();
        let responses = answer.pointer(commands).and_then(|of| of["responses"].as_array());
        for (n, response) in responses.expect("an answer for each").iter().enumerate() {
            let offset = &response["result"]["offset"];
            match n {
                1_234 => assert!(response["error"]["code"].is_number(), "{response}"),
                n => assert_eq!(*offset, 1 + u64::from(n % 500 == 0), "{n}: {response}"),
            }
        }
        answer
    };
    in_order(&cluster.post("/api/broadcast", &broadcast), "/result");
    // In a batch, the commands after the broadcast follow all of it, in order.
    for channel in 0..3_000 {
        if channel % 500 != 0 {
            continue;
        }
        cluster.post("/api/history_remove", &format!("{{\"channel\":\"c{channel}\"}}"));
    }
    let after = [publish("c2999", "2"), "{\"info\":{}}".into(), publish("c2999", "3")];
    let all = [format!("{{\"broadcast\":{broadcast}}}")].into_iter().chain(after);
    let answer: serde_json::Value =
        serde_json::from_str(&cluster.post("/api/batch", &batch(all))).unwrap();
    let replies = answer["replies"].as_array().unwrap();
    assert_eq!(replies[0]["broadcast"]["responses"][2_999]["result"]["offset"], 2);
    assert_eq!(replies[1]["publish"]["offset"], 3);
    assert!(replies[2]["info"]["nodes"].is_array());
    assert_eq!(replies[3]["publish"]["offset"], 4);
}

#[test]
fn a_batch_of_any_form_is_answered_in_the_order_of_its_commands() {
    let cluster = Cluster::start(2);
    let channel = |n: u32| format!("c{}", n % 7);
    let commands = (0..2_000).map(|n| match n % 100 {
        99 => "{\"info\":{}}".to_owned(),
        _ => publish(&channel(n), &n.to_string()),
    });
    let offsets = |key: &str, replies: &serde_json::Value| {
        let mut tops = [0; 7];
        for (n, reply) in (0..).zip(replies.as_array().unwrap()) {
            if n % 100 == 99 {
                continue;
            }
            tops[n as usize % 7] += 1;
            assert_eq!(reply[key]["offset"], tops[n as usize % 7], "{n}: {reply}");
        }
    };
    let answer: serde_json::Value =
        serde_json::from_str(&cluster.post("/api/batch", &batch(commands))).unwrap();
    offsets("publish", &answer["replies"]);
    let lines: Vec<String> = (0..1_000)
        .map(|n| {
            format!("{{\"method\":\"publish\",\"params\":{{\"channel\":\"l\",\"data\":{n}}}}}")
        })
        .collect();
    let answer = cluster.post("/api", &lines.join("\n"));
    let replies: Vec<serde_json::Value> =
        answer.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let offsets: Vec<_> = replies.iter().map(|of| of["result"]["offset"].as_u64()).collect();
    assert_eq!(offsets, (1..=1_000).map(Some).collect::<Vec<_>>());
}
