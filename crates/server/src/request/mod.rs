//! What is derived from the head of a request: the client's address behind proxies, the origin page, the host.

pub(crate) mod forwarded_for;
pub(crate) mod local_host;
pub(crate) mod origin;
pub(crate) mod page;
