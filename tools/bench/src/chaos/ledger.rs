//! Records what was published, acknowledged and delivered to each client, and detects disagreements.
//!
//! Messages of a channel are numbered from 1. One is published at a time, and retried until it is acknowledged or
//! certainly refused. So each follower of a channel must receive the numbers that were not refused, each once and in
//! order, unless it is notified of a gap by `recovered: false`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::faults::Loss;

/// Disagreements of each kind that are described; further ones are only counted.
const DESCRIBED_MAX: u64 = 5;

/// The position of a message in its stream: the index of its epoch in the [`Record`], and its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Position {
    pub(super) epoch: u16,
    pub(super) offset: u64,
}

/// Publication state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// It is being published.
    #[default]
    Open,
    /// An attempt got no answer, or one that says that the message may have been stored.
    Uncertain,
    /// Acknowledged; `true` after an uncertain attempt.
    Acknowledged(bool),
    /// The server answered every attempt with the message not being stored.
    Refused,
}

/// A channel.
#[derive(Debug, Default)]
struct Record {
    epochs: Vec<String>,
    /// State of each message, by number.
    states: Vec<State>,
    /// The message at each position, as acknowledged or as delivered.
    places: HashMap<Position, u32>,
    /// The highest number delivered to any client.
    delivered: u32,
}

/// The state of one client's subscription to a channel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Follower {
    /// The client's position; `None` before the first answer.
    pub(super) position: Option<Position>,
    /// The last message that the client received.
    pub(super) last: u32,
    /// Set after the client was notified that messages may be missing, and after a first subscription.
    notified: bool,
    /// Lost messages that the client skipped and was not notified of yet: the nodes have still to detect the loss.
    owed: u32,
}

/// The records of all channels.
#[derive(Debug)]
pub(super) struct Ledger {
    records: Vec<Mutex<Record>>,
    /// Which acknowledged publications a server may lose.
    loss: Loss,
    disagreements: Mutex<(BTreeMap<&'static str, u64>, Vec<String>)>,
    acknowledged: AtomicU64,
    refused: AtomicU64,
    uncertain: AtomicU64,
    delivered: AtomicU64,
    lost_by_failover: AtomicU64,
    notified_late: AtomicU64,
}

/// The result of the run.
#[derive(Debug, Serialize)]
pub(super) struct LedgerResult {
    pub(super) acknowledged: u64,
    /// Answers that say that the message was not stored.
    refused: u64,
    /// Attempts without an answer, or with one that says that the message may have been stored.
    uncertain: u64,
    pub(super) delivered: u64,
    /// Messages that clients missed because of a failover before they were notified.
    lost_by_failover: u64,
    /// Of those, messages that clients were notified of later.
    notified_late: u64,
    pub(super) disagreements: u64,
    by_kind: BTreeMap<&'static str, u64>,
    pub(super) described: Vec<String>,
}

/// A message as a client received it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) offset: u64,
    /// Number of the message in its channel, assigned by its publisher.
    pub(super) number: u32,
    /// Whether it arrived in a recovery that changed the epoch.
    pub(super) crosses: bool,
}

impl Ledger {
    pub(super) fn new(channels: usize, loss: Loss) -> Self {
        Self {
            records: (0..channels).map(|_| Mutex::default()).collect(),
            loss,
            disagreements: Mutex::default(),
            acknowledged: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            uncertain: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            lost_by_failover: AtomicU64::new(0),
            notified_late: AtomicU64::new(0),
        }
    }

    pub(super) fn channels(&self) -> usize {
        self.records.len()
    }

    fn with<T>(&self, channel: usize, then: impl FnOnce(&mut Record) -> T) -> T {
        // Poisoning is ignored: nothing panics while the lock is held.
        let mut record = self.records[channel].lock().unwrap_or_else(|held| held.into_inner());
        then(&mut record)
    }

