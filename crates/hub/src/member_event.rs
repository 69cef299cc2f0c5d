//! Joins and leaves of channel members, for lists of members outside of this process.

use std::sync::Arc;

use crate::publication::ClientInfo;

/// A session was added to or removed from a channel's list of members.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberEvent {
    /// The channel.
    pub channel: Arc<str>,
    /// The client.
    pub info: Arc<ClientInfo>,
    /// Whether it was added.
    pub joined: bool,
    /// It is included in presence.
    pub presence: bool,
    /// Subscribers are notified of joins and leaves.
    pub join_leave: bool,
    /// It was the first member of the channel in this process to join, or the last to leave.
    pub at_edge: bool,
}
