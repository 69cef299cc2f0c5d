//! How a run ends: everything comes to rest, and is counted.

use std::collections::{BTreeSet, HashMap};

use dunlin_hub::{ChannelRef, Event, HistoryFilter, Owner, SessionId, StreamPosition};

use super::client::State;
use super::simulation::{CLIENTS, LIVE, Simulation, WORKERS};

impl Simulation {
    /// Delivers what is on its way, to the workers and to the clients.
    pub fn settle(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for worker in 0..WORKERS {
                self.collect(worker);
                for to in 0..WORKERS {
                    while self.world.deliver(worker, to) {
                        moved = true;
                        self.collect(to);
                        self.flush(to);
                    }
                }
                self.flush(worker);
            }
        }
    }

    /// Lets everything come to rest: rings drained, sockets read, everyone subscribed again.
    pub fn rest(&mut self) {
        self.faults.blocking = false;
        self.resting = true;
        for round in 0..30 {
            self.settle();
            for at in 0..CLIENTS {
                self.unblock(at);
            }
            for at in 0..CLIENTS {
                self.connect(at);
                let off: Vec<String> = self.clients[at]
                    .channels
                    .iter()
                    .filter(|(_, state)| matches!(state, State::Off(_)))
                    .map(|(channel, _)| channel.clone())
                    .collect();
                for channel in off {
                    self.subscribe(at, &channel);
                }
            }
            if round == 10 {
                // Whatever was lost with a dead worker times out.
                self.pass(10_000);
            }
        }
    }

    /// Every subscriber must have received everything.
    pub fn check(&mut self) -> (u64, u64, u64) {
        let mut tops = HashMap::new();
        for (name, options) in self.channels.clone() {
            if name == LIVE {
                continue;
            }
            let now = self.world.now;
            let filter = HistoryFilter { limit: Some(0), ..HistoryFilter::default() };
            self.world.hub(0).handle_history(
                now,
                1,
                ChannelRef::new(&name, &options),
                filter,
                Owner::NONE,
            );
            self.world.settle();
            let event = self.world.take_events().pop();
            let Some((0, Event::History { result: Ok(history), .. })) = event else {
                panic!("{event:?}");
            };
            tops.insert(name, history.position);
        }
        for (at, client) in self.clients.iter().enumerate() {
            for (channel, state) in &client.channels {
                let State::On { last, excused, live } = state else {
                    panic!("client {at} is not back in {channel}: {state:?}");
                };
                if channel == LIVE {
                    let after = live.map_or(0, |last| self.live.range(last + 1..).count() as u64);
                    assert!(after <= *excused || self.faults.restarts, "client {at} in live");
                    continue;
                }
                // The last of them may be among the missing.
                let received = StreamPosition { offset: last.offset + excused, ..*last };
                assert_eq!(received, tops[channel], "client {at} in {channel}");
            }
            let session = client.session.expect("connected");
            let hub = &self.world.hubs[usize::from(session.worker())];
            let known: BTreeSet<&str> = hub.subscriptions(session).collect();
            assert_eq!(known, client.channels.keys().map(String::as_str).collect());
        }
        let hubs = &self.world.hubs;
        let sum = |gauge: fn(dunlin_hub::HubStats) -> u64| -> u64 {
            hubs.iter().map(|hub| gauge(hub.stats())).sum()
        };
        assert_eq!(sum(|stats| stats.pending_bytes), 0);
        assert_eq!(sum(|stats| stats.transmit_bytes), 0);
        assert_eq!(sum(|stats| stats.sessions), CLIENTS as u64);
        let subscriptions: u64 =
            self.clients.iter().map(|client| client.channels.len() as u64).sum();
        assert_eq!(sum(|stats| stats.subscriptions), subscriptions);
        self.check_presence();
        self.clients.iter().fold((0, 0, 0), |(received, recovered, gaps), client| {
            (received + client.received, recovered + client.recovered, gaps + client.gaps)
        })
    }

    /// Exactly the subscribed are present.
    pub fn check_presence(&mut self) {
        for (name, options) in self.channels.clone() {
            if !options.presence {
                continue;
            }
            let now = self.world.now;
            self.world.hub(1).handle_presence(now, 2, ChannelRef::new(&name, &options), usize::MAX);
            self.world.settle();
            let event = self.world.take_events().pop();
            let Some((1, Event::Presence { result: Ok(present), .. })) = event else {
                panic!("{event:?}");
            };
            let present: BTreeSet<SessionId> = present.iter().map(|info| info.client).collect();
            let subscribed = self
                .clients
                .iter()
                .filter(|client| client.channels.contains_key(&name))
                .filter_map(|client| client.session)
                .collect();
            assert_eq!(present, subscribed, "in {name}");
        }
    }
}
