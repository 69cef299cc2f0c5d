//! What a worker carries out in a turn of its loop, and what its sessions have used of their budgets.

use dunlin_hub::SessionId;

use crate::limits::budget::{Buckets, BudgetKey, Rates, Work};

/// Commands that one connection has carried out in a turn of the loop, and messages to others that they may cause, before
/// everybody else gets a turn.
const COMMANDS_PER_TURN: u32 = 256;
const DELIVERIES_PER_TURN: u64 = 16_384;
/// Commands of all connections together; after that, each has one carried out in this turn.
const ALL_COMMANDS_PER_TURN: u32 = 4_096;

/// The buckets of one worker's sessions, and what the turn of its loop has had so far.
#[derive(Default)]
pub(crate) struct Budgets {
    sessions: Buckets,
    turn: Turn,
    /// Bytes of answers that users and addresses have not been charged yet.
    answers: Vec<(SessionId, usize)>,
}

#[derive(Default)]
struct Turn {
    commands: u32,
    /// The connection whose commands are carried out, and what it has had.
    conn: u64,
    own: Work,
}

impl Budgets {
    /// Charges a session. Gives how long its next command has to wait.
    pub(crate) fn charge(
        &mut self,
        session: BudgetKey,
        rates: &Rates,
        work: Work,
        now_ms: u64,
    ) -> u64 {
        self.sessions.charge(session, rates, work, now_ms)
    }

    /// An answer of so many bytes is to be charged to more than its session.
    pub(crate) fn put_off(&mut self, session: SessionId, bytes: usize) {
        self.answers.push((session, bytes));
    }

    /// The next of those, at the end of the turn.
    pub(crate) fn next_put_off(&mut self) -> Option<(SessionId, usize)> {
        self.answers.pop()
    }

    /// Forgets sessions that owe nothing.
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        self.sessions.sweep(now_ms);
    }

    /// Begins another turn of the loop.
    pub(crate) fn begin_turn(&mut self) {
        self.turn = Turn::default();
    }

    /// Counts a command of a connection, of which `deliveries` may follow. False when the next has to wait for the next turn.
    pub(crate) fn take_turn(&mut self, conn: u64, deliveries: u64) -> bool {
        let turn = &mut self.turn;
        if turn.conn != conn {
            (turn.conn, turn.own) = (conn, Work::default());
        }
        turn.commands = turn.commands.saturating_add(1);
        turn.own.commands += 1;
        turn.own.deliveries = turn.own.deliveries.saturating_add(deliveries);
        turn.commands < ALL_COMMANDS_PER_TURN
            && turn.own.commands < COMMANDS_PER_TURN
            && turn.own.deliveries < DELIVERIES_PER_TURN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_charged_to_others_once() {
        let (mut budgets, session) = (Budgets::default(), SessionId::pack(0, 0, 0, 1, 0));
        budgets.put_off(session, 2_000);
        assert_eq!(budgets.next_put_off(), Some((session, 2_000)));
        assert_eq!(budgets.next_put_off(), None);
    }

    #[test]
    fn a_turn_is_shared() {
        let mut budgets = Budgets::default();
        let commands = (1..).find(|_| !budgets.take_turn(1, 0)).unwrap_or(0);
        assert_eq!(commands, COMMANDS_PER_TURN);
        assert!(budgets.take_turn(2, 1));
        assert!(!budgets.take_turn(2, DELIVERIES_PER_TURN), "to many subscribers");
        for conn in 3..20 {
            while budgets.take_turn(conn, 0) {}
        }
        assert!(!budgets.take_turn(20, 0), "one each, when all together have had enough");
        budgets.begin_turn();
        assert!(budgets.take_turn(20, 0));
    }
}
