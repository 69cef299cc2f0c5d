//! One worker's hub.

mod agent;
mod announce;
mod channel_page;
mod cursors;
mod fan_out;
mod flush;
mod forms;
mod home;
mod in_flight;
mod members;
mod operation;
mod overflow;
mod pacing;
mod remote;
mod repair;
mod restart;
mod scatter_gather;
mod session;
mod streams;
mod subscribe;
mod subscriber_count;
mod tenants;
mod walk;
mod withdraw;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use self::announce::Announcements;
use self::forms::DeltaChannel;
use self::walk::Walks;
use crate::agent::Engines;
use crate::ages::DeliveredAges;
use crate::broadcast::Broadcasts;
use crate::channel::{Channel, NameHasher, Subscription};
use crate::channel_event::{ChannelEvent, ChannelEventFilter};
use crate::channel_filters::ChannelFilters;
use crate::channel_table::ChannelTable;
use crate::command::HubStats;
use crate::config::{HubConfig, Now};
use crate::cursor::CursorRounds;
use crate::cursor_table::CursorTable;
use crate::encode::{ENCODINGS_MAX, Encode};
use crate::error::Error;
use crate::event::Event;
use crate::filter_shares::FilterShares;
use crate::frame_log::FrameLog;
use crate::home_channel::HomeChannel;
use crate::idempotency::Idempotency;
use crate::in_flight::InFlight;
use crate::labels::Labels;
use crate::member_event::MemberEvent;
use crate::message::{HubMessage, HubMessageKind, WaiterId};
use crate::node_numbers::NodeNumbers;
use crate::pending_requests::{PendingRequests, Waiter};
use crate::position::{Epoch, StreamPosition};
use crate::publication::ClientInfo;
use crate::remote_members::RemoteMembers;
use crate::session::Session;
use crate::session_id::{SESSIONS_MAX, SessionId, WORKERS_MAX};
use crate::shares::Shares;
use crate::slots::{NONE, Slots};
use crate::trace::TracedDelivery;
use crate::transmit::TransmitQueues;
use crate::user::Users;

pub use channel_page::ChannelPattern;
pub use subscriber_count::SubscriberCount;
pub use tenants::TenantTraffic;
pub use withdraw::{CheckedSubscription, SubscriberRights, SubscriptionBasis, Withdrawal};

/// The sessions, subscriptions and home channels of one worker, and its pending output. Does no I/O and reads
/// no clock.
///
/// # Order of calls
///
/// 1. Pass input with `open_session`, `close_session` and the `handle_*` methods: operations of clients and
///    API callers, messages of other workers' hubs, the passage of time.
/// 2. After each of them (or a small group) call [`Hub::poll_event`] until `None`. It also handles messages
///    that wait behind an event: the event of a subscription is always returned before a publication enters
///    that session's outbox, so a reply that is [pushed](Hub::push) on the event precedes the publications.
///    If there are [engines](Hub::set_engines), call [`Hub::poll_engine`] until `None`, too.
/// 3. At the end of a turn call [`Hub::poll_transmit`] until `None`; pass each message to its worker or
///    return it with [`Hub::requeue`]. Then call [`Hub::begin_flush`] and [`Hub::poll_flush`] until `None`;
///    write each session's [outbox](Hub::outbox) and [advance](Hub::advance) it.
/// 4. Call [`Hub::handle_timeout`] no later than [`Hub::poll_timeout`], and begin the next turn no later than
///    [`Hub::flush_due_ms`].
///
/// Messages between two workers must arrive in the order they were polled. Messages between different pairs
/// of workers may arrive in any order.
pub struct Hub {
    config: HubConfig,
    encoder: Box<dyn Encode>,
    /// The time of the last call that had one.
    now: Now,
    names: NameHasher,

    sessions: Slots<Session>,
    /// Number of open sessions of each encoding.
    sessions_by_encoding: [u32; ENCODINGS_MAX],
    /// Node numbers in session ids.
    nodes: NodeNumbers,
    users: Users,
    /// Raw JSON about connections, if they have any.
    conn_infos: HashMap<u32, Box<[u8]>, RandomState>,
    labels: Labels,
    /// Commands about all users in progress.
    walks: Walks,
    subscriptions: Slots<Subscription>,
    /// Client information of subscriptions that differs from that of their connections.
    infos: HashMap<u32, Arc<ClientInfo>, RandomState>,
    channels: ChannelTable<Channel>,
    /// Number of incarnations assigned to channels and home channels.
    incarnations: u32,

