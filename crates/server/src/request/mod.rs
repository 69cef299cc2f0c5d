//! What the head of a request says: the client's address behind proxies, the page that asks, the host it names, its trace.

pub(crate) mod forwarded_for;
pub(crate) mod local_host;
pub(crate) mod origin;
pub(crate) mod page;
pub(crate) mod trace_parent;
