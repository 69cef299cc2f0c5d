//! Connections of an engine to its servers, as it sees them.

/// One server, or one partition of them, that a worker has a connection to. Numbered from 0 in the order of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// The queue of a connection is full: the command was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many commands wait for the engine's server")]
pub struct LinkFull;

/// What an engine does to its connections. Each keeps itself connected, carries commands in order, and subscribes again
/// by itself after it was lost.
pub trait Links {
    /// Sends a command, now or when there is a connection. Its reply, or that its connection was lost, comes back with
    /// `token`.
    ///
    /// # Errors
    /// [`LinkFull`]: nothing was taken.
    fn command(&mut self, shard: ShardId, token: u64, arguments: &[&[u8]]) -> Result<(), LinkFull>;

    /// Subscribes to a channel of the server, before the commands that follow.
    fn subscribe(&mut self, shard: ShardId, channel: &[u8]);

    /// Ends a subscription.
    fn unsubscribe(&mut self, shard: ShardId, channel: &[u8]);
}
