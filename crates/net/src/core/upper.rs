//! Types of the layer above that the core stores.

use std::fmt::Debug;

use super::config::{Limits, LoopConfig, Role};
use crate::timeout::TimeoutMs;

/// The types that the protocols above store in the core: in a connection's record, beside it while input or output is
/// incomplete, and in the loop. The core does not know what they contain. They are named once, by an implementation for
/// [`Upper`], so they need neither pointers nor type parameters.
pub(crate) trait UpperLayer {
    /// The protocol of a connection, and its state while the connection is idle.
    type Protocol: Spoken;
    /// State of a connection only needed while something is incomplete.
    type Kept: Kept;
    /// State that the connections of a loop share.
    type Shared: Debug + for<'a> From<&'a LoopConfig>;
    /// Parameters that connections have negotiated with their peers, as part of their profile.
    type Agreed: Clone + Debug + Default + PartialEq;

    /// Releases the state of a connection that has ended.
    fn release(kept: &mut Self::Kept, shared: &mut Self::Shared);
}

/// The layer above the core.
pub(crate) enum Upper {}

/// The protocol of a connection.
pub(crate) type Protocol = <Upper as UpperLayer>::Protocol;

/// What the core needs to know of a connection's protocol.
pub(crate) trait Spoken: Copy + Debug + PartialEq {
    /// Raw TCP.
    const RAW: Self;

    /// Returns the initial protocol of an accepted connection.
    fn of(role: Role) -> Self;

    /// Returns whether input must wait, given whether output is blocked.
    fn holds_input(self, is_blocked: bool) -> bool;

    /// Returns how long the first input may take on a new connection. Raw TCP has the idle timeout instead.
    fn input_timeout_ms(self, limits: &Limits) -> TimeoutMs;

    /// Returns the timeout to restart when the peer reads slowly but makes progress. `None` if there is none to
    /// restart.
    fn progress_timeout_ms(self, limits: &Limits) -> Option<TimeoutMs>;

    /// Returns the response to a peer that sends plain text where TLS is expected.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing expects TLS"))]
    fn answer_in_plain_text(self) -> Option<&'static [u8]>;
}

/// State of a protocol that is needed while something is incomplete.
pub(crate) trait Kept: Debug + Default {
    fn is_empty(&self) -> bool;

    /// Returns the bytes of the peer, for the loop's memory limit.
    fn bytes(&self) -> usize;
}
