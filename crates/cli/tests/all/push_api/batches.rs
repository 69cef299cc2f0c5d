//! Batches: streamed, rotated under, and read slowly.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::time::Duration;

use dunlin_simulate::apns::Behaviour;
use serde_json::json;

use super::kit::{KEY, OTHER_KEY, Served, credential, simulator, to, to_app, token};

#[test]
fn a_batch_is_answered_as_it_goes_and_a_rotation_in_its_midst_loses_none_of_it() {
    const PUSHES: usize = 10_000;
    // Slow enough that the rotations below come in its midst.
    let simulator = simulator(Behaviour { rtt_ms: 20, streams_max: 100, ..Behaviour::default() });
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let tokens: Vec<String> = (0..PUSHES).map(token).collect();
    let mut lines = served.batch(&json!({ "pushes": [to(&tokens)] }));
    let mut seen = HashSet::new();
    let mut end = None;
    for (n, line) in lines.by_ref().enumerate() {
        if line["end"] == true {
            end = Some(line);
            continue;
        }
        assert_eq!((&line["push"], &line["outcome"]), (&0.into(), &"accepted".into()), "{line}");
        assert!(seen.insert(line["token"].as_str().unwrap().to_owned()), "one line each");
        if n % 2_000 == 500 {
            // Answered while it goes on; the key is another one from here.
            let key = if n % 4_000 == 500 { OTHER_KEY } else { KEY };
            assert_eq!(served.put("push/apns/shop", &credential(&simulator, key)).0, 200);
        }
    }
    assert_eq!(seen.len(), PUSHES);
    let end = end.expect("the last line says that it is the last");
    assert_eq!((&end["accepted"], &end["uncertain"]), (&PUSHES.into(), &0.into()));
    // By the server's own book each was accepted once.
    let mut accepted: HashMap<String, usize> = HashMap::new();
    for entry in simulator.ledger().iter().filter(|entry| entry.status == 200) {
        *accepted.entry(entry.device_token.to_string()).or_default() += 1;
    }
    assert_eq!(accepted.len(), PUSHES);
    assert!(accepted.values().all(|times| *times == 1));
    assert!(simulator.counts().connections > 4, "each key has connections of its own");
}

#[test]
fn a_client_that_does_not_read_its_batch_stops_it_and_nobody_else() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    // Lines so long that no socket's buffers hold all of them.
    let app = "x".repeat(250);
    assert_eq!(served.put(&format!("push/apns/{app}"), &credential(&simulator, KEY)).0, 201);
    let group = |from: usize| to_app(&app, &(from..from + 20_000).map(token).collect::<Vec<_>>());
    let body = json!({ "pushes": [group(0), group(20_000)] });
    let before_kib = served.rss_kib();
    let mut unread = Served::send(served.client, "POST", "/api/push/batch", &body);
    // Its socket and its share of the window fill up, and then nothing more is sent for it.
    let stopped = wait_until_it_stops(|| simulator.counts().accepted as usize);
    assert!((1..40_000).contains(&stopped), "{stopped} were sent for a client that reads nothing");
    let answer = served.api("push", &to_app(&app, &[token(50_000)]));
    assert_eq!(answer["result"]["accepted"], 1, "{answer}");
    let grown = served.rss_kib().saturating_sub(before_kib);
    assert!(grown < 64 << 10, "{grown} KiB are held for it");
    // It begins to read, and gets all of it.
    let mut answer = String::new();
    unread.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(r#"{"accepted":40000,"#), "{}", &answer[answer.len() - 200..]);
}

/// The number at which something stays for a second.
fn wait_until_it_stops(number: impl Fn() -> usize) -> usize {
    let (mut last, mut same) = (0, 0);
    while same < 10 || last == 0 {
        std::thread::sleep(Duration::from_millis(100));
        let now = number();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}
