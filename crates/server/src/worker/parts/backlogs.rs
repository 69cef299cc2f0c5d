//! Waiting commands of connections that have used up their budget, or their share of a turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use dunlin_net::ConnId;

use super::FastMap;
use super::flow_bytes::FlowBytes;

/// The `ready_ms` of commands that wait for the answer of a backend.
pub(crate) const ONCE_ANSWERED: u64 = u64::MAX;
/// The most connections that wait for a key; further ones are asked to reconnect.
const KEY_WAITERS_MAX: usize = 8_192;

/// The backlogs of one worker, in the order in which they may continue.
#[derive(Default)]
pub(crate) struct Backlogs {
    of: FastMap<u64, Backlog>,
    /// One valid entry for each backlog; entries of removed backlogs are skipped.
    ready: BinaryHeap<Reverse<(u64, u64)>>,
    bytes: FlowBytes,
    /// When the earliest timer fires.
    timer_ms: Option<u64>,
    /// Connections whose token's key is being fetched.
    key_waiters: Vec<ConnId>,
}

struct Backlog {
    frames: Frames,
    /// Its user or address.
    flow: u64,
    ready_ms: u64,
}

/// The commands of one connection, as one frame. May be empty: then only later commands wait.
///
/// Executed commands are skipped, and removed once they are the larger part, so each byte is moved at most once, in however many
/// turns the commands are executed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
    /// The number of executed bytes.
    done: usize,
}

impl From<Vec<u8>> for Frames {
    fn from(bytes: Vec<u8>) -> Frames {
        Frames { bytes, done: 0 }
    }
}

impl Frames {
    /// Returns the commands that wait.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.done..]
    }

    /// Marks all but the last `left` bytes as executed.
    pub(crate) fn leave(&mut self, left: usize) {
        self.done = self.bytes.len().saturating_sub(left);
        if self.done > self.bytes.len() / 2 {
            *self = self.rest().to_vec().into();
        }
    }
}

impl Backlogs {
    pub(crate) fn contains(&self, conn: ConnId) -> bool {
        !self.of.is_empty() && self.of.contains_key(&conn.to_u64())
    }

    /// Stores the remaining commands of a connection, of a user or address `flow`, until `ready_ms`. Returns `false` if there is no
    /// room for them in `bytes_max`: [`FlowBytes::add`].
    #[must_use]
    pub(crate) fn insert(
        &mut self,
        (conn, flow): (ConnId, u64),
        frames: Frames,
        ready_ms: u64,
        bytes_max: usize,
    ) -> bool {
        if !self.bytes.add(flow, frames.bytes.len(), bytes_max) {
            return false;
        }
        if ready_ms != ONCE_ANSWERED {
            self.ready.push(Reverse((ready_ms, conn.to_u64())));
        }
        let backlog = Backlog { frames, flow, ready_ms };
        if let Some(replaced) = self.of.insert(conn.to_u64(), backlog) {
            self.bytes.release(replaced.flow, replaced.frames.bytes.len());
        }
        true
    }

    /// Appends a separator and a frame to a connection's backlog. Returns `false` if there is none, if it would exceed `own_max`,
    /// or if there is no room for it in `bytes_max`.
    #[must_use]
    pub(crate) fn append(
        &mut self,
        conn: ConnId,
        separator: &[u8],
        frame: &[u8],
        own_max: usize,
        bytes_max: usize,
    ) -> bool {
        let Some(backlog) = self.of.get_mut(&conn.to_u64()) else { return false };
        let added = separator.len() + frame.len();
        if backlog.frames.rest().len() + added > own_max
            || !self.bytes.add(backlog.flow, added, bytes_max)
        {
            return false;
        }
        backlog.frames.bytes.extend_from_slice(separator);
        backlog.frames.bytes.extend_from_slice(frame);
        true
    }

    /// Makes the commands of a connection ready, if they wait for the answer of a backend.
    pub(crate) fn wake(&mut self, conn: ConnId, now_ms: u64) {
        if self.of.is_empty() {
            return;
        }
        if let Some(backlog) = self.of.get_mut(&conn.to_u64())
            && backlog.ready_ms == ONCE_ANSWERED
        {
            backlog.ready_ms = now_ms;
            self.ready.push(Reverse((now_ms, conn.to_u64())));
        }
    }