    fn disagree(&self, kind: &'static str, what: impl std::fmt::Display) {
        let mut all = self.disagreements.lock().unwrap_or_else(|held| held.into_inner());
        let count = all.0.entry(kind).or_default();
        *count += 1;
        if *count <= DESCRIBED_MAX {
            all.1.push(format!("{kind}: {what}"));
        }
    }

    /// Returns the number of the next message, which is about to be published.
    pub(super) fn begin(&self, channel: usize) -> u32 {
        self.with(channel, |record| {
            record.states.push(State::Open);
            record.states.len() as u32
        })
    }

    pub(super) fn uncertain(&self, channel: usize, number: u32) {
        self.uncertain.fetch_add(1, Ordering::Relaxed);
        self.with(channel, |record| record.states[number as usize - 1] = State::Uncertain);
    }

    /// Records that the server did not store the message. Returns whether to retry because an earlier attempt was uncertain.
    pub(super) fn refused(&self, channel: usize, number: u32) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.with(channel, |record| {
            let state = &mut record.states[number as usize - 1];
            if *state == State::Open {
                *state = State::Refused;
                if record.delivered >= number {
                    let what = format!("c{channel}: {number} was delivered before");
                    self.disagree("a message that was refused", what);
                }
            }
            *state == State::Uncertain
        })
    }

    pub(super) fn acknowledged(&self, channel: usize, number: u32, epoch: &str, offset: u64) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        self.with(channel, |record| {
            let state = &mut record.states[number as usize - 1];
            *state = State::Acknowledged(*state == State::Uncertain);
            let position = Position { epoch: record.epoch(epoch), offset };
            let there = *record.places.entry(position).or_insert(number);
            if there != number {
                self.disagree(
                    "one position of two messages",
                    format!(
                        "c{channel}: {number} is acknowledged at {epoch}/{offset}, where {there} is"
                    ),
                );
            }
        });
    }

    /// Returns the name of the epoch of a position, for a client that recovers.
    pub(super) fn epoch(&self, channel: usize, position: Position) -> String {
        self.with(channel, |record| record.epochs[position.epoch as usize].clone())
    }

    /// Returns the last acknowledged message.
    pub(super) fn last(&self, channel: usize) -> u32 {
        self.with(channel, |record| {
            let is_acknowledged = |state: &State| matches!(state, State::Acknowledged(_));
            record.states.iter().rposition(is_acknowledged).map_or(0, |at| at as u32 + 1)
        })
    }

    /// Records that a client is subscribed at this position. `recovered` holds the publications that it had missed, if
    /// it was recovered.
    pub(super) fn subscribed(
        &self,
        channel: usize,
        client: usize,
        follower: &mut Follower,
        (epoch, offset): (&str, u64),
        recovered: Option<&[(u64, u32)]>,
    ) {
        let new = Position { epoch: self.with(channel, |record| record.epoch(epoch)), offset };
        match (follower.position, recovered) {
            (Some(before), Some(publications)) => {
                let crosses = before.epoch != new.epoch;
                follower.position = Some(Position { epoch: new.epoch, offset: before.offset });
                for &(offset, number) in publications {
                    self.published(channel, client, follower, Arrival { offset, number, crosses });
                }
                if follower.position != Some(new) {
                    let at = follower.position.map_or(0, |position| position.offset);
                    self.disagree(
                        "a recovery with a hole",
                        format!(
                            "c{channel}, client {client}: from {} to {at}, and the stream is at {offset}",
                            before.offset
                        ),
                    );
                }
            }
            (before, _) => {
                if before.is_some() && self.loss == Loss::Nothing {
                    let what = format!("c{channel}, client {client}: at {epoch}/{offset}");
                    self.disagree("a recovery that was refused, and nothing was lost", what);
                }
                let owed = std::mem::take(&mut follower.owed);
                self.notified_late.fetch_add(owed.into(), Ordering::Relaxed);
                follower.notified = true;
            }
        }
        follower.position = Some(new);
    }

    /// Records that a client received a message.
    pub(super) fn published(
        &self,
        channel: usize,
        client: usize,
        follower: &mut Follower,
        Arrival { offset, number, crosses }: Arrival,
    ) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        let Some(position) = &mut follower.position else {
            return self.disagree("a message to nobody", format!("c{channel}, client {client}"));
        };
        let who = || format!("c{channel}, client {client}: {number} at offset {offset}");
        if offset != position.offset + 1 {
            self.disagree("an offset that is not the next", {
                format!("{}, after {}", who(), position.offset)
            });
        }
        position.offset = offset;
        let there = {
            let position = *position;
            self.with(channel, |record| *record.places.entry(position).or_insert(number))
        };
        if there != number {
            self.disagree("one position of two messages", {
                format!("{}, where others have {there}", who())
            });
        }
        self.arrived(channel, client, follower, (number, crosses));
    }

    /// Records a response to a long-poll, with its messages of one channel, and whether it is notified of a gap there. It is judged
    /// by what publishers know, and by no offset or cursor. The epoch says only when a loss may be reported later.
    pub(super) fn polled(
        &self,
        channel: usize,
        client: usize,
        follower: &mut Follower,
        (epoch, has_gap): (&str, bool),
        numbers: &[u32],
    ) {
        let epoch = self.with(channel, |record| record.epoch(epoch));
        let before = follower.position.replace(Position { epoch, offset: 0 });
        let crosses = before.is_some_and(|before| before.epoch != epoch);
        if has_gap {
            if self.loss == Loss::Nothing {
                let what = format!("c{channel}, client {client}: after {}", follower.last);
                self.disagree("a gap, and nothing was lost", what);
            }
            let owed = std::mem::take(&mut follower.owed);
            self.notified_late.fetch_add(owed.into(), Ordering::Relaxed);
            follower.notified = true;
        }
        for &number in numbers {
            self.delivered.fetch_add(1, Ordering::Relaxed);
            self.arrived(channel, client, follower, (number, crosses));
        }
    }

    /// Compares a message that a client received with those before it.
    fn arrived(
        &self,
        channel: usize,
        client: usize,
        follower: &mut Follower,
        (number, crosses): (u32, bool),
    ) {
        let who = || format!("c{channel}, client {client}: {number}");
        let (last, notified, owed) = (follower.last, follower.notified, &mut follower.owed);
        (follower.last, follower.notified) = (number, false);
        self.with(channel, |record| {
            record.delivered = record.delivered.max(number);
            let state = |of: u32| record.states.get(of as usize - 1).copied().unwrap_or_default();
            let doubtful = matches!(state(number), State::Uncertain | State::Acknowledged(true));
            if state(number) == State::Refused {
                self.disagree("a message that was refused", who());
            } else if number <= last && !(notified && doubtful) {
                self.disagree("a message again or late", format!("{}, after {last}", who()));
            } else if !notified && last > 0 {
                for missing in last + 1..number {
                    match state(missing) {
                        State::Refused => {}
                        _ if self.loss == Loss::Tail && crosses => {
                            *owed += 1;
                            self.lost_by_failover.fetch_add(1, Ordering::Relaxed);
                        }
                        state => self.disagree("a message that was lost", {
                            format!(
                                "c{channel}, client {client}: {missing} ({state:?}) before {number}"
                            )
                        }),
                    }
                }
            }
        });
    }

    /// Checks a client that has followed a channel to the end of the run.
    pub(super) fn ended(&self, channel: usize, client: usize, follower: &Follower) {
        let last = self.last(channel);
        if follower.owed > 0 {
            let owed = follower.owed;
            self.disagree("a loss without notice", {
                format!("c{channel}, client {client}: {owed} messages")
            });
        }
        if follower.last != last {
            let has = follower.last;
            self.disagree("an end that is missing", {
                format!("c{channel}, client {client}: it has {has}, and {last} is the last")
            });
        }
    }

    /// Records another disagreement.
    pub(super) fn wrong(&self, kind: &'static str, what: String) {
        self.disagree(kind, what);
    }

    pub(super) fn result(&self) -> LedgerResult {
        let all = self.disagreements.lock().unwrap_or_else(|held| held.into_inner());
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LedgerResult {
            acknowledged: of(&self.acknowledged),
            refused: of(&self.refused),
            uncertain: of(&self.uncertain),
            delivered: of(&self.delivered),
            lost_by_failover: of(&self.lost_by_failover),
            notified_late: of(&self.notified_late),
            disagreements: all.0.values().sum(),
            by_kind: all.0.clone(),
            described: all.1.clone(),
        }
    }
}

