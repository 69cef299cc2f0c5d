//! Push services to test against.
//!
//! [`apns`] behaves as Apple documents its provider API to behave: HTTP/2 over TLS, provider tokens, every header
//! rule with its reason, the stream limit that starts at one. And it has a fault profile, each fault a setting: a path of any round
//! trip and loss, small windows, answers that never come, streams reset, connections told to go away. It keeps a
//! ledger of what it accepted, so that a sender's own account can be held against it push by push.
//!
//! It is a crate of its own on top of `wire` alone, so that the tests of a sender can start it in-process without
//! the sender becoming a part of what judges it.
//!
//! ```no_run
//! use dunlin_simulate::apns::{Behaviour, Config, Simulator};
//!
//! let behaviour = Behaviour { rtt_ms: 250, ..Behaviour::default() };
//! let simulator = Simulator::start(Config { behaviour, ..Config::default() })?;
//! println!("push to https://{}, trust\n{}", simulator.addr(), simulator.ca_pem());
//! # Ok::<(), dunlin_simulate::StartError>(())
//! ```

#![forbid(unsafe_code)]

mod alarm;
pub mod apns;
mod certificate;
mod connection;
mod control;
mod error;
mod flood;
mod http2;
mod line;
mod serve;
mod transport;

pub use certificate::Authority;
pub use error::StartError;

/// Runs a fuzz target of this crate, for `cargo fuzz`.
#[cfg(fuzzing)]
pub fn fuzz(name: &str, data: &[u8]) {
    http2::fuzz_targets::run(name, data);
}
