//! Push notifications: the API at and below `/api/push`.
//!
//! The senders of `dunlin-push` run on a separate thread with a `tokio` runtime. A worker sends it a request's body over
//! the bus and continues ([`PushRequest`](crate::message::push::PushRequest)). The thread returns pieces of the response
//! ([`PushReply`](crate::message::push::PushReply)), within the client's window ([`flow`]). The admin thread validates
//! credentials ([`judge`]) and passes them on once a change is in effect ([`PushHandle::apply`]), so that they are in use
//! when the change is answered.
//!
//! A call ([`call`]) reads its body ([`submission`]), finds the devices ([`devices`]), submits each push to its credential's
//! sender ([`senders`]) and reports its outcome ([`outcome`]). A call delays no client but its own. A durable batch
//! ([`durable`]) is sent from the journal.

mod call;
mod credentials;
mod devices;
mod durable;
mod durable_window;
mod environment;
mod feed;
mod files;
mod flow;
mod hook_events;
mod metrics;
mod node;
mod online;
mod outcome;
mod outcomes_feed;
mod pending;
mod recipient_limits;
mod repeats;
mod scheduled;
mod senders;
mod submission;
mod tally;
mod thread;
mod token_feedback;

use std::sync::Arc;

pub(crate) use self::credentials::judge;
pub(crate) use self::thread::PushThread;

/// A handle of the push thread for other threads.
#[derive(Clone)]
pub(crate) struct PushHandle(Arc<thread::Shared>);

impl PushHandle {
    /// Applies changed credentials: starts new ones, replaces changed ones and closes removed ones. Returns the errors of
    /// those that cannot be used. For the admin thread.
    pub(crate) fn apply(
        &self,
        before: &dunlin_config::PushConfig,
        after: &dunlin_config::PushConfig,
    ) -> dunlin_config::ConfigErrors {
        let _runtime = self.0.runtime.enter();
        self.0.senders.apply(before, after)
    }
}
