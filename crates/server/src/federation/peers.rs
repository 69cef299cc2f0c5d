//! The peers of the settings: each with its machine, and what its messages wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_config::{Federation, FederationPeer};
use dunlin_federation::{
    Admission, BudgetConfig, CloseCode, Event, LinkId, Message, Peer, PeerConfig, PublicKey, Reason,
};
use hashbrown::HashMap;

use super::queue::Queue;
use crate::message::federation::{DeliveryId, FederationToWorker, MessageId, SendAnswer};
use crate::state::federation::{PeerCounters, PeerMetric, PeerStatus};

/// After so long a message is given to its recipient's home again: its worker may have been restarted. The idempotency key keeps it
/// from being published twice.
const GIVE_AGAIN_MS: u64 = 10_000;
/// After so many times it fails.
const GIVEN_MAX: u8 = 6;

/// The time, by the loop's clock and since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) ms: u64,
    pub(super) unix_ms: u64,
}

/// What goes to which worker.
pub(super) type Outputs = VecDeque<(usize, FederationToWorker)>;

/// A message whose recipient's home has not answered.
struct Given {
    message: Arc<Message>,
    at_ms: u64,
    times: u8,
}

/// A message to the peer, until it is settled.
struct Sent {
    /// The call that waits for it: worker, token, and until when.
    call: Option<(usize, u64, u64)>,
    /// Who is notified if it fails later, and of which recipient.
    from_to: Option<Box<(String, String)>>,
}

/// A peer.
pub(super) struct RunningPeer {
    pub(super) machine: Peer,
    pub(super) config: Arc<FederationPeer>,
    pub(super) keys: Arc<[PublicKey]>,
    admission: Admission,
    given: HashMap<(u64, u64), Given>,
    sent: HashMap<u64, Sent>,
    /// Calls in the order of their timeouts.
    calls: VecDeque<u64>,
    /// Messages that the log has not written: up to where, and the number.
    storing: VecDeque<(u64, u64)>,
    storing_taken: VecDeque<(u64, u64, u64)>,
    /// The peer's messages are trimmed in the log before this.
    trimmed: u64,
    pub(super) counters: Arc<PeerCounters>,
    pub(super) last_error: Arc<str>,
    /// The state and since when, and the counts of a second ago.
    state: (&'static str, u64),
    counted: (u64, u64),
    rates: (u64, u64),
}

/// What a peer wants of the loop.
pub(super) enum Wish {
    Dial,
    Close(LinkId),
    Up,
    Down(Box<str>),
}

/// Returns how a peer's machine treats it.
fn peer_config(federation: &Federation, peer: &FederationPeer) -> PeerConfig {
    PeerConfig {
        dials: !peer.address.is_empty(),
        queue_bytes_max: federation.queue_bytes_max,
        expiry_ms: federation.expiry_ms,
        bytes_per_second: peer.bytes_per_s,
    }
}

fn budgets(peer: &FederationPeer) -> BudgetConfig {
    BudgetConfig {
        user_per_minute: peer.user_messages_per_minute_max,
        new_pairs_per_minute: peer.new_pairs_per_minute_max,
    }
}

fn keys(peer: &FederationPeer) -> Arc<[PublicKey]> {
    // They are validated.
    peer.keys.iter().filter_map(|key| PublicKey::parse(key).ok()).collect()
}

impl RunningPeer {
    /// Begins with a peer, with what is stored of it.
    pub(super) fn new(
        name: &Arc<str>,
        (federation, config): (&Federation, &Arc<FederationPeer>),
        queue: Option<&Queue>,
        counters: Arc<PeerCounters>,
        (now, random): (Now, [u64; 3]),
    ) -> Result<RunningPeer, String> {
        let restored = queue.map(|queue| queue.restore(name, now.unix_ms)).transpose()?;
        let stream = restored.as_ref().map_or(random[0].max(1), |of| of.stream);
        let how = peer_config(federation, config);
        let mut machine = Peer::new(&federation.domain, name, how, (stream, random[1]));
        let (mut sent, mut trimmed) = (HashMap::new(), 1);
        if let Some(restored) = restored {
            machine.restore(restored.base, restored.taken);
            trimmed = restored.base;
            for message in restored.messages {
                let left_ms = message.expires_unix_ms.saturating_sub(now.unix_ms);
                // A clock that has jumped does not make it live longer than a new one.
                let expires_ms = now.ms + left_ms.min(federation.expiry_ms);
                if let Ok(read) = Message::decode(&message.body) {
                    let from_to = from_to(&read);
                    sent.insert(message.seq, Sent { call: None, from_to });
                }
                machine.restore_message(message.seq, message.body, expires_ms);
            }
        }
        Ok(RunningPeer {
            machine,
            config: Arc::clone(config),
            keys: keys(config),
            admission: Admission::new(budgets(config), random[2]),
            given: HashMap::new(),
            sent,
            calls: VecDeque::new(),
            storing: VecDeque::new(),
            storing_taken: VecDeque::new(),
            trimmed,
            counters,
            last_error: "".into(),
            state: ("down", now.unix_ms),
            counted: (0, 0),
            rates: (0, 0),
        })
    }

