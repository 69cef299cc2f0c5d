//! Members of channels as they come and go, for whoever keeps a list of them beyond this process.

use std::sync::Arc;

use crate::publication::ClientInfo;

/// A session is in a channel's list of members, or is not any more.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberEvent {
    /// The channel.
    pub channel: Arc<str>,
    /// Who.
    pub info: Arc<ClientInfo>,
    /// It has come; else it has gone.
    pub joined: bool,
    /// It is shown in presence.
    pub presence: bool,
    /// Subscribers are notified of its coming and going.
    pub join_leave: bool,
    /// It was the first that came, or the last that went, of the channel's members in this process.
    pub at_edge: bool,
}
