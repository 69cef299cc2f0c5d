//! What is derived from the head of a request: the client's address behind proxies, the origin page, the host, the trace.

pub(crate) mod forwarded_for;
pub(crate) mod local_host;
pub(crate) mod origin;
pub(crate) mod page;
pub(crate) mod trace_parent;
