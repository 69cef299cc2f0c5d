//! Messages between threads: workers, the control thread, the admin thread, the push thread and the webhooks thread.

pub(crate) mod bus;
pub(crate) mod cluster;
pub(crate) mod in_transit;
pub(crate) mod push;
pub(crate) mod to_workers;
