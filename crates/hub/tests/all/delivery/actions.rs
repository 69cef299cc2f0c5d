//! Actions of the fuzzer: broadcasts paused and cancelled, changed rates and limits, disconnected
//! users, sleeping workers; and the checks after each.
//!
//! Shared by `fuzz/`, which explores, and by this folder's tests, which replay the seeds. The workers talk over the real
//! bus.

use std::collections::{HashMap, HashSet};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use dunlin_hub::{
    ChannelEvent, ChannelEventFilter, ChannelRef, DisconnectUser, Epoch, Error, History,
    HistoryFilter, HubConfig, Owner, Pacing, SessionId, SubscriberCount, UnsubscribeUser,
};

use super::simulation::{CLIENTS, FaultProfile, LIVE, Rng, Simulation, WORKERS};

/// A target by the name of its corpus.
pub type Target = fn(&[u8]);

/// `fuzz/corpus/NAME` holds the seeds.
pub const TARGETS: &[(&str, Target)] = &[("hub", hub)];

/// Bytes of the fault profile; the rest selects actions.
const HEAD: usize = 4;
/// More would be a longer run, not a different one.
const BYTES_MAX: usize = 4096;

/// Several hubs and the bus between them.
pub fn hub(data: &[u8]) {
    let data = &data[..data.len().min(BYTES_MAX)];
    let Some((&[flags, bounds, outbox, history], actions)) = data.split_first_chunk::<HEAD>()
    else {
        return;
    };
    let faults = FaultProfile {
        restarts: flags & 1 != 0,
        blocking: flags & 2 != 0,
        ring_slots: 1 + usize::from(bounds & 3),
        transmit_bytes_max: if flags & 4 != 0 {
            usize::MAX
        } else {
            300 + 20 * usize::from(bounds)
        },
        outbox_bytes_max: if flags & 8 != 0 { 1 << 20 } else { 100 + 20 * u32::from(outbox) },
        pending_bytes_max: if flags & 16 != 0 { usize::MAX } else { 100_000 },
        history_size: 1 + u32::from(history),
    };
    let rng = Rng::Given(actions.iter().copied().collect());
    let mut simulation = Simulation::begin(rng, u32::from(flags >> 5 & 3), faults);
    simulation.world.take_the_bus(faults.ring_slots);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        simulation.watch();
        while !simulation.is_over() {
            simulation.act();
            simulation.check_memory();
        }
        simulation.calm();
        simulation.rest();
        simulation.check();
        simulation.check_subscriber_count();
    }));
    if let Err(panic) = outcome {
        eprintln!("{faults:?}; the last lines:\n{}", simulation.log.join("\n"));
        std::panic::resume_unwind(panic);
    }
}

/// Checks of channel events: each publication once and in order, each subscription begins before it
/// ends.
#[derive(Default)]
pub struct RecordedEvents {
    published: HashMap<(Arc<str>, Epoch), u64>,
    subscribed: HashSet<(SessionId, Arc<str>)>,
}

impl Simulation {
    fn is_over(&self) -> bool {
        matches!(&self.rng, Rng::Given(bytes) if bytes.is_empty())
    }

    fn watch(&mut self) {
        for hub in &mut self.world.hubs {
            hub.set_channel_event_filter(ChannelEventFilter {
                subscriptions: true,
                publications: true,
                occupancy: false,
            });
        }
    }

    fn act(&mut self) {
        let worker = self.rng.roll(usize::from(WORKERS)) as u8;
        match self.rng.roll(32) {
            0..20 => {
                self.step();
                // A restarted worker records no channel events.
                self.watch();
            }
            20 | 21 => self.world.doze(worker),
            22..25 => self.hold(worker),
            25 | 26 => self.pace(worker),
            27 => self.limit(worker),
            28 | 29 => self.send_away(worker),
            30 => self.read_history(worker),
            _ => self.pass(7),
        }
    }

    fn a_channel(&mut self) -> String {
        let at = self.rng.roll(self.channels.len());
        self.channels[at].0.clone()
    }

    /// Pauses, resumes or cancels a broadcast, if there is one.
    fn hold(&mut self, worker: u8) {
        let channel = self.a_channel();
        let action = self.rng.roll(3);
        let hub = self.world.hub(worker);
        let found = match action {
            0 => hub.pause_broadcast(&channel),
            1 => hub.resume_broadcast(&channel),
            _ => hub.cancel_broadcast(&channel).is_some(),
        };
        self.note(format!("worker {worker}, {channel}: action {action}, {found}"));
        self.collect(worker);
    }

    fn pace(&mut self, worker: u8) {
        let rates = [0, 0, 1, 1_000];
        let pacing = Pacing {
            messages_per_s: NonZeroU64::new(rates[self.rng.roll(4)]),
            bytes_per_s: NonZeroU64::new(rates[self.rng.roll(4)] * 100),
            burst_ms: 1,
            sessions_per_turn: NonZeroU32::new(self.rng.roll(3) as u32),
        };
        let now = self.world.now;
        match self.rng.roll(2) {
            0 => self.world.hub(worker).set_worker_pacing(now, pacing),
            _ => self.world.hub(worker).set_pacing(now, &"".into(), pacing),
        }
    }