impl Record {
    fn epoch(&mut self, name: &str) -> u16 {
        let known = self.epochs.iter().position(|epoch| epoch == name);
        known.unwrap_or_else(|| {
            self.epochs.push(name.to_owned());
            self.epochs.len() - 1
        }) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a ledger with one channel, whose messages were acknowledged at offsets from 1 in the epoch `a`, and a
    /// follower at its beginning.
    fn arrival(offset: u64, number: u32) -> Arrival {
        Arrival { offset, number, crosses: false }
    }

    fn scene(messages: u32) -> (Ledger, Follower) {
        let ledger = Ledger::new(1, Loss::All);
        for _ in 0..messages {
            let number = ledger.begin(0);
            ledger.acknowledged(0, number, "a", number.into());
        }
        let mut follower = Follower::default();
        ledger.subscribed(0, 0, &mut follower, ("a", 0), None);
        (ledger, follower)
    }

    fn kinds(ledger: &Ledger) -> Vec<&'static str> {
        ledger.result().by_kind.into_keys().collect()
    }

    #[test]
    fn client_with_each_message_once_and_in_order_agrees_also_over_a_recovery() {
        let (ledger, mut follower) = scene(5);
        ledger.published(0, 0, &mut follower, arrival(1, 1));
        ledger.subscribed(0, 0, &mut follower, ("a", 4), Some(&[(2, 2), (3, 3), (4, 4)]));
        ledger.published(0, 0, &mut follower, arrival(5, 5));
        ledger.ended(0, 0, &follower);
        assert!(kinds(&ledger).is_empty(), "{:?}", ledger.result());
    }

