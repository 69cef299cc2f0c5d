//! The work of one turn of a worker's loop, and the buckets of its sessions.

use dunlin_hub::SessionId;

use crate::limits::budget::{Buckets, BudgetKey, COMMAND_NS, Rates, Work};

/// The most commands of one connection in a turn of the loop, and the most deliveries that these may cause. A delivery appends
/// to an outbox, which takes some nanoseconds: all of them less than a millisecond. Fewer would cut a batch of publications to a
/// large channel into many turns, each of which writes to some subscribers what could leave in one write.
const COMMANDS_PER_TURN: u32 = 256;
const DELIVERIES_PER_TURN: u64 = 131_072;
/// The most commands of all connections in a turn; after that, each connection executes one more.
const ALL_COMMANDS_PER_TURN: u32 = 4_096;
/// The most time that the commands of one connection take in a turn, and those of all, in commands of the time that the rate
/// provides for one.
const TIME_PER_TURN_NS: u64 = 32 * COMMAND_NS;
const ALL_TIME_PER_TURN_NS: u64 = 128 * COMMAND_NS;

/// The buckets of one worker's sessions, and the work of the current turn.
#[derive(Default)]
pub(crate) struct Budgets {
    sessions: Buckets,
    turn: Turn,
    /// Bytes of answers not yet charged to users and addresses.
    answers: Vec<(SessionId, usize)>,
}

#[derive(Default)]
struct Turn {
    commands: u32,
    spent_ns: u64,
    /// The connection that executes commands, and its work in this turn.
    conn: u64,
    own: Work,
}

impl Budgets {
    /// Charges a session. Returns how long its next command has to wait, in milliseconds.
    pub(crate) fn charge(
        &mut self,
        session: BudgetKey,
        rates: &Rates,
        work: Work,
        now_ms: u64,
    ) -> u64 {
        self.sessions.charge(session, rates, work, now_ms)
    }

    /// Notes an answer that is to be charged to the session's user and address.
    pub(crate) fn put_off(&mut self, session: SessionId, bytes: usize) {
        self.answers.push((session, bytes));
    }

    /// Returns the next such answer, at the end of the turn.
    pub(crate) fn next_put_off(&mut self) -> Option<(SessionId, usize)> {
        self.answers.pop()
    }

    /// Removes the buckets of sessions that are not ahead of the clock.
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        self.sessions.sweep(now_ms);
    }

    /// Begins another turn of the loop.
    pub(crate) fn begin_turn(&mut self) {
        self.turn = Turn::default();
    }

    /// Counts a command of a connection with its deliveries and its time. Returns `false` if the next one has to wait for the
    /// next turn.
    pub(crate) fn take_turn(&mut self, conn: u64, work: Work) -> bool {
        let turn = &mut self.turn;
        if turn.conn != conn {
            (turn.conn, turn.own) = (conn, Work::default());
        }
        turn.commands = turn.commands.saturating_add(1);
        turn.own.commands += 1;
        turn.own.deliveries = turn.own.deliveries.saturating_add(work.deliveries);
        turn.spent_ns = turn.spent_ns.saturating_add(work.spent_ns);
        turn.own.spent_ns = turn.own.spent_ns.saturating_add(work.spent_ns);
        turn.commands < ALL_COMMANDS_PER_TURN
            && turn.spent_ns < ALL_TIME_PER_TURN_NS
            && turn.own.spent_ns < TIME_PER_TURN_NS
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
        let (one, many) = (Work::default(), |deliveries| Work { deliveries, ..Work::default() });
        let commands = (1..).find(|_| !budgets.take_turn(1, one)).unwrap_or(0);
        assert_eq!(commands, COMMANDS_PER_TURN);
        assert!(budgets.take_turn(2, many(1)));
        assert!(!budgets.take_turn(2, many(DELIVERIES_PER_TURN)), "to many subscribers");
        for conn in 3..20 {
            while budgets.take_turn(conn, one) {}
        }
        assert!(!budgets.take_turn(20, one), "one each, when all together have had enough");
        budgets.begin_turn();
        assert!(budgets.take_turn(20, one));
    }

    #[test]
    fn turn_ends_by_time_however_few_commands_took_it() {
        let mut budgets = Budgets::default();
        let dear = Work { spent_ns: 20 * COMMAND_NS, ..Work::default() };
        assert!(budgets.take_turn(1, dear));
        assert!(!budgets.take_turn(1, dear), "a connection has its share");
        for conn in 2..6 {
            budgets.take_turn(conn, dear);
        }
        assert!(!budgets.take_turn(6, dear), "and all have theirs");
        budgets.begin_turn();
        assert!(budgets.take_turn(6, dear));
    }
}
