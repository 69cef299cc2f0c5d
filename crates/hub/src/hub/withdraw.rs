//! Ends subscriptions, or their joins and leaves, whose permission was withdrawn.

use std::sync::Arc;

use super::Hub;
use crate::channel::{GRANTED, JOIN_LEAVE, JOIN_LEAVE_GRANTED, OF_CONNECTION, SubscriptionState};
use crate::channel_event::UnsubscribeCause;
use crate::code;
use crate::config::Now;
use crate::encode::Outgoing;
use crate::error::Error;
use crate::pending_requests::Waiter;
use crate::session_id::SessionId;
use crate::slots::NONE;

/// A check of all subscriptions of a worker for withdrawn permissions, in steps, so that a worker with a
/// million subscriptions is not blocked.
#[derive(Debug, Default)]
pub struct Withdrawal {
    /// The next subscription.
    next: u32,
}

/// A subscription that is compared with what its client may have now.
#[derive(Debug, Clone, Copy)]
pub struct CheckedSubscription<'a> {
    /// The channel.
    pub channel: &'a str,
    /// The user.
    pub user: &'a str,
    /// The session.
    pub session: SessionId,
    /// The caller's id of the session.
    pub tag: u64,
    /// What it rests on.
    pub basis: SubscriptionBasis,
}

/// What a subscription rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscriptionBasis {
    /// See [`SubscribeOptions::granted`](crate::SubscribeOptions::granted).
    pub granted: bool,
    /// See [`SubscribeOptions::of_connection`](crate::SubscribeOptions::of_connection).
    pub of_connection: bool,
}

/// The permissions of a subscriber under the current rules, and of its current grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriberRights {
    /// The subscription.
    pub subscription: bool,
    /// Receiving joins and leaves.
    pub join_leave: bool,
    /// The grant of the subscription, if it is based on one.
    pub grant: bool,
    /// The grant of joins and leaves, if they are based on one.
    pub join_leave_grant: bool,
}

impl SubscriberRights {
    /// Nothing.
    pub const NONE: Self =
        Self { subscription: false, join_leave: false, grant: false, join_leave_grant: false };
}

impl Hub {
    /// Continues a withdrawal for `steps` subscriptions. `permits` returns the permissions of a subscription. A subscription
    /// that is based on a valid grant is not affected. A subscription that ends is announced to its client by an
    /// [`Outgoing::Unsubscribe`] with code 2000 and `reason`, or by [`Error::PermissionWithdrawn`] if it is pending; joins and
    /// leaves end without notification. Returns whether all were checked.
    ///
    /// Subscriptions made meanwhile are not necessarily checked: the caller must permit them by the new
    /// rules.
    pub fn withdraw(
        &mut self,
        now: Now,
        withdrawal: &mut Withdrawal,
        steps: u32,
        reason: &str,
        permits: impl Fn(&CheckedSubscription<'_>) -> SubscriberRights,
    ) -> bool {
        self.now = now;
        let end = self.subscriptions.indices().end;
        let to = end.min(withdrawal.next.saturating_add(steps));
        for at in withdrawal.next..to {
            if self.subscriptions[at].channel != NONE {
                self.compare(at, reason, &permits);
            }
        }
        withdrawal.next = to;
        self.run();
        to == end
    }

    /// Compares the subscriptions of one session with what it may have now, as [`Hub::withdraw`] does those of all.
    pub fn compare_session(
        &mut self,
        now: Now,
        session: SessionId,
        reason: &str,
        permits: impl Fn(&CheckedSubscription<'_>) -> SubscriberRights,
    ) {
        self.now = now;
        let Some(slot) = self.live_slot(session) else { return };
        for at in self.subscriptions_of(slot).collect::<Vec<_>>() {
            if self.sessions[slot].is_live() {
                self.compare(at, reason, &permits);
            }
        }
        self.run();
    }

    fn compare(
        &mut self,
        at: u32,
        reason: &str,
        permits: impl Fn(&CheckedSubscription<'_>) -> SubscriberRights,
    ) {
        const CODE: u32 = code::UNSUBSCRIBE_SERVER;
        let subscription = self.subscriptions[at];
        let slot = subscription.slot();
        let record = &self.channels[subscription.channel];
        let granted = match subscription.state.get() {
            SubscriptionState::Established { index } => {
                record.subscribers[index as usize].flags() & GRANTED != 0
            }
            SubscriptionState::Pending { key } => match self.requests.mode_mut(key) {
                Some(mode) => mode.granted,
                None => return,
            },
            SubscriptionState::Detached => return,
        };
        let session = &self.sessions[slot];
        let basis = SubscriptionBasis { granted, of_connection: subscription.is(OF_CONNECTION) };
        let permitted = permits(&CheckedSubscription {
            channel: &record.name,
            user: self.users.name(session.user),
            session: self.id_of(slot),
            tag: session.tag,
            basis,
        });
        match subscription.state.get() {
            SubscriptionState::Established { index } => {
                let record = &mut self.channels[subscription.channel];
                let subscriber = &mut record.subscribers[index as usize];
                if !permitted.join_leave_grant {
                    *subscriber = subscriber.without(JOIN_LEAVE_GRANTED);
                }
                if !permitted.join_leave && subscriber.flags() & JOIN_LEAVE_GRANTED == 0 {
                    *subscriber = subscriber.without(JOIN_LEAVE);
                }
            }
            SubscriptionState::Pending { key } => {
                if let Some(mode) = self.requests.mode_mut(key) {
                    mode.join_leave_granted &= permitted.join_leave_grant;
                    mode.join_leave &= permitted.join_leave || mode.join_leave_granted;
                }
            }
            SubscriptionState::Detached => {}
        }
        if granted && permitted.grant || permitted.subscription {
            return;
        }
        let name = Arc::clone(&self.channels[subscription.channel].name);
        if let SubscriptionState::Pending { key } = subscription.state.get() {
            if let Some(Waiter::Subscribe(pending)) = self.requests.cancel(key) {
                self.fail_subscribe(&pending, Error::PermissionWithdrawn);
            }
            return;
        }
        self.end_subscription(at, UnsubscribeCause::Server, CODE);
        self.enqueue(slot, &Outgoing::Unsubscribe { channel: &name, code: CODE, reason });
    }
}