    /// Notes that the connection's commands, which the caller then stores, may continue when keys were fetched. Returns `false`
    /// if too many connections wait for keys.
    #[must_use]
    pub(crate) fn await_key(&mut self, conn: ConnId) -> bool {
        let has_room = self.key_waiters.len() < KEY_WAITERS_MAX;
        if has_room {
            self.key_waiters.push(conn);
        }
        has_room
    }

    /// Whether a connection waits for a key.
    pub(crate) fn awaits_keys(&self) -> bool {
        !self.key_waiters.is_empty()
    }

    /// Makes commands that wait for a key ready: keys were fetched, or the fetch failed.
    pub(crate) fn handle_keys(&mut self, now_ms: u64) {
        for conn in std::mem::take(&mut self.key_waiters) {
            if let Some(backlog) = self.of.get_mut(&conn.to_u64()) {
                backlog.ready_ms = now_ms;
                self.ready.push(Reverse((now_ms, conn.to_u64())));
            }
        }
    }

    /// Removes and returns the backlogs that may continue now.
    pub(crate) fn take_ready(&mut self, now_ms: u64) -> Vec<(ConnId, Frames)> {
        let mut ready = Vec::new();
        while let Some(&Reverse((at_ms, conn))) = self.ready.peek()
            && at_ms <= now_ms
        {
            self.ready.pop();
            if self.of.get(&conn).is_some_and(|backlog| backlog.ready_ms == at_ms) {
                let conn = ConnId::from_u64(conn);
                ready.extend(self.remove(conn).map(|frames| (conn, frames)));
            }
        }
        ready
    }

    /// Removes the backlog of a connection.
    pub(crate) fn remove(&mut self, conn: ConnId) -> Option<Frames> {
        if self.of.is_empty() {
            return None;
        }
        let backlog = self.of.remove(&conn.to_u64())?;
        self.bytes.release(backlog.flow, backlog.frames.bytes.len());
        if self.of.is_empty() {
            (self.of, self.ready) = Default::default();
        }
        Some(backlog.frames)
    }

    /// Whether a backlog may continue now.
    pub(crate) fn is_ready(&self, now_ms: u64) -> bool {
        self.ready.peek().is_some_and(|&Reverse((at_ms, _))| at_ms <= now_ms)
    }

    /// Returns the delay of a timer that must be set now.
    pub(crate) fn arm_timer(&mut self, now_ms: u64) -> Option<u64> {
        let &Reverse((at_ms, _)) = self.ready.peek()?;
        if at_ms <= now_ms || self.timer_ms.is_some_and(|timer_ms| timer_ms <= at_ms) {
            return None;
        }
        self.timer_ms = Some(at_ms);
        Some(at_ms - now_ms)
    }

