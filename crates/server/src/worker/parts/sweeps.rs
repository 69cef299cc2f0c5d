//! Scans of all sessions, channels or tokens of a worker, and the position of each; every turn does a small step.

use std::collections::HashSet;

use dunlin_hub::Withdrawal;

use crate::auth::revocation::TokenId;

/// The scans in progress on one worker, and those that start with the next second.
#[derive(Debug)]
pub(crate) struct Sweeps {
    /// The scan of subscriptions after a permission was withdrawn.
    withdrawal: Option<Withdrawal>,
    tenants: TenantSweep,
    /// The next position of the count of the sessions' users.
    users_from: Option<u32>,
    /// The next position of the scan that publishes the figures of tenants.
    shares_from: u32,
    /// Revoked tokens; once a second, their sessions are searched for.
    revoked: HashSet<TokenId>,
}

/// The steps of removing the data of deleted tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantSweep {
    /// Nothing of them is left here.
    Done,
    /// Their sessions are being closed, from this position on.
    Sessions(u32),
    /// Waits for the next second, so that messages in flight between workers arrive.
    Waiting,
    /// No worker has a session of theirs any more; their channels are being removed, from this position on.
    Channels(u32),
}

impl Default for Sweeps {
    fn default() -> Sweeps {
        Sweeps {
            withdrawal: None,
            // An earlier incarnation may not have completed the removal.
            tenants: TenantSweep::Sessions(0),
            users_from: None,
            shares_from: 0,
            revoked: HashSet::new(),
        }
    }
}

impl Sweeps {
    /// Whether a step is due now, so that the worker must not sleep.
    pub(crate) fn is_due(&self) -> bool {
        self.withdrawal.is_some() || self.users_from.is_some() || self.tenants.is_due()
    }

    /// Advances the sweep of tenants; called once a second.
    pub(crate) fn handle_second(&mut self) {
        if self.tenants == TenantSweep::Waiting {
            self.tenants = TenantSweep::Channels(0);
        }
    }

    /// Starts a scan of all subscriptions after a permission was withdrawn; restarts one in progress.
    pub(crate) fn begin_withdrawal(&mut self) {
        self.withdrawal = Some(Withdrawal::default());
    }

    pub(crate) fn is_withdrawing(&self) -> bool {
        self.withdrawal.is_some()
    }

    /// Continues the scan. `step` returns whether it was the last step.
    pub(crate) fn continue_withdrawal(&mut self, step: impl FnOnce(&mut Withdrawal) -> bool) {
        if self.withdrawal.as_mut().is_some_and(step) {
            self.withdrawal = None;
        }
    }

    /// Restarts the sweep of tenants, because tenants have changed.
    pub(crate) fn begin_tenants(&mut self) {
        self.tenants = TenantSweep::Sessions(0);
    }

    /// Returns the state of the sweep of tenants.
    pub(crate) fn tenants(&self) -> TenantSweep {
        self.tenants
    }

    /// Sets the state of the sweep of tenants.
    pub(crate) fn set_tenants(&mut self, sweep: TenantSweep) {
        self.tenants = sweep;
    }

    /// Starts or cancels the count of the users of all sessions.
    pub(crate) fn begin_users(&mut self, is_wanted: bool) {
        self.users_from = is_wanted.then_some(0);
    }

    /// Returns the next position of the count of users, if it is in progress.
    pub(crate) fn users_from(&self) -> Option<u32> {
        self.users_from
    }

    /// Sets the next position of the count of users; `None`: it is complete.
    pub(crate) fn continue_users(&mut self, next: Option<u32>) {
        self.users_from = next;
    }

    /// Returns the next position of the scan for the figures of tenants.
    pub(crate) fn shares_from(&self) -> u32 {
        self.shares_from
    }

    /// Sets the next position of that scan; `None`: it starts over.
    pub(crate) fn continue_shares(&mut self, next: Option<u32>) {
        self.shares_from = next.unwrap_or(0);
    }

    /// Records a revoked token.
    pub(crate) fn revoke(&mut self, token: TokenId) {
        self.revoked.insert(token);
    }

    /// Takes the tokens revoked since the last call, if there are any.
    pub(crate) fn take_revoked(&mut self) -> Option<HashSet<TokenId>> {
        (!self.revoked.is_empty()).then(|| std::mem::take(&mut self.revoked))
    }
}

impl TenantSweep {
    /// Whether a step is due now.
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
