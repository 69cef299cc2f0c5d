//! What is looked for among all sessions, channels or tokens of a worker: where each look goes on, a little in each turn.

use std::collections::HashSet;

use dunlin_hub::Withdrawal;

use crate::auth::revocation::TokenId;

/// The looks that are under way on one worker, and those that the next second begins.
#[derive(Debug)]
pub(crate) struct Sweeps {
    /// Since a permission to subscribe was withdrawn.
    withdrawal: Option<Withdrawal>,
    tenants: TenantSweep,
    /// Where counting the users of the sessions goes on.
    users_from: Option<u32>,
    /// Where the figures of tenants go on.
    shares_from: u32,
    /// Tokens that were revoked; the sessions that came with them are looked for once a second.
    revoked: HashSet<TokenId>,
    /// Members came and went of which the control thread was not notified.
    members_lost: bool,
}

/// The end of tenants that are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantSweep {
    /// Nothing is left of them here.
    Done,
    /// Their sessions end; it goes on here.
    Sessions(u32),
    /// Until the next second: what was on its way between workers comes.
    Waiting,
    /// Once no worker has a session of theirs, their channels are forgotten; it goes on here.
    Channels(u32),
}

impl Default for Sweeps {
    fn default() -> Sweeps {
        Sweeps {
            withdrawal: None,
            // An incarnation before this one may have had a part in the end of some.
            tenants: TenantSweep::Sessions(0),
            users_from: None,
            shares_from: 0,
            revoked: HashSet::new(),
            members_lost: false,
        }
    }
}

impl Sweeps {
    /// Whether there is a step to be made now, so that the worker does not sleep.
    pub(crate) fn is_due(&self) -> bool {
        self.withdrawal.is_some() || self.users_from.is_some() || self.tenants.is_due()
    }

    /// Once a second.
    pub(crate) fn handle_second(&mut self) {
        if self.tenants == TenantSweep::Waiting {
            self.tenants = TenantSweep::Channels(0);
        }
    }

    /// A permission was withdrawn: looks at all subscriptions, again if a look is under way.
    pub(crate) fn begin_withdrawal(&mut self) {
        self.withdrawal = Some(Withdrawal::default());
    }

    pub(crate) fn is_withdrawing(&self) -> bool {
        self.withdrawal.is_some()
    }

    /// Goes on with that. `step` says whether it was the last.
    pub(crate) fn continue_withdrawal(&mut self, step: impl FnOnce(&mut Withdrawal) -> bool) {
        if self.withdrawal.as_mut().is_some_and(step) {
            self.withdrawal = None;
        }
    }

    /// Tenants have changed: their end begins again.
    pub(crate) fn begin_tenants(&mut self) {
        self.tenants = TenantSweep::Sessions(0);
    }

    /// Where the end of tenants stands.
    pub(crate) fn tenants(&self) -> TenantSweep {
        self.tenants
    }

    /// It stands there from now on.
    pub(crate) fn set_tenants(&mut self, sweep: TenantSweep) {
        self.tenants = sweep;
    }

    /// Begins to count the users of all sessions, if that is wanted.
    pub(crate) fn begin_users(&mut self, is_wanted: bool) {
        self.users_from = is_wanted.then_some(0);
    }

    /// Where counting the users goes on, if it is under way.
    pub(crate) fn users_from(&self) -> Option<u32> {
        self.users_from
    }

    /// It goes on there; `None`: all are counted.
    pub(crate) fn continue_users(&mut self, next: Option<u32>) {
        self.users_from = next;
    }

    /// Where the figures of tenants go on.
    pub(crate) fn shares_from(&self) -> u32 {
        self.shares_from
    }

    /// They go on there; `None`: with the first again.
    pub(crate) fn continue_shares(&mut self, next: Option<u32>) {
        self.shares_from = next.unwrap_or(0);
    }

    /// A token was revoked.
    pub(crate) fn revoke(&mut self, token: TokenId) {
        self.revoked.insert(token);
    }

    /// The tokens that were revoked since, if there are any.
    pub(crate) fn take_revoked(&mut self) -> Option<HashSet<TokenId>> {
        (!self.revoked.is_empty()).then(|| std::mem::take(&mut self.revoked))
    }

    /// Whether the control thread has to list the members of channels again.
    pub(crate) fn has_lost_members(&self) -> bool {
        self.members_lost
    }

    pub(crate) fn set_members_lost(&mut self, are_lost: bool) {
        self.members_lost = are_lost;
    }
}

impl TenantSweep {
    /// Whether there is a step to be made now.
    pub(crate) fn is_due(self) -> bool {
        matches!(self, TenantSweep::Sessions(_) | TenantSweep::Channels(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_end_session_by_session_and_a_second_later_channel_by_channel() {
        let mut sweeps = Sweeps::default();
        assert_eq!(sweeps.tenants(), TenantSweep::Sessions(0), "what was begun before goes on");
        sweeps.handle_second();
        assert_eq!(sweeps.tenants(), TenantSweep::Sessions(0));
        sweeps.set_tenants(TenantSweep::Waiting);
        assert!(!sweeps.is_due(), "the worker may sleep");
        sweeps.handle_second();
        assert!(sweeps.is_due() && sweeps.tenants() == TenantSweep::Channels(0));
        sweeps.begin_tenants();
        assert_eq!(sweeps.tenants(), TenantSweep::Sessions(0), "others are gone by now");
        sweeps.set_tenants(TenantSweep::Done);
        sweeps.handle_second();
        assert!(!sweeps.is_due());
    }

    #[test]
    fn a_worker_is_awake_as_long_as_something_is_under_way() {
        let mut sweeps = Sweeps::default();
        sweeps.set_tenants(TenantSweep::Done);
        sweeps.continue_withdrawal(|_| unreachable!("none is under way"));
        sweeps.begin_withdrawal();
        sweeps.continue_withdrawal(|_| false);
        assert!(sweeps.is_due() && sweeps.is_withdrawing());
        sweeps.continue_withdrawal(|_| true);
        assert!(!sweeps.is_due());
        sweeps.begin_users(false);
        assert_eq!(sweeps.users_from(), None);
        sweeps.begin_users(true);
        sweeps.continue_users(Some(1_024));
        assert!(sweeps.is_due() && sweeps.users_from() == Some(1_024));
        sweeps.continue_users(None);
        sweeps.continue_shares(Some(9));
        assert!(!sweeps.is_due() && sweeps.shares_from() == 9);
        sweeps.continue_shares(None);
        assert_eq!(sweeps.shares_from(), 0, "the figures begin anew");
    }

    #[test]
    fn revoked_tokens_are_looked_for_once() {
        let mut sweeps = Sweeps::default();
        assert!(sweeps.take_revoked().is_none());
        sweeps.revoke(TokenId::NONE);
        sweeps.revoke(TokenId::NONE);
        assert_eq!(sweeps.take_revoked().map(|of| of.len()), Some(1));
        assert!(sweeps.take_revoked().is_none());
    }
}