    /// Applies other settings. A peer whose keys have changed has to show again who it is.
    pub(super) fn apply(
        &mut self,
        (now, queue): (Now, Option<&Queue>),
        federation: &Federation,
        config: &Arc<FederationPeer>,
    ) {
        self.machine.set_config(peer_config(federation, config));
        self.admission.set_config(budgets(config));
        if self.config.keys != config.keys || config.blocked {
            self.machine.close(
                now.ms,
                CloseCode::GoingAway,
                "the settings of the peer have changed",
            );
        }
        if self.config.address != config.address {
            self.machine.dial_now(now.ms);
        }
        if config.blocked && !self.config.blocked {
            self.give_up(queue, now);
        }
        (self.config, self.keys) = (Arc::clone(config), keys(config));
    }

    /// Fails all that waits for the peer: it is not one any more.
    pub(super) fn give_up(&mut self, queue: Option<&Queue>, now: Now) {
        self.machine.fail_all(Reason::NoPeer);
        self.storing.clear();
        self.trimmed = self.machine.next_seq();
        if let Some(queue) = queue {
            queue.trim(self.machine.name(), self.trimmed, now.unix_ms);
        }
    }

    /// Accepts a message to the peer. `call` is who is answered.
    pub(super) fn send(
        &mut self,
        (now, expiry_ms, wait_ms): (Now, u64, u64),
        queue: Option<&Queue>,
        (worker, token): (usize, u64),
        message: &Message,
        outputs: &mut Outputs,
    ) {
        let refused = |reason, outputs: &mut Outputs| {
            let answer = SendAnswer::Failed(reason);
            outputs.push_back((worker, FederationToWorker::Answer { token, answer }));
        };
        let body = message.encode();
        if !self.machine.has_room(body.len() + 64) {
            self.counters.count(PeerMetric::Failed);
            return refused(Reason::QueueFull, outputs);
        }
        let seq = match queue {
            None => self.machine.next_seq(),
            Some(queue) => {
                let name = self.machine.name();
                match queue.append(name, &body, now.unix_ms.saturating_add(expiry_ms)) {
                    Ok((seq, end)) => {
                        self.storing.push_back((end, seq));
                        seq
                    }
                    Err(error) => {
                        self.last_error = error.to_string().into();
                        self.counters.count(PeerMetric::Failed);
                        return refused(Reason::NotStored, outputs);
                    }
                }
            }
        };
        if self.machine.push(now.ms, seq, body).is_err() {
            return refused(Reason::QueueFull, outputs);
        }
        self.counters.count(PeerMetric::Sent);
        let call = Some((worker, token, now.ms + wait_ms));
        self.sent.insert(seq, Sent { call, from_to: from_to(message) });
        self.calls.push_back(seq);
        if queue.is_none() {
            self.machine.handle_stored(seq);
        }
    }

    /// Handles what the log has written.
    pub(super) fn handle_written(&mut self, queue: &Queue) {
        let written = queue.written();
        while let Some(&(end, seq)) = self.storing.front()
            && (end <= written || queue.failure().is_some())
        {
            self.storing.pop_front();
            match end <= written {
                true => self.machine.handle_stored(seq),
                false => self.machine.handle_not_stored(seq),
            }
        }
        while let Some(&(end, stream, taken)) = self.storing_taken.front()
            && end <= written
        {
            self.storing_taken.pop_front();
            self.machine.handle_taken_stored(stream, taken);
        }
    }

