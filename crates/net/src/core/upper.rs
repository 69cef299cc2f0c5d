//! What the layer above keeps in the core.

use std::fmt::Debug;

use super::config::{Limits, LoopConfig, Role};
use crate::timeout::TimeoutMs;

/// The types that the protocols above keep in the core: in a connection's record, beside it while something is cut short, and
/// with the loop. The core has the room and does not know what they are. They are named once, by an implementation for
/// [`Upper`], so that each is there as it is: no pointer, and no type parameter of everything.
pub(crate) trait UpperLayer {
    /// What a connection speaks, and what the protocol's machine remembers while the connection is idle.
    type Protocol: Spoken;
    /// What a connection needs only while something is cut short.
    type Kept: Kept;
    /// What the connections of a loop share.
    type Shared: Debug + for<'a> From<&'a LoopConfig>;
    /// What many connections have agreed on with their peers, as part of their profile.
    type Agreed: Clone + Debug + Default + PartialEq;

    /// Gives back what a connection has kept that has ended.
    fn release(kept: &mut Self::Kept, shared: &mut Self::Shared);
}

/// The layer above the core.
pub(crate) enum Upper {}

/// What a connection speaks.
pub(crate) type Protocol = <Upper as UpperLayer>::Protocol;

/// What the core asks of a connection's protocol.
pub(crate) trait Spoken: Copy + Debug + PartialEq {
    /// Raw TCP.
    const RAW: Self;

    /// What an accepted connection begins with.
    fn of(role: Role) -> Self;

    /// Whether input is to wait, given that output does not leave.
    fn holds_input(self, is_blocked: bool) -> bool;

    /// Of a connection that has opened: how long the first input may take. Raw TCP has the idle timeout instead.
    fn input_timeout_ms(self, limits: &Limits) -> TimeoutMs;

    /// Of a connection whose peer reads slowly, and still reads: the timeout that begins anew. `None` if none does.
    fn progress_timeout_ms(self, limits: &Limits) -> Option<TimeoutMs>;

    /// What a peer is sent that speaks it in plain text where TLS is spoken.
    fn answer_in_plain_text(self) -> Option<&'static [u8]>;
}

/// What a protocol keeps of a connection while something is cut short.
pub(crate) trait Kept: Debug + Default {
    fn is_empty(&self) -> bool;

    /// Bytes of the peer, for the account of the loop.
    fn bytes(&self) -> usize;
}