    homes: ChannelTable<HomeChannel>,
    announcements: Announcements,
    /// Home channels with subscribers on some worker.
    active_homes: u64,
    history_bytes: usize,
    shares: Shares,
    epochs: u64,
    /// Time, index and incarnation of home channels whose stream has a deadline.
    stream_timers: BinaryHeap<Reverse<(u64, u32, u32)>>,
    idempotency: Idempotency,
    engines: Engines,
    cursors: CursorTable,
    rounds: CursorRounds,
    in_flight: InFlight,

    /// The filters of channels with subscribers that filter or use deltas.
    filters: HashMap<u32, ChannelFilters, RandomState>,
    filter_shares: FilterShares,
    deltas: HashMap<u32, DeltaChannel, RandomState>,
    /// The traffic of each tenant since it was last taken.
    tenant_traffic: HashMap<Box<str>, TenantTraffic, RandomState>,
    /// Deliveries since they were last taken.
    ages: DeliveredAges,
    traced: Vec<TracedDelivery>,
    /// Buffer for one delta.
    patch: Vec<u8>,

    log: FrameLog,
    /// Sum over all outboxes.
    pending_bytes: u64,
    dirty: VecDeque<u32>,
    /// Flushed over several turns, after the dirty sessions.
    broadcasts: Broadcasts,
    /// An outbox must be flushed before it accepts more.
    flush_wanted: bool,
    /// Ends and length of the list of sessions that cannot be flushed, longest first.
    slow_head: u32,
    slow_tail: u32,
    slow_len: u32,
    /// The times since when the outboxes of blocked sessions exceed their limits.
    overdue: HashMap<u32, u64, RandomState>,

    requests: PendingRequests,
    transmit: TransmitQueues,
    /// Incarnations of the other workers, if known.
    peers: Box<[Option<u32>]>,
    events: VecDeque<Event>,
    channel_event_filter: ChannelEventFilter,
    channel_events: VecDeque<ChannelEvent>,
    members_recorded: bool,
    member_events: VecDeque<MemberEvent>,
    remote_members: RemoteMembers,
    /// Messages, including own ones, that wait until the events before them are taken.
    inbound: VecDeque<(u8, HubMessageKind)>,
    running: bool,
    /// Counters; gauges are computed on request.
    stats: HubStats,
}