    #[test]
    fn each_disagreement_has_its_name() {
        let (ledger, mut follower) = scene(5);
        ledger.published(0, 0, &mut follower, arrival(1, 1));
        let at_one = follower;
        ledger.published(0, 0, &mut follower, arrival(3, 3));
        assert_eq!(kinds(&ledger), ["a message that was lost", "an offset that is not the next"]);

        let (ledger, _) = scene(5);
        ledger.published(0, 0, &mut at_one.clone(), arrival(2, 1));
        assert_eq!(kinds(&ledger), ["a message again or late", "one position of two messages"]);

        let (ledger, _) = scene(5);
        ledger.subscribed(0, 0, &mut at_one.clone(), ("a", 3), Some(&[(2, 2)]));
        ledger.ended(0, 0, &at_one);
        assert_eq!(kinds(&ledger), ["a recovery with a hole", "an end that is missing"]);
    }

    #[test]
    fn notified_client_may_miss_messages_and_uncertain_ones_may_come_again() {
        let (ledger, mut follower) = scene(2);
        let number = ledger.begin(0);
        ledger.uncertain(0, number);
        for (offset, number) in [(1, 1), (2, 2), (3, 3)] {
            ledger.published(0, 0, &mut follower, arrival(offset, number));
        }
        ledger.acknowledged(0, number, "b", 1);
        ledger.subscribed(0, 0, &mut follower, ("b", 0), None);
        ledger.published(0, 0, &mut follower, arrival(1, 3));
        assert!(kinds(&ledger).is_empty(), "{:?}", ledger.result());
        ledger.published(0, 0, &mut follower, arrival(2, 3));
        assert_eq!(kinds(&ledger), ["a message again or late"]);
    }

