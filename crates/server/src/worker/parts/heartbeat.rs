//! What was agreed with each session when it began, and when its next deadline is: a ping, or the end of its token.
//!
//! Pings leave in groups. One that leaves alone wakes its worker twice, for itself and for its answer, and with many
//! workers on a core these wake-ups cost several times what the ping does. So pings are due at multiples of a span in
//! which about [`PING_GROUP`] of them come together.

use dunlin_hub::{Now, SessionId};

use super::Jitter;
use super::session_params::{SessionParams, SessionParamsTable};
use super::token_table::TokenTable;
use crate::auth::revocation::TokenId;

/// More than the system's clock and the loop's differ by between two looks at the former, unless somebody sets it.
const CLOCK_DRIFT_MS: u64 = 20;
/// Pings of a worker that leave together, about. Their writes take a few tenths of a millisecond, for which other
/// messages of that worker wait.
const PING_GROUP: u64 = 64;

/// What is kept of the token that a session came with, as long as the session is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenFacts {
    pub(crate) id: TokenId,
    /// Unix seconds; 0: the token does not say.
    issued_at_s: u32,
    /// Unix seconds; [`NEVER`] where it does not expire, or in the next century.
    expire_at_s: u32,
}

/// One for each session that came with a token.
const _: () = assert!(size_of::<TokenFacts>() == 16);

impl Default for TokenFacts {
    fn default() -> Self {
        Self { id: TokenId::NONE, issued_at_s: 0, expire_at_s: NEVER }
    }
}

const NEVER: u32 = u32::MAX;

impl TokenFacts {
    pub(crate) fn new(
        id: TokenId,
        issued_at_s: Option<u64>,
        expire_at_s: Option<u64>,
    ) -> TokenFacts {
        let seconds = |at: u64| u32::try_from(at).unwrap_or(NEVER);
        TokenFacts {
            id,
            issued_at_s: issued_at_s.map_or(0, seconds),
            expire_at_s: expire_at_s.map_or(NEVER, seconds),
        }
    }

    /// Of a session that a backend has let in: there is no token, and the decision is of this Unix second.
    pub(crate) fn of_proxy(decided_at_s: u64, expire_at_s: Option<u64>) -> TokenFacts {
        TokenFacts::new(TokenId::NONE, Some(decided_at_s), expire_at_s)
    }

    /// The same, but that it expires then; `None`: never.
    pub(crate) fn until(self, expire_at_s: Option<u64>) -> TokenFacts {
        let expire_at_s = expire_at_s.map_or(NEVER, |at| u32::try_from(at).unwrap_or(NEVER));
        TokenFacts { expire_at_s, ..self }
    }

    /// The token's `iat`.
    pub(crate) fn issued_at_s(self) -> Option<u64> {
        (self.issued_at_s != 0).then(|| self.issued_at_s.into())
    }

    pub(super) fn expire_at_s(self) -> Option<u64> {
        (self.expire_at_s != NEVER).then(|| self.expire_at_s.into())
    }

    /// Whether it ends at all.
    pub(crate) fn expires(self) -> bool {
        self.expire_at_s().is_some()
    }

    /// Whole seconds until the token ends, for its client; 0: never.
    pub(crate) fn ttl_s(self, now: Now) -> u32 {
        if self.id == TokenId::NONE {
            // The client has nothing to refresh it with.
            return 0;
        }
        let Some(expire_at_s) = self.expire_at_s() else { return 0 };
        let left_s = expire_at_s.saturating_sub(now.unix_ms / 1000);
        u32::try_from(left_s).unwrap_or(u32::MAX).max(1)
    }
}

/// The agreements and tokens of one worker's sessions.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    /// Sessions of this worker, as of the last second.
    sessions: u64,
    params: SessionParamsTable,
    /// What is known of the tokens that sessions came with.
    tokens: TokenTable,
}

impl Heartbeat {
    /// A session begins under these parameters. Gives their place, for the connection's record; `None` when too many
    /// different ones are in force.
    pub(crate) fn hold(&mut self, params: SessionParams) -> Option<u16> {
        self.params.hold(params)
    }

    /// A session that held this place has ended, or never began.
    pub(crate) fn release(&mut self, place: u16) {
        self.params.release(place);
    }

    pub(crate) fn params(&self, place: u16) -> Option<SessionParams> {
        self.params.get(place)
    }

    /// The session's token is from now on one that this key has signed. Gives its new place, unless it stays.
    pub(crate) fn set_key(&mut self, place: u16, key: Option<u64>) -> Option<u16> {
        let params = self.params.get(place).filter(|params| params.key != key)?;
        let held = self.params.hold(SessionParams { key, ..params })?;
        self.params.release(place);
        Some(held)
    }