impl Hub {
    /// Creates a worker's hub without sessions or channels. With an `incarnation` above 0 it announces its
    /// restart to the other workers.
    ///
    /// # Panics
    ///
    /// Panics if `worker` is not below `workers`, or `workers` is above [`WORKERS_MAX`].
    pub fn new(mut config: HubConfig, encoder: Box<dyn Encode>) -> Self {
        assert!(
            config.worker < config.workers && usize::from(config.workers) <= WORKERS_MAX,
            "a worker's number is below the number of workers, which is at most {WORKERS_MAX}"
        );
        config.sessions_max = config.sessions_max.min(SESSIONS_MAX as u32);
        config.history_meta_ttl_ms = config.history_meta_ttl_ms.max(1);
        let mut transmit =
            TransmitQueues::new(config.workers, config.incarnation, config.transmit_bytes_max);
        if config.incarnation > 0 {
            for worker in (0..config.workers).filter(|&worker| worker != config.worker) {
                transmit.push(worker, HubMessageKind::Restarted);
            }
        }
        // Peers of a first incarnation are in their first, too. A later incarnation learns those of its peers
        // from their messages.
        let known = (config.incarnation == 0).then_some(0);
        Self {
            names: NameHasher::new(config.hash_seed, config.workers),
            encoder,
            now: Now::default(),
            sessions: Slots::new(1024),
            sessions_by_encoding: [0; ENCODINGS_MAX],
            users: Users::new(config.users.clone().map(|directory| (directory, config.worker))),
            conn_infos: HashMap::default(),
            labels: Labels::default(),
            walks: Walks::default(),
            subscriptions: Slots::new(0),
            infos: HashMap::default(),
            channels: ChannelTable::new(),
            incarnations: 0,
            homes: ChannelTable::new(),
            announcements: Announcements::default(),
            active_homes: 0,
            history_bytes: 0,
            shares: Shares::default(),
            epochs: 0,
            nodes: NodeNumbers::new(config.node),
            stream_timers: BinaryHeap::new(),
            idempotency: Idempotency::new(config.idempotency_keys_max),
            engines: Engines::new(config.requests_max),
            cursors: CursorTable::default(),
            rounds: CursorRounds::default(),
            in_flight: InFlight::default(),
            filters: HashMap::default(),
            filter_shares: FilterShares::default(),
            deltas: HashMap::default(),
            tenant_traffic: HashMap::default(),
            ages: DeliveredAges::default(),
            traced: Vec::new(),
            patch: Vec::new(),
            log: FrameLog::new(),
            pending_bytes: 0,
            dirty: VecDeque::new(),
            broadcasts: Broadcasts::new(config.broadcast_quantum),
            flush_wanted: false,
            slow_head: NONE,
            slow_tail: NONE,
            slow_len: 0,
            overdue: HashMap::default(),
            requests: PendingRequests::new(config.incarnation, config.requests_max),
            transmit,
            peers: vec![known; usize::from(config.workers)].into(),
            events: VecDeque::new(),
            channel_event_filter: ChannelEventFilter::default(),
            channel_events: VecDeque::new(),
            members_recorded: false,
            member_events: VecDeque::new(),
            remote_members: RemoteMembers::default(),
            inbound: VecDeque::new(),
            running: false,
            stats: HubStats::default(),
            config,
        }
    }

    /// Changes the limits. Existing objects stay, even beyond a lowered limit; identity, seeds and
    /// `requests_max` do not change.
    pub fn set_limits(&mut self, limits: &HubConfig) {
        self.config.sessions_max = limits.sessions_max.min(SESSIONS_MAX as u32);
        self.config.subscriptions_per_session_max = limits.subscriptions_per_session_max;
        self.config.channels_max = limits.channels_max;
        self.config.channels_per_owner_max = limits.channels_per_owner_max;
        self.config.channel_name_bytes_max = limits.channel_name_bytes_max;
        self.config.request_timeout_ms = limits.request_timeout_ms;
        self.config.pending_bytes_max = limits.pending_bytes_max;
        self.config.history_bytes_max = limits.history_bytes_max;
        self.config.filter_bytes_max = limits.filter_bytes_max;
        self.config.history_meta_ttl_ms = limits.history_meta_ttl_ms.max(1);
        self.config.transmit_bytes_max = limits.transmit_bytes_max;
        self.transmit.set_bytes_max(limits.transmit_bytes_max);
        self.config.idempotency_keys_max = limits.idempotency_keys_max;
        self.idempotency.set_max(limits.idempotency_keys_max);
    }

    /// Changes the node number in the ids of new sessions. Open sessions keep their ids.
    ///
    /// # Errors
    ///
    /// Returns [`Error::LimitExceeded`], without a change, while sessions with eight other numbers are open.
    pub fn set_node(&mut self, node: u16) -> Result<(), Error> {
        if !self.nodes.set(node) {
            return Err(Error::LimitExceeded);
        }
        self.config.node = node;
        Ok(())
    }

