//! Webhooks: what happens to clients and in channels, told to backends over HTTP.
//!
//! A worker asks its [`Interest`] whether any hook wants an event, which without hooks is one branch, and puts a
//! [`Happening`] on the bus. The webhooks thread takes it from there ([`postman`]): [`spelling`] makes JSON of it,
//! once for all hooks, and the [`dispatcher`] puts it into a [`lane`] of each [`hook`] that covers its channel. A lane
//! keeps an order, that of a session's events or of a channel's publications, and has one request under way, in which
//! everything leaves that came while the one before was. An [`upstream`] says whose turn it is; a [`verdict`] what
//! became of the request. All of these have neither I/O nor clock.
//!
//! It is a thread of its own with the event loop that the workers run on, not a part of the admin thread: a
//! change of the configuration has forty microseconds, and must not wait behind the events of a million clients that
//! connect, nor a TLS handshake with a backend. It stands on the bus like a worker, so that a worker's event costs a
//! store, and a thread without hooks sleeps for ever.

mod board;
mod dispatcher;
mod happening;
mod hook;
mod interest;
mod lane;
mod postman;
mod request;
mod spelling;
#[cfg(test)]
mod tests;
mod upstream;
mod verdict;

pub(crate) use self::board::Board;
pub(crate) use self::happening::{Happening, What};
pub(crate) use self::interest::{Interest, Wishes};
pub(crate) use self::postman::{FINISH, WebhooksThread};