    /// Keys that have let sessions in, and how many.
    pub(crate) fn keys(&self) -> Vec<(u64, u64)> {
        self.params.keys()
    }

    /// How many sessions were let in by a key that `keeps` does not keep.
    pub(crate) fn sessions_without(&self, keeps: impl Fn(u64) -> bool) -> u64 {
        self.params.sessions_without(keeps)
    }

    /// How many sessions share this worker's pings.
    pub(crate) fn set_sessions(&mut self, sessions: u64) {
        self.sessions = sessions;
    }

    /// The latest time at which a group of pings leaves, no later than `in_ms` from now. So the client never waits
    /// longer than it was promised.
    pub(crate) fn ping_in_ms(&self, in_ms: u64, interval_ms: u64, now: Now) -> u64 {
        let span_ms = (PING_GROUP * interval_ms / self.sessions.max(1)).min(interval_ms / 16);
        // A power of two: where the number of sessions changes the span, the groups before and after coincide.
        let span_ms = 1 << span_ms.max(1).ilog2();
        let at_ms = (now.ms + in_ms) / span_ms * span_ms;
        at_ms.saturating_sub(now.ms)
    }

    /// The token that the session comes with from now on; `None`: none, or the session has ended.
    pub(crate) fn set_token(&mut self, session: SessionId, token: Option<TokenFacts>) {
        self.tokens.set(session, token);
    }

    pub(crate) fn token(&self, session: SessionId) -> Option<TokenFacts> {
        self.tokens.get(session)
    }

    /// Those of the sessions that came with such a token.
    pub(crate) fn sessions_with(
        &self,
        sessions: impl Iterator<Item = SessionId>,
        is_such: impl Fn(SessionId, &TokenFacts) -> bool,
    ) -> Vec<SessionId> {
        let came = |&session: &SessionId| {
            self.token(session).is_some_and(|token| is_such(session, &token))
        };
        sessions.filter(came).collect()
    }

    /// Whole seconds until the session expires, for its client; 0: never.
    pub(crate) fn ttl_s(&self, session: SessionId, now: Now) -> u32 {
        self.tokens.get(session).map_or(0, |token| token.ttl_s(now))
    }

    /// When the loop is to look again, if the session's token and the grace after it end in a moment: the deadline was for that, and
    /// came early by what the system's clock differs from the loop's.
    pub(crate) fn ends_at_ms(&self, session: SessionId, now: Now, grace_ms: u64) -> Option<u64> {
        let left_ms = self.end_ms(session, grace_ms)?.saturating_sub(now.unix_ms);
        (left_ms <= CLOCK_DRIFT_MS).then(|| now.ms + left_ms + 1)
    }

    /// Whether the session's token has ended, and the grace after it.
    pub(crate) fn has_expired(&self, session: SessionId, now: Now, grace_ms: u64) -> bool {
        self.end_ms(session, grace_ms).is_some_and(|end_ms| end_ms <= now.unix_ms)
    }

    /// The loop's time in `in_ms` milliseconds, or when the session expires if that comes first.
    pub(crate) fn deadline_ms(
        &self,
        session: SessionId,
        in_ms: u64,
        now: Now,
        grace_ms: u64,
    ) -> u64 {
        let at_ms = now.ms + in_ms;
        let Some(end_ms) = self.end_ms(session, grace_ms) else { return at_ms };
        let left_ms = end_ms.saturating_sub(now.unix_ms);
        at_ms.min(now.ms.saturating_add(left_ms).saturating_add(1))
    }

    /// Unix time. Saturates: "never" is written as the largest number there is, too.
    fn end_ms(&self, session: SessionId, grace_ms: u64) -> Option<u64> {
        Some(self.expire_at_s(session)?.saturating_mul(1000).saturating_add(grace_ms))
    }

    fn expire_at_s(&self, session: SessionId) -> Option<u64> {
        self.tokens.get(session)?.expire_at_s()
    }
}

