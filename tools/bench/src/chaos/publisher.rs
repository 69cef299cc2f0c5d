//! Publishes numbered messages, each at any node, and retries until the message is acknowledged or certainly refused.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::clients::Shared;
use dunlin_load::Error;
use dunlin_load::client::Client;
use dunlin_wire::backoff::Jitter;

/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(50);

/// How an attempt ended.
enum Attempt {
    Acknowledged {
        epoch: String,
        offset: u64,
    },
    /// The server says that nothing was stored.
    Refused,
    Uncertain,
    /// The request was not sent.
    NotSent,
}

/// Publishes one message to one of `channels` per interval `every`, until `over`; then one last message to each.
pub(super) fn run(
    shared: &Shared,
    channels: Range<usize>,
    every: Duration,
    seed: u64,
    over: &AtomicBool,
) -> Result<(), Error> {
    let mut publisher = Publisher {
        shared,
        random: Jitter::new(seed ^ channels.start as u64),
        clients: shared.nodes.iter().map(|_| None).collect(),
    };
    while !over.load(Ordering::Acquire) {
        let began = Instant::now();
        let count = channels.len() as u32;
        for (at, channel) in channels.clone().enumerate() {
            let due = began + every * at as u32 / count;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if over.load(Ordering::Acquire) {
                break;
            }
            publisher.publish(channel);
        }
        std::thread::sleep((began + every).saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Publishes one message to each channel and retries until it is acknowledged.
pub(super) fn last(shared: &Shared, seed: u64) {
    let clients = shared.nodes.iter().map(|_| None).collect();
    let mut publisher = Publisher { shared, random: Jitter::new(seed), clients };
    for channel in 0..shared.ledger.channels() {
        while !publisher.publish(channel) {}
    }
}

struct Publisher<'a> {
    shared: &'a Shared,
    random: Jitter,
    /// Kept connections, by node.
    clients: Vec<Option<Client>>,
}

impl Publisher<'_> {
    /// Publishes the next message of a channel. Returns false if it was refused.
    fn publish(&mut self, channel: usize) -> bool {
        let ledger = &self.shared.ledger;
        let number = ledger.begin(channel);
        let body = json!({
            "channel": format!("c{channel}"),
            "data": {"n": number},
            "idempotency_key": format!("{channel}-{number}"),
        });
        let body = body.to_string();
        loop {
            let node = self.random.below(self.shared.nodes.len() as u64) as usize;
            match self.attempt(node, &body) {
                Attempt::Acknowledged { epoch, offset } => {
                    ledger.acknowledged(channel, number, &epoch, offset);
                    return true;
                }
                Attempt::Refused if !ledger.refused(channel, number) => {
                    std::thread::sleep(PAUSE);
                    return false;
                }
                Attempt::Uncertain => ledger.uncertain(channel, number),
                Attempt::Refused | Attempt::NotSent => {}
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn attempt(&mut self, node: usize, body: &str) -> Attempt {
        let client = match self.clients[node].take() {
            Some(client) => Ok(client),
            None => Client::connect(self.shared.nodes[node]),
        };
        let Ok(mut client) = client else { return Attempt::NotSent };
        let kind = "application/json";
        let Ok((status, _)) = client.call("POST", "/api/publish", kind, body.as_bytes()) else {
            return Attempt::Uncertain;
        };
        let answer: Value = serde_json::from_slice(client.body()).unwrap_or_default();
        self.clients[node] = Some(client);
        let result = &answer["result"];
        if let (Some(epoch), Some(offset)) = (result["epoch"].as_str(), result["offset"].as_u64()) {
            return Attempt::Acknowledged { epoch: epoch.to_owned(), offset };
        }
        match answer["error"]["message"].as_str() {
            // The node is shutting down and accepts no requests.
            _ if status == 503 => Attempt::NotSent,
            Some(message) if message.contains("nothing was stored") => Attempt::Refused,
            Some(message) if message.contains("may have been") => Attempt::Uncertain,
            _ => {
                let what = format!("{status} {answer}");
                self.shared.ledger.wrong("an answer of another kind", what);
                Attempt::Uncertain
            }
        }
    }
}
