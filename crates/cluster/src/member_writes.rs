//! The queue of member changes for the store, in order.

use std::collections::VecDeque;

use super::members::TrackedChange;

/// The most changes that are queued or in flight, without those of a reconciliation. If there are more, a reconciliation replaces
/// them.
const PENDING_MAX: usize = 1 << 18;
/// The most changes in flight.
const IN_FLIGHT_MAX: usize = 1 << 15;

/// The queued changes, and the number in flight. Changes of a reconciliation are not bounded in number, but written in parts.
#[derive(Default)]
pub(super) struct MemberWrites {
    due: VecDeque<TrackedChange>,
    in_flight: usize,
    /// Changes added by reconciliations since the queue was last empty.
    listed: usize,
    /// The queued changes up to the last one of a reconciliation.
    listed_due: usize,
    /// Batches in flight with changes of a reconciliation.
    listed_in_flight: usize,
    /// Nothing is taken meanwhile.
    is_paused: bool,
}

/// Changes that are written together.
#[derive(Default)]
pub(super) struct MemberBatch {
    pub(super) changes: Vec<TrackedChange>,
    /// Some of them are of a reconciliation.
    is_listed: bool,
}

impl MemberWrites {
    /// Adds changes that workers report. Returns `false` if there are too many; the queue is then cleared.
    pub(super) fn add(&mut self, changes: Vec<TrackedChange>) -> bool {
        if self.count() + changes.len() > PENDING_MAX + self.listed {
            self.clear();
            return false;
        }
        self.due.extend(changes);
        true
    }

    /// Adds the changes of a reconciliation, without a bound.
    pub(super) fn add_listed(&mut self, changes: Vec<TrackedChange>) {
        self.listed += changes.len();
        self.due.extend(changes);
        self.listed_due = self.due.len();
    }

    /// Holds changes back until [`MemberWrites::resume`]: a leave that was written while the store's members are read could take
    /// its channel from the index that they are read by, and with it stale members of this process that nobody finds then.
    pub(super) fn pause(&mut self) {
        self.is_paused = true;
    }

    pub(super) fn resume(&mut self) {
        self.is_paused = false;
    }

    /// Whether changes are held back, and all that were sent before have been answered.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_paused && self.in_flight == 0
    }

    /// Takes the changes that may be sent now.
    pub(super) fn take(&mut self) -> MemberBatch {
        if self.is_paused {
            return MemberBatch::default();
        }
        let room = IN_FLIGHT_MAX - self.in_flight.min(IN_FLIGHT_MAX);
        let changes: Vec<_> = self.due.drain(..room.min(self.due.len())).collect();
        let is_listed = self.listed_due > 0 && !changes.is_empty();
        self.in_flight += changes.len();
        self.listed_due -= self.listed_due.min(changes.len());
        self.listed_in_flight += usize::from(is_listed);
        MemberBatch { changes, is_listed }
    }

    /// Counts changes as no longer in flight, whether they were written or not.
    pub(super) fn handle_done(&mut self, batch: &MemberBatch) {
        self.in_flight -= batch.changes.len();
        self.listed_in_flight -= usize::from(batch.is_listed);
        if self.count() == 0 {
            self.listed = 0;
        }
    }

    /// Clears the queue, because a reconciliation is pending.
    pub(super) fn clear(&mut self) {
        self.due.clear();
        self.listed_due = 0;
    }

    /// Whether changes of a reconciliation are queued or in flight.
    pub(super) fn has_listed(&self) -> bool {
        self.listed_due > 0 || self.listed_in_flight > 0
    }

    pub(super) fn count(&self) -> usize {
        self.due.len() + self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use dunlin_hub::{ClientInfo, SessionId};

    use super::super::node_message::{MemberChange, StoredMember};
    use super::*;

    fn changes(count: usize) -> Vec<TrackedChange> {
        let info = ClientInfo {
            user_is_number: false,
            foreign_client: None,
            client: SessionId::from_u64(0).expect("an id"),
            user: "".into(),
            conn_info: None,
            chan_info: None,
        };
        let member = StoredMember { presence: true, ..StoredMember::new(&"a".into(), &info) };
        let channel: std::sync::Arc<str> = "room".into();
        let change = |client| {
            let channel = std::sync::Arc::clone(&channel);
            (MemberChange { channel, client, joined: true, member: member.clone() }, false)
        };
        (0..count as u64).map(change).collect()
    }

    /// A worker with more members than may be out at once was never repaired: its list was dropped, and asked for again.
    #[test]
    fn a_reconciliation_writes_however_many_there_are_and_what_comes_meanwhile_behind_them() {
        let mut writes = MemberWrites::default();
        writes.add_listed(changes(PENDING_MAX + 5));
        assert!(writes.add(changes(7)), "what is listed takes nothing of the bound");
        let mut written = Vec::new();
        loop {
            let step = writes.take();
            if step.changes.is_empty() {
                break;
            }
            assert!(step.changes.len() <= IN_FLIGHT_MAX && writes.take().changes.is_empty());
            written.extend(step.changes.iter().map(|(change, _)| change.client));
            assert_eq!(writes.has_listed(), written.len() < PENDING_MAX + 5 || step.is_listed);
            writes.handle_done(&step);
            assert_eq!(writes.has_listed(), written.len() < PENDING_MAX + 5);
        }
        assert!(written.iter().copied().eq((0..PENDING_MAX as u64 + 5).chain(0..7)));
        assert_eq!((writes.count(), writes.listed), (0, 0));
        assert!(!writes.add(changes(PENDING_MAX + 1)) && writes.count() == 0);
    }

    #[test]
    fn changes_are_held_back_while_the_store_is_read() {
        let mut writes = MemberWrites::default();
        assert!(writes.add(changes(1)));
        let sent = writes.take();
        writes.pause();
        assert!(!writes.is_at_rest(), "the reading could overtake what was sent");
        writes.handle_done(&sent);
        assert!(writes.add(changes(2)) && writes.is_at_rest());
        assert!(writes.take().changes.is_empty());
        writes.resume();
        assert_eq!(writes.take().changes.len(), 2);
    }
}
