//! What the webhooks thread receives.

use dunlin_webhooks::HookEvent;

/// A message to the webhooks thread.
pub(crate) enum WebhooksMessage {
    /// An event that some hook subscribes to.
    Event(Box<HookEvent>),
    /// From the admin thread: wakes the receiver, because a new snapshot has work for it. The thread switches at every wake-up.
    AdoptSettings,
    /// From the control thread: leave the event loop once the queued events are sent.
    Stop,
}