/// The first ping comes at a random time within the interval, so that clients that came together are not pinged
/// together for ever.
pub(crate) fn first_ping_ms(interval_ms: u64, jitter: &mut Jitter) -> u64 {
    interval_ms / 2 + jitter.below(interval_ms / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(slot: u32) -> SessionId {
        SessionId::pack(0, 0, 0, slot, 0)
    }

    fn token(expire_at_s: Option<u64>) -> TokenFacts {
        TokenFacts::new(TokenId(1), None, expire_at_s)
    }

    /// The loop has run for 5 s.
    fn now(unix_s: u64) -> Now {
        Now { ms: 5_000, unix_ms: unix_s * 1000 }
    }

    #[test]
    fn a_session_is_pinged_until_its_token_ends() {
        let mut heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.deadline_ms(session(1), 25_000, now(100), 0), 30_000);
        assert_eq!(heartbeat.ttl_s(session(1), now(100)), 0, "it never expires");

        heartbeat.set_token(session(1), Some(token(Some(110))));
        assert_eq!(heartbeat.ttl_s(session(1), now(100)), 10);
        assert_eq!(heartbeat.deadline_ms(session(1), 25_000, now(100), 0), 15_001);
        assert_eq!(heartbeat.deadline_ms(session(1), 25_000, now(100), 3_000), 18_001);
        assert_eq!(heartbeat.deadline_ms(session(1), 2_000, now(100), 0), 7_000);
        assert!(!heartbeat.has_expired(session(1), now(109), 0));
        assert_eq!(heartbeat.ends_at_ms(session(1), now(109), 0), None);
        let early = Now { ms: 14_998, unix_ms: 109_998 };
        assert_eq!(heartbeat.ends_at_ms(session(1), early, 0), Some(15_001), "no ping is due");
        assert_eq!(heartbeat.ends_at_ms(session(2), early, 0), None);
        assert!(heartbeat.has_expired(session(1), now(110), 0));
        assert!(!heartbeat.has_expired(session(1), now(110), 1), "the grace has begun");
        assert_eq!(heartbeat.ttl_s(session(1), now(200)), 1, "0 would mean never");

        heartbeat.set_token(session(1), None);
        assert!(!heartbeat.has_expired(session(1), now(1_000), 0));
    }

    #[test]
    fn a_token_that_never_ends_is_no_overflow() {
        let mut heartbeat = Heartbeat::default();
        heartbeat.set_token(session(1), Some(token(Some(u64::MAX))));
        assert_eq!(heartbeat.deadline_ms(session(1), 25_000, now(100), u64::MAX), 30_000);
        assert!(!heartbeat.has_expired(session(1), now(100), 0));
        assert_eq!(heartbeat.ttl_s(session(1), now(100)), 0);
    }

    #[test]
    fn a_refreshed_token_of_another_key_moves_the_session_to_other_params() {
        let mut heartbeat = Heartbeat::default();
        let params = |key| SessionParams {
            ping_interval_ms: 25_000,
            pong_timeout_ms: 8_000,
            key: Some(key),
        };
        let place = heartbeat.hold(params(1)).unwrap();
        assert_eq!(heartbeat.set_key(place, Some(1)), None);
        let moved = heartbeat.set_key(place, Some(2)).unwrap();
        assert_eq!(heartbeat.params(moved), Some(params(2)));
        assert_eq!(heartbeat.keys(), [(2, 1)]);
        assert_eq!(heartbeat.sessions_without(|key| key == 2), 0);
    }

    #[test]
    fn pings_leave_in_groups_and_never_late() {
        let mut heartbeat = Heartbeat::default();
        let now = |ms| Now { ms, unix_ms: 0 };
        // 18,000 clients pinged every 270 s are 67 pings a second: a group of 64 wants about a second.
        heartbeat.set_sessions(18_000);
        let mut groups = std::collections::BTreeMap::new();
        for client in 0..18_000 {
            let at_ms = client * 15;
            let due_ms = at_ms + heartbeat.ping_in_ms(270_000, 270_000, now(at_ms));
            assert!((at_ms + 270_000 - 1024..=at_ms + 270_000).contains(&due_ms));
            *groups.entry(due_ms).or_insert(0) += 1;
        }
        assert!(groups.len() < 18_000 / 32, "{} groups", groups.len());
        assert!(groups.values().all(|pings| *pings <= 2 * PING_GROUP));
        // A few clients are not kept waiting for a group: a sixteenth of the interval at most.
        heartbeat.set_sessions(3);
        assert!(heartbeat.ping_in_ms(16_000, 16_000, now(500)) > 15_000);
        // Very many have a span of their own.
        heartbeat.set_sessions(10_000_000);
        assert_eq!(heartbeat.ping_in_ms(25_000, 25_000, now(7)), 25_000);
    }

    #[test]
    fn first_pings_are_spread_over_the_second_half_of_the_interval() {
        let mut jitter = Jitter::new(7);
        let times: Vec<u64> = (0..100).map(|_| first_ping_ms(20_000, &mut jitter)).collect();
        assert!(times.iter().all(|at_ms| (10_000..20_000).contains(at_ms)));
        assert!(times.iter().any(|at_ms| *at_ms < 12_500));
        assert!(times.iter().any(|at_ms| *at_ms > 17_500));
    }
}