    /// Returns the next event. Call until `None` after each input.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.run();
        }
        self.events.pop_front()
    }

    /// Selects the [channel events](ChannelEvent) to record.
    pub fn set_channel_event_filter(&mut self, filter: ChannelEventFilter) {
        self.channel_event_filter = filter;
    }

    /// Returns the next channel event. Call until `None` after each [`Hub::poll_event`], before its event is
    /// handled: channel events that led to an event precede it.
    pub fn poll_channel_event(&mut self) -> Option<ChannelEvent> {
        self.channel_events.pop_front()
    }

    /// Handles a message of another worker's hub.
    pub fn handle_message(&mut self, now: Now, from: u8, message: HubMessage) {
        self.now = now;
        let Some(peer) = self.peers.get_mut(usize::from(from)) else { return };
        match *peer {
            Some(incarnation) if message.incarnation < incarnation => return,
            Some(incarnation) if message.incarnation > incarnation => {
                self.inbound.push_back((from, HubMessageKind::Restarted));
                self.peers[usize::from(from)] = Some(message.incarnation);
            }
            Some(_) => {}
            None => *peer = Some(message.incarnation),
        }
        if !matches!(message.kind, HubMessageKind::Restarted) {
            self.inbound.push_back((from, message.kind));
        }
        self.run();
    }

    /// Returns the next message and its worker. Call until `None`, which begins a new round: a worker whose
    /// message was [refused](Hub::requeue) is skipped until then.
    pub fn poll_transmit(&mut self) -> Option<(u8, HubMessage)> {
        self.transmit.pop()
    }

    /// Returns a message that a full ring did not accept. It stays the first of its worker's queue.
    pub fn requeue(&mut self, to: u8, message: HubMessage) {
        self.stats.transmit_refused += 1;
        self.transmit.unpop(to, message);
    }

    /// When [`Hub::handle_timeout`] is due, in [`Now::ms`]. Soon, while messages wait for a full ring, to try
    /// again.
    pub fn poll_timeout(&self) -> Option<u64> {
        let retry = self.transmit.is_backlogged().then(|| self.now.ms + 1);
        let stream_timer = self.stream_timers.peek().map(|Reverse((at, ..))| *at);
        let (keys, requests) = (self.idempotency.next_ms(), self.requests.sweep_ms());
        let engines = [self.engines.pending.sweep_ms(), self.engines.next_check_ms()];
        let announcements = self.announcements.due_ms();
        let times = [retry, stream_timer, keys, requests, announcements, self.in_flight.due_ms()];
        let times = times.into_iter().chain(engines);
        times.flatten().min()
    }

    /// Expires history, streams, idempotency keys and requests, announces joins and leaves, and sends again what was not
    /// acknowledged.
    pub fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        self.idempotency.expire(now.ms);
        self.announce_gathered();
        self.expire_streams();
        for key in self.requests.expired(now.ms) {
            self.stats.timeouts += 1;
            self.fail_request(self.requests.id(key), Error::Timeout);
        }
        self.engines_timeout();
        self.redeliver_due();
        self.run();
    }

    /// The position of a session in a channel: publications up to it were received, or are in its outbox. `None` without
    /// an established subscription of its own; [`Event::Unsubscribed`] has the position of one that the server ended.
    pub fn position(&self, id: SessionId, channel: &str) -> Option<StreamPosition> {
        self.is_subscribed(id, channel).then_some(())?;
        let channel = &self.channels[self.channels.find(&self.names, channel)?];
        channel.joined.then_some(channel.position)
    }

    /// The number of open sessions of each encoding, by the index of the encoding.
    pub fn sessions_by_encoding(&self) -> &[u32; ENCODINGS_MAX] {
        &self.sessions_by_encoding
    }

    /// Returns gauges and counters.
    pub fn stats(&self) -> HubStats {
        HubStats {
            sessions: self.sessions.len().into(),
            users: self.users.len().into(),
            subscriptions: self.subscriptions.len().into(),
            channels: self.channels.len().into(),
            home_channels: self.homes.len().into(),
            history_bytes: self.history_bytes as u64,
            cursor_records: self.cursors.len(),
            cursor_bytes: self.cursors.bytes() as u64,
            windows_full: self.in_flight.paused() as u64,
            filter_bytes: self.filter_shares.bytes() as u64,
            pending_memory_bytes: self.log.memory() as u64,
            pending_bytes: self.pending_bytes,
            transmit_bytes: self.transmit.bytes() as u64,
            engine_channels: self.engines.agents.len() as u64,
            engine_pending: self.engines.pending.len() as u64,
            engine_held_bytes: self.engines.held_bytes() as u64,
            ..self.stats
        }
    }

    /// Handles waiting messages, up to the next event.
    fn run(&mut self) {
        // Handling may send a message to this worker, which is then queued.
        if std::mem::replace(&mut self.running, true) {
            return;
        }
        while self.events.is_empty() {
            let Some((from, kind)) = self.inbound.pop_front() else { break };
            self.handle_kind(from, kind);
        }
        self.running = false;
    }

    fn handle_kind(&mut self, from: u8, kind: HubMessageKind) {
        match kind {
            HubMessageKind::Restarted => self.handle_restart(from),
            HubMessageKind::Subscribe(request) => self.home_subscribe(from, *request),
            HubMessageKind::Unsubscribe { channel, member, last } => {
                self.home_unsubscribe(from, &channel, member, last);
            }
            HubMessageKind::Describe { channel, info } => self.home_describe(&channel, &info),
            HubMessageKind::Publish(request) => self.home_publish(from, *request),
            HubMessageKind::History(request) => self.home_history(from, &request),
            HubMessageKind::Cursor(request) => self.home_cursor(from, *request),
            HubMessageKind::HistoryRemove { request, channel, namespace } => {
                self.home_history_remove(from, request, channel, &namespace);
            }
            HubMessageKind::Presence { request, channel, bytes_max } => {
                self.home_presence(from, request, &channel, bytes_max);
            }
            HubMessageKind::Publication { channel, epoch, publication, except } => {
                self.deliver_publication(from, &channel, epoch, &publication, except);
            }
            HubMessageKind::Join { channel, info, of_user } => {
                self.deliver_join(&channel, &info, of_user);
            }
            HubMessageKind::Leave { channel, info, of_user } => {
                self.deliver_leave(&channel, &info, of_user);
            }
            HubMessageKind::Acked { channel, owner, offset } => {
                self.handle_acked(&channel, &owner, offset);
            }
            HubMessageKind::Gap { channel } => self.deliver_gap(&channel),
            HubMessageKind::Reply(reply) => self.handle_reply(from, reply.request, reply.content),
            HubMessageKind::Scatter { request, scatter } if scatter.is_walk() => {
                self.begin_walk(from, request, scatter);
            }
            HubMessageKind::Scatter { request, scatter } => {
                self.handle_scatter(from, request, &scatter);
            }
        }
    }

    fn is_self(&self, worker: u8) -> bool {
        worker == self.config.worker
    }

    /// Sends a message that is always accepted; see [`TransmitQueues`].
    fn send_to(&mut self, worker: u8, kind: HubMessageKind) {
        if self.is_self(worker) {
            self.inbound.push_back((worker, kind));
        } else {
            self.transmit.push(worker, kind);
        }
    }

    fn has_room(&self, worker: u8, cost: usize) -> bool {
        self.is_self(worker) || self.transmit.has_room(worker, cost)
    }

    /// Sends a request to a channel's home worker.
    fn request(
        &mut self,
        home: u8,
        waiter: Waiter,
        kind: impl FnOnce(WaiterId) -> HubMessageKind,
    ) -> Result<WaiterId, Error> {
        if !self.requests.has_room() {
            self.stats.overloaded += 1;
            return Err(Error::Overloaded);
        }
        let deadline_ms = self.now.ms + self.config.request_timeout_ms;
        let request = self.requests.insert(deadline_ms, waiter);
        let kind = kind(request);
        if !self.has_room(home, kind.cost()) {
            self.requests.cancel(request.key);
            self.stats.overloaded += 1;
            return Err(Error::Overloaded);
        }
        self.send_to(home, kind);
        Ok(request)
    }

    fn check_name(&self, channel: &str) -> Result<(), Error> {
        let fits = (1..=usize::from(self.config.channel_name_bytes_max)).contains(&channel.len());
        if fits { Ok(()) } else { Err(Error::ChannelName) }
    }

    fn next_incarnation(&mut self) -> u32 {
        self.incarnations = self.incarnations.wrapping_add(1);
        self.incarnations
    }

    /// A new epoch: SplitMix64 from the hub's own seed.
    fn next_epoch(&mut self) -> Epoch {
        loop {
            self.epochs += 1;
            let mut value =
                self.config.seed.wrapping_add(self.epochs.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            let epoch = Epoch::from_u64(value ^ value >> 31);
            if !epoch.is_none() && epoch != Epoch::FOREIGN {
                return epoch;
            }
        }
    }
}
