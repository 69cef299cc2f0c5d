//! Random publishes, losses and reconnects: whatever happens, a client sees each publication once and in order, or is notified.

use std::collections::BTreeMap;

use dunlin_hub::{SessionId, StreamPosition, SubscribeOptions};
use proptest::prelude::*;

use super::model::{CONFIG, Fleet};
use crate::kit::{publish, with_history};

const CHANNELS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone)]
enum Action {
    Publish {
        node: usize,
        channel: usize,
    },
    /// So many publications do not reach this node.
    Lose {
        node: usize,
        count: usize,
    },
    Cut(usize),
    Mend(usize),
    /// One event of the engine arrives.
    Deliver {
        node: usize,
        worker: u8,
    },
    Pass(u64),
    /// The client's connection breaks and it comes back, perhaps on another node.
    Move {
        client: usize,
        node: usize,
    },
    Trim {
        channel: usize,
        keep: u64,
    },
    Forget,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        8 => (0..2usize, 0..2usize).prop_map(|(node, channel)| Action::Publish { node, channel }),
        2 => (0..2usize, 1..3usize).prop_map(|(node, count)| Action::Lose { node, count }),
        1 => (0..2usize).prop_map(Action::Cut),
        2 => (0..2usize).prop_map(Action::Mend),
        8 => (0..2usize, 0..2u8).prop_map(|(node, worker)| Action::Deliver { node, worker }),
        2 => (1..6_000u64).prop_map(Action::Pass),
        3 => (0..4usize, 0..2usize).prop_map(|(client, node)| Action::Move { client, node }),
        1 => (0..2usize, 0..3u64).prop_map(|(channel, keep)| Action::Trim { channel, keep }),
        1 => Just(Action::Forget),
    ];
    prop::collection::vec(action, 1..120)
}

/// A client of one channel: what it was sent since it was subscribed last.
struct Client {
    node: usize,
    session: SessionId,
    channel: &'static str,
    /// `None`: it has to subscribe.
    position: Option<StreamPosition>,
    last: StreamPosition,
    /// Its subscription is under way.
    asked: bool,
}

struct Run {
    fleet: Fleet,
    clients: Vec<Client>,
    /// What was published, by channel, epoch and offset.
    ledger: BTreeMap<(String, String, u64), String>,
    next: u64,
}

impl Run {
    fn new() -> Run {
        let mut fleet = Fleet::new(2, 2);
        let clients = (0..4)
            .map(|client| {
                let node = client % 2;
                let session = fleet.nodes[node].open((client / 2) as u8, "");
                let last = StreamPosition::default();
                let channel = CHANNELS[client / 2];
                Client { node, session, channel, position: None, last, asked: false }
            })
            .collect();
        Run { fleet, clients, ledger: BTreeMap::new(), next: 0 }
    }

    fn act(&mut self, action: &Action) {
        let options = with_history();
        match *action {
            Action::Publish { node, channel } => {
                self.next += 1;
                let data = format!("m{}", self.next);
                self.fleet.begin_publish(node, CHANNELS[channel], &options, publish(&data));
            }
            Action::Lose { node, count } => {
                self.fleet.links(node).for_each(|link| link.lose = count);
            }
            Action::Cut(node) => self.fleet.cut(node),
            Action::Mend(node) => self.fleet.mend(node),
            Action::Deliver { node, worker } => {
                self.fleet.deliver(node, worker);
            }
            Action::Pass(ms) => {
                for node in 0..2 {
                    self.fleet.nodes[node].pass(ms);
                    self.fleet.nodes[node].settle();
                    self.fleet.take_requests(node);
                }
            }
            Action::Move { client, node } => {
                let now = self.fleet.nodes[node].now;
                let client = &mut self.clients[client];
                let world = &mut self.fleet.nodes[client.node];
                world.hub(client.session.worker()).close_session(now, client.session);
                world.settle();
                world.sent.remove(&client.session);
                client.node = node;
                client.session = self.fleet.nodes[node].open(client.session.worker(), "");
                (client.position, client.asked) = (None, false);
            }
            Action::Trim { channel, keep } => {
                let top = self.next;
                self.fleet.trim(CHANNELS[channel], top.saturating_sub(keep));
            }
            Action::Forget => self.fleet.forget(),
        }
        for client in 0..self.clients.len() {
            self.read(client);
        }
    }

    /// Judges what a client was sent.
    fn read(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.asked
            && let Some(result) = self.fleet.subscribed(client.node, client.session)
        {
            client.asked = false;
            if let Ok(subscribed) = result {
                if subscribed.recovered {
                    let had =
                        subscribed.publications.iter().map(|publication| publication.offset());
                    let missed = client.last.offset + 1..=subscribed.position.offset;
                    assert_eq!(had.collect::<Vec<u64>>(), missed.collect::<Vec<u64>>());
                    assert_eq!(client.last.epoch, subscribed.position.epoch);
                }
                client.position = Some(subscribed.position);
                client.last = subscribed.position;
            }
        }
        let text = self.fleet.nodes[client.node].read(client.session);
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[0] {
                "pub" => {
                    let offset: u64 = words[2].parse().expect("an offset");
                    let position = client.position.as_mut().expect("who is sent is subscribed");
                    assert_eq!(offset, position.offset + 1, "{line}");
                    position.offset = offset;
                    client.last = *position;
                    let key = (client.channel.to_owned(), position.epoch.to_string(), offset);
                    let data = self.ledger.entry(key).or_insert_with(|| words[3].to_owned());
                    assert_eq!(data, words[3], "one publication at one position");
                }
                "unsub" => client.position = None,
                other => panic!("{other}"),
            }
        }
    }

    /// Who is not subscribed asks to be.
    fn subscribe_all(&mut self) {
        let options = with_history();
        for at in 0..self.clients.len() {
            self.read(at);
            let client = &mut self.clients[at];
            if client.position.is_some() || std::mem::replace(&mut client.asked, true) {
                continue;
            }
            let recover = (!client.last.epoch.is_none()).then_some(client.last);
            let asked = SubscribeOptions { recover, ..SubscribeOptions::default() };
            let (node, session) = (client.node, client.session);
            self.fleet.begin_subscribe(node, session, client.channel, &options, asked);
        }
    }

    /// All is well again: everybody is where the engine is.
    fn end(&mut self) {
        for node in 0..2 {
            self.fleet.links(node).for_each(|link| link.lose = 0);
            self.fleet.cut(node);
        }
        for _ in 0..3 {
            for node in 0..2 {
                self.fleet.mend(node);
            }
            self.fleet.settle();
            self.subscribe_all();
            self.fleet.settle();
            self.fleet.pass(CONFIG.position_check_ms);
        }
        let options = with_history();
        while self.fleet.published(0).is_some() {}
        for channel in CHANNELS {
            let published =
                self.fleet.publish(0, channel, &options, publish("end")).expect("stored");
            for client in 0..self.clients.len() {
                self.read(client);
                let client = &self.clients[client];
                if client.channel == channel {
                    assert_eq!(client.position, Some(published.position), "{channel}");
                }
            }
        }
        for node in &self.fleet.nodes {
            for hub in &node.hubs {
                assert_eq!((hub.stats().engine_held_bytes, hub.stats().engine_pending), (0, 0));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_publication_arrives_once_and_in_order_or_the_client_is_notified(actions in actions()) {
        let mut run = Run::new();
        run.subscribe_all();
        for (number, action) in actions.iter().enumerate() {
            run.act(action);
            if number % 10 == 9 {
                run.subscribe_all();
            }
        }
        run.end();
    }
}
