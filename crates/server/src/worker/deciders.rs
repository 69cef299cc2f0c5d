//! The machine of those who decide in place of the rules: backends of proxies, over their connections, programs in Luau, and the
//! embedding program.
//!
//! It asks and keeps who waits. What a decision does to a client is the business of [`clients`](super::clients).

use super::backends::Backends;
use super::parts::ProxyCalls;
use super::program::ProgramLink;
use super::programs::Programs;

/// The deciders of one worker.
pub(super) struct Deciders {
    /// The client of the proxies' backends, once there are any.
    pub(super) backends: Option<Box<Backends>>,
    /// The connection to the embedding program, if there is one.
    pub(super) program: Option<Box<ProgramLink>>,
    /// The programs of the settings.
    pub(super) programs: Programs,
    pub(super) proxy_calls: ProxyCalls,
}

impl Deciders {
    pub(super) fn new(incarnation: u32) -> Deciders {
        Deciders {
            backends: None,
            program: None,
            programs: Programs::default(),
            proxy_calls: ProxyCalls::new(incarnation),
        }
    }
}
