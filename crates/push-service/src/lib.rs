#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod call;
mod clock;
mod credentials;
mod devices;
mod durable;
mod durable_window;
mod environment;
mod feed;
mod files;
mod flow;
mod hook_events;
mod local_node;
pub mod message;
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
mod trace_parent;

use std::sync::Arc;

pub use self::credentials::judge;
pub use self::local_node::PushNode;
pub use self::thread::{PushInbox, PushOutbox, PushThread, StartError};
pub use self::trace_parent::TraceParent;

/// A handle of the push thread for other threads.
#[derive(Clone)]
pub struct PushHandle(Arc<thread::Shared>);

impl PushHandle {
    /// Applies changed credentials: starts new ones, replaces changed ones and closes removed ones. Returns the errors of
    /// those that cannot be used. For the admin thread.
    pub fn apply(
        &self,
        before: &dunlin_config::PushConfig,
        after: &dunlin_config::PushConfig,
    ) -> dunlin_config::ConfigErrors {
        let _runtime = self.0.runtime.enter();
        self.0.senders.apply(before, after)
    }
}
