//! Ends subscriptions, or their joins and leaves, whose permission was withdrawn.

use std::sync::Arc;

use super::Hub;
use crate::channel::{GRANTED, JOIN_LEAVE, JOIN_LEAVE_GRANTED, Subscription, SubscriptionState};
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

/// The permissions of a subscriber under the current rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriberRights {
    /// The subscription.
    pub subscription: bool,
    /// Receiving joins and leaves.
    pub join_leave: bool,
    /// The grant of the subscription, if it is based on one.
    pub grant: bool,
}

impl Hub {
    /// Continues a withdrawal for `steps` subscriptions. `permits` returns the permissions of a subscription,
    /// by channel, user, session and its tag. A subscription that is based on a valid grant is not affected.
    /// A subscription that ends is announced to its client by an [`Outgoing::Unsubscribe`] with code 2000 and
    /// `reason`, or by [`Error::PermissionWithdrawn`] if it is pending; joins and leaves end without
    /// notification. Returns whether all were checked.
    ///
    /// Subscriptions made meanwhile are not necessarily checked: the caller must permit them by the new
    /// rules.
    pub fn withdraw(
        &mut self,
        now: Now,
        withdrawal: &mut Withdrawal,
        steps: u32,
        reason: &str,
        permits: impl Fn(&str, &str, SessionId, u64) -> SubscriberRights,
    ) -> bool {
        self.now = now;
        let end = self.subscriptions.indices().end;
        let to = end.min(withdrawal.next.saturating_add(steps));
        for at in withdrawal.next..to {
            let subscription = self.subscriptions[at];
            let Subscription { channel, state, .. } = subscription;
            let slot = subscription.slot();
            if channel == NONE {
                continue;
            }
            let id = self.id_of(slot);
            let record = &mut self.channels[channel];
            let session = &self.sessions[slot];
            let permitted = permits(&record.name, self.users.name(session.user), id, session.tag);
            let is_granted = match state.get() {
                SubscriptionState::Established { index } => {
                    let subscriber = &mut record.subscribers[index as usize];
                    if !permitted.join_leave && subscriber.flags() & JOIN_LEAVE_GRANTED == 0 {
                        *subscriber = subscriber.without(JOIN_LEAVE);
                    }
                    subscriber.flags() & GRANTED != 0
                }
                SubscriptionState::Pending { key } => {
                    let Some(mode) = self.requests.mode_mut(key) else { continue };
                    mode.join_leave &= permitted.join_leave || mode.join_leave_granted;
                    mode.granted
                }
                SubscriptionState::Detached => continue,
            };
            if is_granted && permitted.grant || permitted.subscription {
                continue;
            }
            let name = Arc::clone(&record.name);
            if let SubscriptionState::Pending { key } = state.get() {
                if let Some(Waiter::Subscribe(pending)) = self.requests.cancel(key) {
                    self.fail_subscribe(&pending, Error::PermissionWithdrawn);
                }
                continue;
            }
            const CODE: u32 = code::UNSUBSCRIBE_SERVER;
            self.end_subscription(at, UnsubscribeCause::Server, CODE);
            self.enqueue(slot, &Outgoing::Unsubscribe { channel: &name, code: CODE, reason });
        }
        withdrawal.next = to;
        self.run();
        to == end
    }
}
