//! Ends subscriptions whose permission was withdrawn.

use std::sync::Arc;

use super::Hub;
use crate::channel::{GRANTED, Subscription, SubscriptionState};
use crate::channel_event::UnsubscribeCause;
use crate::code;
use crate::config::Now;
use crate::encode::Outgoing;
use crate::error::Error;
use crate::pending_requests::Waiter;
use crate::slots::NONE;

/// A look through all subscriptions of a worker for those that may not stay, made in steps: a worker
/// with a million of them handles other input in between.
#[derive(Debug, Default)]
pub struct Withdrawal {
    /// The next subscription.
    next: u32,
}

impl Hub {
    /// Continues a withdrawal for `steps` subscriptions. `stays` says of each that its client asked for, by channel
    /// and user, whether it may stay; subscriptions that rest on a grant rest on nobody's permission to subscribe and
    /// are not asked about. The client is notified by an [`Outgoing::Unsubscribe`] with code 2000 and `reason`, or by
    /// [`Error::PermissionWithdrawn`] where the subscription was not made yet. True when all have been looked at.
    ///
    /// What is subscribed meanwhile is not looked at for certain: it is the caller's to allow by the new rules.
    pub fn withdraw(
        &mut self,
        now: Now,
        withdrawal: &mut Withdrawal,
        steps: u32,
        reason: &str,
        stays: impl Fn(&str, &str) -> bool,
    ) -> bool {
        self.now = now;
        let end = self.subscriptions.indices().end;
        let to = end.min(withdrawal.next.saturating_add(steps));
        for at in withdrawal.next..to {
            let Subscription { session: slot, channel, state, .. } = self.subscriptions[at];
            if slot == NONE {
                continue;
            }
            let record = &self.channels[channel];
            let is_granted = match state.get() {
                SubscriptionState::Established { index } => {
                    record.subscribers[index as usize].flags() & GRANTED != 0
                }
                SubscriptionState::Pending { key } => self.requests.is_granted(key),
                SubscriptionState::Detached => true,
            };
            let user = self.users.name(self.sessions[slot].user);
            if is_granted || stays(&record.name, user) {
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
            self.detach(at, UnsubscribeCause::Server);
            self.enqueue(slot, &Outgoing::Unsubscribe { channel: &name, code: CODE, reason });
            self.emit_unsubscribed(slot, &name, CODE);
        }
        withdrawal.next = to;
        self.run();
        to == end
    }
}