    fn limit(&mut self, worker: u8) {
        let limits = HubConfig {
            subscriptions_per_session_max: 1 + self.rng.roll(8) as u16,
            transmit_bytes_max: 200 + 100 * self.rng.roll(8),
            pending_bytes_max: [1, 70_000, usize::MAX][self.rng.roll(3)],
            history_bytes_max: [1, 2_000, usize::MAX][self.rng.roll(3)],
            ..self.world.config.clone()
        };
        self.world.hub(worker).set_limits(&limits);
    }

    /// The server has enough of a user, or of his listening to a channel.
    fn send_away(&mut self, worker: u8) {
        let user = ["ann", "bob"][self.rng.roll(2)];
        self.tokens += 1;
        let (now, token) = (self.world.now, self.tokens);
        self.note(format!("worker {worker} sends {user} away, by {token}"));
        if self.rng.roll(2) == 0 {
            let how = DisconnectUser { code: 3008, reason: "away".into(), ..Default::default() };
            self.world.hub(worker).handle_disconnect_user(now, token, user, how);
        } else {
            let channel = self.a_channel();
            let how = UnsubscribeUser { code: 2500, reason: "away".into(), ..Default::default() };
            self.world.hub(worker).handle_unsubscribe_user(now, token, user, &channel, how);
        }
        self.collect(worker);
    }

    fn read_history(&mut self, worker: u8) {
        let at = self.rng.roll(self.channels.len() - 1);
        let (name, options) = self.channels[at].clone();
        let now = self.world.now;
        let filter = HistoryFilter { reverse: self.rng.roll(2) == 0, ..HistoryFilter::default() };
        self.world.hub(worker).handle_history(
            now,
            3,
            ChannelRef::new(&name, &options),
            filter,
            Owner::NONE,
        );
        self.world.hub(worker).handle_presence(
            now,
            4,
            ChannelRef::new(&name, &options),
            usize::MAX,
        );
        self.collect(worker);
    }

    /// Offsets without a hole, ending or beginning with the newest.
    pub fn history_read(&mut self, result: Result<History, Error>) {
        let Ok(History { publications, position, .. }) = result else { return };
        let mut offsets: Vec<u64> = publications.iter().map(|one| one.offset()).collect();
        if offsets.first() > offsets.last() {
            offsets.reverse();
        }
        assert!(offsets.windows(2).all(|two| two[0] + 1 == two[1]), "{offsets:?}");
        assert!(offsets.last().is_none_or(|&last| last == position.offset), "{offsets:?}");
    }

    pub fn record_channel_events(&mut self, worker: u8) {
        while let Some(event) = self.world.hub(worker).poll_channel_event() {
            let RecordedEvents { published, subscribed } = &mut self.channel_events;
            match event {
                ChannelEvent::Published { channel, publication, .. } if &*channel == LIVE => {
                    assert_eq!(publication.offset(), 0);
                }
                ChannelEvent::Published { channel, epoch, publication } => {
                    let before = published.insert((channel, epoch), publication.offset());
                    assert_eq!(publication.offset(), before.unwrap_or(0) + 1);
                }
                ChannelEvent::Subscribed { session, channel, .. } => {
                    assert!(subscribed.insert((session, channel)), "subscribed twice");
                }
                ChannelEvent::Unsubscribed { session, channel, .. } => {
                    assert!(subscribed.remove(&(session, channel)), "ended before it began");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Takes back what would keep the world from coming to rest.
    fn calm(&mut self) {
        let (now, config) = (self.world.now, self.world.config.clone());
        let broadcasts: Vec<String> = self.channels.iter().map(|(name, _)| name.clone()).collect();
        for hub in &mut self.world.hubs {
            hub.set_limits(&config);
            hub.set_worker_pacing(now, Pacing::default());
            hub.set_pacing(now, &"".into(), Pacing::default());
            for channel in &broadcasts {
                hub.resume_broadcast(channel);
            }
        }
    }

    /// Nothing is kept for ever, whatever happens.
    fn check_memory(&self) {
        // What four times the bound of an outbox, one frame beyond it, and a reply with all of a history take.
        let outbox = 4 * u64::from(self.faults.outbox_bytes_max) + (64 << 10);
        for (worker, hub) in self.world.hubs.iter().enumerate() {
            let stats = hub.stats();
            assert!(stats.pending_bytes <= CLIENTS as u64 * outbox, "worker {worker}: {stats:?}");
            let small = 256 << 10;
            let most = self.faults.transmit_bytes_max.saturating_mul(3).saturating_add(small);
            assert!(stats.transmit_bytes <= most as u64, "worker {worker}: {stats:?}");
            let waiting: u64 = hub.broadcasts().map(|one| one.waiting).sum();
            assert!(waiting <= 4096, "worker {worker}: {waiting} wait for broadcasts");
        }
    }

    /// Counted a little at a time, everyone is counted once.
    fn check_subscriber_count(&mut self) {
        for (worker, hub) in self.world.hubs.iter().enumerate() {
            let mut count = SubscriberCount::default();
            while !hub.count_subscribers(&mut count, 1, |_, _| true) {}
            let here = |session: &SessionId| usize::from(session.worker()) == worker;
            let subscribed = |session: &SessionId| hub.subscriptions(*session).next().is_some();
            let sessions = self.clients.iter().filter_map(|client| client.session);
            let expected = sessions.filter(|session| here(session) && subscribed(session)).count();
            assert_eq!(count.sessions(), expected as u64, "worker {worker}");
        }
    }
}