    /// Notes that a timer has fired.
    pub(crate) fn handle_timer(&mut self, now_ms: u64) {
        self.timer_ms = self.timer_ms.filter(|&at_ms| at_ms > now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    /// A connection of a user of its own.
    fn at(number: u64) -> (ConnId, u64) {
        (conn(number), number)
    }

    fn frames(text: &[u8]) -> Frames {
        text.to_vec().into()
    }

    /// Regression test: all waiting bytes were copied for every executed command.
    #[test]
    fn waiting_bytes_are_moved_few_times_however_often_they_continue() {
        let mut waiting = frames(&[b'x'; 65_536]);
        let mut moves = 0;
        for left in (0..65_536).rev() {
            let end = waiting.rest().as_ptr_range().end;
            waiting.leave(left);
            assert_eq!(waiting.rest().len(), left);
            assert!(waiting.bytes.len() <= 2 * left + 1, "what is carried out is given back");
            moves += u32::from(waiting.rest().as_ptr_range().end != end);
        }
        assert!(moves <= 17, "{moves}");
    }

    #[test]
    fn client_that_waits_for_a_key_goes_on_when_it_was_fetched_and_waiting_is_bounded() {
        let mut backlogs = Backlogs::default();
        assert!(!backlogs.awaits_keys() && backlogs.await_key(conn(1)) && backlogs.awaits_keys());
        assert!(backlogs.insert(at(1), frames(b"a"), 1_000, 10));
        assert!(!backlogs.is_ready(20));
        backlogs.handle_keys(20);
        assert!(!backlogs.awaits_keys());
        assert_eq!(backlogs.take_ready(20), [(conn(1), frames(b"a"))]);
        assert_eq!(backlogs.take_ready(1_000), [], "once");
        assert!((0..KEY_WAITERS_MAX as u64).all(|number| backlogs.await_key(conn(number))));
        assert!(!backlogs.await_key(conn(0)));
    }

    #[test]
    fn waiting_commands_go_on_in_order_and_are_bounded() {
        let mut backlogs = Backlogs::default();
        assert!(backlogs.insert(at(1), frames(b"a"), 30, 10));
        assert!(backlogs.insert(at(2), frames(b"b"), 20, 10));
        assert!(backlogs.append(conn(1), b"\n", b"c", 3, 10));
        assert!(!backlogs.append(conn(1), b"\n", b"d", 3, 10), "of one connection");
        assert!(!backlogs.append(conn(2), b"\n", b"1234567", 99, 10), "of all");
        assert!(!backlogs.insert(at(3), frames(b"1234567"), 0, 10));
        assert!(!backlogs.append(conn(4), b"\n", b"", 9, 10), "nothing waits of this one");
        assert_eq!(backlogs.arm_timer(0), Some(20));
        assert_eq!(backlogs.arm_timer(5), None, "it is set");
        assert!(!backlogs.is_ready(19) && backlogs.is_ready(20));
        backlogs.handle_timer(20);
        assert_eq!(backlogs.take_ready(20), [(conn(2), frames(b"b"))]);
        assert_eq!(backlogs.arm_timer(20), Some(10));
        assert_eq!(backlogs.take_ready(30), [(conn(1), frames(b"a\nc"))]);
        assert_eq!((backlogs.bytes.all(), backlogs.is_ready(99)), (0, false));
    }

    /// Regression: connections of one user filled what all may have waiting, and others were disconnected.
    #[test]
    fn commands_of_a_user_that_wait_leave_room_for_those_of_others() {
        let mut backlogs = Backlogs::default();
        let own = (0..20)
            .filter(|number| backlogs.insert((conn(*number), 7), frames(&[b'x'; 10]), 30, 100))
            .count();
        assert_eq!(own, 5, "however many connections they come over");
        assert!(!backlogs.append(conn(0), b"\n", b"x", 99, 100));
        assert!(backlogs.insert((conn(30), 8), frames(&[b'x'; 10]), 30, 100));
        assert!(backlogs.append(conn(30), b"\n", b"x", 99, 100));
    }

    #[test]
    fn commands_behind_a_call_go_on_with_its_answer() {
        let mut backlogs = Backlogs::default();
        assert!(backlogs.insert(at(1), b"a".to_vec().into(), ONCE_ANSWERED, 10));
        assert_eq!((backlogs.arm_timer(5), backlogs.take_ready(u64::MAX)), (None, vec![]));
        backlogs.wake(conn(1), 7);
        backlogs.wake(conn(1), 8);
        assert_eq!(backlogs.take_ready(7), [(conn(1), b"a".to_vec().into())]);
        assert!(backlogs.insert(at(1), b"b".to_vec().into(), 30, 10));
        backlogs.wake(conn(1), 9);
        assert!(!backlogs.is_ready(29), "this one waits for its budget");
    }

    #[test]
    fn a_connection_that_closes_takes_its_commands_along() {
        let mut backlogs = Backlogs::default();
        assert!(backlogs.insert(at(1), frames(b"a"), 5, 10));
        assert!(backlogs.insert(at(2), Frames::default(), 7, 10));
        assert!(backlogs.contains(conn(2)));
        backlogs.remove(conn(1));
        assert!(!backlogs.contains(conn(1)));
        assert_eq!(backlogs.take_ready(6), []);
        assert_eq!(backlogs.take_ready(7), [(conn(2), Frames::default())]);
        assert_eq!(backlogs.ready.capacity(), 0);
    }
}
