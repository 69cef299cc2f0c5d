//! A sender and a scripted server in virtual time: what is sent when, and how every push ends.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod credentials;
mod endings;
pub(crate) mod harness;
mod storm;
mod trace;
mod windows;