    /// A recipient's home has answered.
    pub(super) fn handle_taken(&mut self, id: &DeliveryId, result: Result<(), Reason>) {
        if self.given.remove(&(id.stream, id.seq)).is_some() {
            self.counters.count(match result {
                Ok(()) => PeerMetric::Received,
                Err(_) => PeerMetric::Refused,
            });
            self.machine.handle_taken(id.stream, id.seq, result);
        }
    }

    /// Handles the machine's events. Returns what the loop has to do.
    pub(super) fn poll(
        &mut self,
        now: Now,
        queue: Option<&Queue>,
        workers: usize,
        outputs: &mut Outputs,
    ) -> Option<Wish> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Dial => return Some(Wish::Dial),
                Event::Close(id) => return Some(Wish::Close(id)),
                Event::Up => {
                    self.counters.count(PeerMetric::Links);
                    self.counters.set(PeerMetric::Up, 1);
                    self.last_error = "".into();
                    return Some(Wish::Up);
                }
                Event::Down(why) => {
                    self.counters.set(PeerMetric::Up, 0);
                    self.counters.count(PeerMetric::LinkErrors);
                    self.last_error = (&*why).into();
                    return Some(Wish::Down(why));
                }
                Event::Deliver { stream, seq, message } => {
                    self.deliver(now, (stream, seq), message, workers, outputs);
                }
                Event::Settled { seq, result } => self.settle(seq, result, outputs),
                Event::Taken { stream, taken } => {
                    let name = self.machine.name();
                    match queue.map(|of| of.append_taken(name, (stream, taken), now.unix_ms)) {
                        None => self.machine.handle_taken_stored(stream, taken),
                        Some(Ok(end)) => self.storing_taken.push_back((end, stream, taken)),
                        // It is not acknowledged, and comes again.
                        Some(Err(error)) => self.last_error = error.to_string().into(),
                    }
                }
            }
        }
        if let Some(queue) = queue
            && self.machine.base() > self.trimmed
        {
            self.trimmed = self.machine.base();
            queue.trim(self.machine.name(), self.trimmed, now.unix_ms);
        }
        None
    }

    fn deliver(
        &mut self,
        now: Now,
        (stream, seq): (u64, u64),
        message: Message,
        workers: usize,
        outputs: &mut Outputs,
    ) {
        let FederationPeer { recipients, blocked_users, .. } = &*self.config;
        let is_reachable = recipients.is_empty() || recipients.contains(&message.to);
        let refused = if !is_reachable {
            Some(Reason::Unreachable)
        } else if blocked_users.contains(&message.from) {
            Some(Reason::Refused)
        } else if !self.admission.admit(now.ms, &message.from, &message.to) {
            Some(Reason::Limited)
        } else {
            None
        };
        if let Some(reason) = refused {
            self.counters.count(PeerMetric::Refused);
            return self.machine.handle_taken(stream, seq, Err(reason));
        }
        let message = Arc::new(message);
        let given = Given { message: Arc::clone(&message), at_ms: now.ms, times: 1 };
        self.given.insert((stream, seq), given);
        outputs.push_back(self.delivery((stream, seq), message, workers));
    }

    fn delivery(
        &self,
        (stream, seq): (u64, u64),
        message: Arc<Message>,
        workers: usize,
    ) -> (usize, FederationToWorker) {
        let id = DeliveryId { peer: Arc::clone(self.machine.name()), stream, seq };
        (worker_of(&message.to, workers), FederationToWorker::Deliver(id, message))
    }

    fn settle(&mut self, seq: u64, result: Result<(), Reason>, outputs: &mut Outputs) {
        self.counters.count(match result {
            Ok(()) => PeerMetric::Delivered,
            Err(_) => PeerMetric::Failed,
        });
        let Some(sent) = self.sent.remove(&seq) else { return };
        let id = MessageId { stream: self.machine.stream(), seq };
        match (sent.call, result, sent.from_to) {
            (Some((worker, token, _)), result, _) => {
                let answer = match result {
                    Ok(()) => SendAnswer::Delivered(id),
                    Err(reason) => SendAnswer::Failed(reason),
                };
                outputs.push_back((worker, FederationToWorker::Answer { token, answer }));
            }
            (None, Err(reason), Some(from_to)) => {
                let (from, to) = *from_to;
                let to = format!("{to}@{}", self.machine.name()).into();
                let notice = FederationToWorker::Notice { user: from.into(), to, id, reason };
                outputs.push_back((0, notice));
            }
            _ => {}
        }
        if let Err(reason) = result {
            let peer = self.machine.name();
            tracing::debug!(%peer, %id, %reason, "a message to a peer has failed");
        }
    }

    /// Answers calls that have waited long enough, or for a peer that is not there. Returns when the next is due.
    pub(super) fn answer_calls(&mut self, now_ms: u64, outputs: &mut Outputs) -> Option<u64> {
        let is_up = self.machine.is_up();
        let stored = self.storing.front().map_or(u64::MAX, |(_, seq)| *seq);
        while let Some(seq) = self.calls.front().copied() {
            let Some(sent) = self.sent.get_mut(&seq) else {
                self.calls.pop_front();
                continue;
            };
            let Some((worker, token, due_ms)) = sent.call else {
                self.calls.pop_front();
                continue;
            };
            // It is not accepted before it is stored.
            if seq >= stored {
                return None;
            }
            if is_up && due_ms > now_ms {
                return Some(due_ms);
            }
            self.calls.pop_front();
            sent.call = None;
            let answer = SendAnswer::Queued(MessageId { stream: self.machine.stream(), seq });
            outputs.push_back((worker, FederationToWorker::Answer { token, answer }));
        }
        None
    }

    /// Once a second: gives messages again whose homes have not answered, and shows how it is.
    pub(super) fn second(&mut self, now: Now, workers: usize, outputs: &mut Outputs) -> PeerStatus {
        let mut failed = Vec::new();
        let mut again = Vec::new();
        for (of, given) in &mut self.given {
            if now.ms.saturating_sub(given.at_ms) < GIVE_AGAIN_MS {
                continue;
            }
            match given.times {
                GIVEN_MAX => failed.push(*of),
                _ => {
                    (given.at_ms, given.times) = (now.ms, given.times + 1);
                    again.push((*of, Arc::clone(&given.message)));
                }
            }
        }
        outputs.extend(again.into_iter().map(|(of, message)| self.delivery(of, message, workers)));
        for (stream, seq) in failed {
            let id = DeliveryId { peer: Arc::clone(self.machine.name()), stream, seq };
            self.handle_taken(&id, Err(Reason::Unreachable));
        }
        let stats = self.machine.stats();
        let state = match stats.link {
            _ if self.config.blocked => "blocked",
            Some(_) => "up",
            None if self.config.address.is_empty() => "waiting",
            None => "down",
        };
        if state != self.state.0 {
            self.state = (state, now.unix_ms);
        }
        self.counters.set(PeerMetric::Queued, stats.queued as u64);
        self.counters.set(PeerMetric::QueuedBytes, stats.queued_bytes as u64);
        self.counters.set(PeerMetric::Pending, stats.pending as u64);
        let counts =
            (self.counters.get(PeerMetric::Delivered), self.counters.get(PeerMetric::Received));
        self.rates = (counts.0 - self.counted.0, counts.1 - self.counted.1);
        self.counted = counts;
        PeerStatus {
            state,
            dialed: stats.link == Some(true),
            since_unix_ms: self.state.1,
            queued: stats.queued,
            queued_bytes: stats.queued_bytes,
            oldest_ms: stats.oldest_ms.map(|at| now.ms.saturating_sub(at)),
            attempts: stats.attempts,
            next_attempt_ms: stats.next_attempt_ms.map(|at| at.saturating_sub(now.ms)),
            last_error: Arc::clone(&self.last_error),
            rates: self.rates,
        }
    }
}

/// Whoever is notified of a failure: not a backend, which has no channel.
fn from_to(message: &Message) -> Option<Box<(String, String)>> {
    (!message.from.is_empty()).then(|| Box::new((message.from.clone(), message.to.clone())))
}

/// Messages to one user are published by one worker, in their order.
fn worker_of(user: &str, workers: usize) -> usize {
    use std::hash::BuildHasher;
    (foldhash::fast::FixedState::default().hash_one(user) % workers as u64) as usize
}
