//! Messages between threads: workers, the control thread, the admin thread, the push thread, the webhooks thread
//! and the federation thread.
//!
//! What a thread receives is a type of its own. What the agent of the cluster and the push thread send are types of theirs, which
//! the receivers' types wrap, so that neither knows who receives what else.

pub(crate) mod admin;
pub(crate) mod bus;
pub(crate) mod control;
pub(crate) mod federation;
pub(crate) mod in_transit;
pub(crate) mod webhooks;
pub(crate) mod worker;