    #[test]
    fn client_that_misses_a_message_lost_by_a_failover_must_be_notified() {
        let ledger = Ledger::new(1, Loss::Tail);
        let mut follower = Follower::default();
        for (number, at) in [(1, ("a", 1)), (2, ("a", 2)), (3, ("b", 2))] {
            assert_eq!(ledger.begin(0), number);
            ledger.acknowledged(0, number, at.0, at.1);
        }
        ledger.subscribed(0, 0, &mut follower, ("a", 0), None);
        ledger.published(0, 0, &mut follower, arrival(1, 1));
        ledger.subscribed(0, 0, &mut follower, ("b", 2), Some(&[(2, 3)]));
        let mut other = follower;
        ledger.subscribed(0, 0, &mut other, ("c", 2), None);
        ledger.ended(0, 0, &other);
        assert!(kinds(&ledger).is_empty(), "{:?}", ledger.result());
        ledger.ended(0, 0, &follower);
        assert_eq!(kinds(&ledger), ["a loss without notice"]);
    }

    /// A poll is judged by what publishers know: its cursor may say anything.
    #[test]
    fn poll_that_misses_or_repeats_a_message_disagrees_unless_it_was_notified_of_a_gap() {
        let (ledger, mut follower) = scene(6);
        ledger.polled(0, 0, &mut follower, ("a", false), &[1, 2]);
        ledger.polled(0, 0, &mut follower, ("a", false), &[]);
        assert!(kinds(&ledger).is_empty(), "{:?}", ledger.result());
        let mut other = follower;
        ledger.polled(0, 0, &mut other, ("b", true), &[5]);
        ledger.polled(0, 0, &mut other, ("b", false), &[6]);
        ledger.ended(0, 0, &other);
        assert!(kinds(&ledger).is_empty(), "it was notified: {:?}", ledger.result());
        ledger.polled(0, 0, &mut follower, ("a", false), &[4]);
        ledger.polled(0, 0, &mut follower, ("b", true), &[3]);
        ledger.ended(0, 0, &follower);
        assert_eq!(
            kinds(&ledger),
            ["a message again or late", "a message that was lost", "an end that is missing"]
        );
        let ledger = Ledger::new(1, Loss::Nothing);
        ledger.polled(0, 0, &mut Follower::default(), ("a", true), &[]);
        assert_eq!(kinds(&ledger), ["a gap, and nothing was lost"]);
    }

    #[test]
    fn client_within_the_history_must_recover() {
        let ledger = Ledger::new(1, Loss::Nothing);
        let mut follower = Follower::default();
        ledger.subscribed(0, 0, &mut follower, ("a", 0), None);
        assert!(kinds(&ledger).is_empty(), "{:?}", ledger.result());
        ledger.subscribed(0, 0, &mut follower, ("b", 0), None);
        assert_eq!(kinds(&ledger), ["a recovery that was refused, and nothing was lost"]);
    }

    #[test]
    fn refused_message_is_expected_of_nobody() {
        let (ledger, mut follower) = scene(1);
        ledger.published(0, 0, &mut follower, arrival(1, 1));
        let refused = ledger.begin(0);
        assert!(!ledger.refused(0, refused));
        let next = ledger.begin(0);
        ledger.acknowledged(0, next, "a", 2);
        let mut other = follower;
        ledger.published(0, 0, &mut follower, arrival(2, next));
        assert!(kinds(&ledger).is_empty(), "{:?}", ledger.result());
        ledger.published(0, 1, &mut other, arrival(2, refused));
        assert!(kinds(&ledger).contains(&"a message that was refused"));
    }
}
