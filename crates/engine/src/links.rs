//! Connections of an engine to its servers.

/// The number of a connection to a server, assigned by the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// The queue of a connection is full: the command was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many commands wait for the engine's server")]
pub struct LinkFull;

/// A server by name or address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    /// A name, an IPv4 address, an IPv6 address without brackets, or the absolute path of a Unix socket.
    pub host: String,
    /// Its port; 0 for a socket.
    pub port: u16,
    /// Its role, which determines the login.
    pub role: ServerRole,
}

/// The role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerRole {
    /// Has the channels.
    Data,
    /// Knows the addresses of primaries: a Redis Sentinel, which has its own users and no databases.
    Sentinel,
    /// Replicates a primary, and is read from.
    Replica,
}

/// The connections of an engine. Each reconnects by itself, sends commands in order, and subscribes again after a reconnect,
/// before it is announced as ready. A command that was not written when its connection broke is not sent on the next one.
pub trait Links {
    /// Connects to a server. An existing connection of this number moves to this server and keeps its subscriptions.
    /// `handle_ready` or `handle_closed` follows.
    fn open(&mut self, shard: ShardId, server: &Server);

    /// Closes a connection and opens another to the same server.
    fn reconnect(&mut self, shard: ShardId);

    /// Closes a connection for good and forgets its subscriptions.
    fn close(&mut self, shard: ShardId);

    /// Sends a command. Its reply, or its loss, is reported with `token`.
    ///
    /// # Errors
    /// [`LinkFull`]: nothing was taken.
    fn command(&mut self, shard: ShardId, token: u64, arguments: &[&[u8]]) -> Result<(), LinkFull>;

    /// Subscribes to a channel of the server, sharded if `sharded`, before the commands that follow. It is called again for a
    /// subscribed channel if the server may have ended the subscription.
    fn subscribe(&mut self, shard: ShardId, channel: &[u8], sharded: bool);

    /// Ends a subscription.
    fn unsubscribe(&mut self, shard: ShardId, channel: &[u8], sharded: bool);
}
