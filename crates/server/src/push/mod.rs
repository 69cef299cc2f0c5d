//! Push notifications: what `/api/push` and what is below it do.
//!
//! The senders of `dunlin-push` live in a thread of their own with a `tokio` runtime. A worker hands it a request's
//! body over the bus and continues ([`PushRequest`](crate::message::push::PushRequest)); what comes back ([`PushReply`](crate::message::push::PushReply)) are pieces of an answer, as many as the client
//! has room for ([`flow`]). The admin thread hands it credentials whenever a change of them is in effect
//! ([`PushHandle::apply`]), so that the answer to the change means that they are used, and has them validated before
//! ([`judge`]).
//!
//! A call ([`call`]) reads its body ([`submission`]), finds the devices ([`devices`]), hands each push to its credential's
//! sender ([`senders`]) and reports what became of it ([`outcome`]). A call delays no client but its own. A durable
//! batch ([`durable`]) is sent from the journal.

mod call;
mod credentials;
mod devices;
mod durable;
mod durable_window;
mod environment;
mod files;
mod flow;
mod hook_events;
mod metrics;
mod online;
mod outcome;
mod outcomes_feed;
mod pending;
mod recipient_limits;
mod repeats;
mod senders;
mod submission;
mod tally;
mod thread;
mod token_feedback;

use std::sync::Arc;

pub(crate) use self::credentials::judge;
pub(crate) use self::thread::PushThread;

/// The push thread as everybody else sees it.
#[derive(Clone)]
pub(crate) struct PushHandle(Arc<thread::Shared>);

impl PushHandle {
    /// Takes up changed credentials: new ones are started, changed ones take the place of those before, and those that
    /// are gone end what they have under way. Gives what is wrong with those that cannot be used. For the admin thread.
    pub(crate) fn apply(
        &self,
        before: &dunlin_config::PushConfig,
        after: &dunlin_config::PushConfig,
    ) -> dunlin_config::ConfigErrors {
        let _runtime = self.0.runtime.enter();
        let errors = self.0.senders.apply(before, after);
        self.0.resume();
        errors
    }
}
