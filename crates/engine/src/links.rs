//! Connections of an engine to its servers, as it sees them.

/// A connection of a worker to a server of its engine. The engine gives the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// The queue of a connection is full: the command was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many commands wait for the engine's server")]
pub struct LinkFull;

/// A server by name or address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    /// A name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What it is: with whom to log in.
    pub role: ServerRole,
}

/// What a server of an engine is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerRole {
    /// It has the channels.
    Data,
    /// It knows who has them: a Redis Sentinel, which has its own users and no databases.
    Sentinel,
    /// It follows one that has the channels, and is read from.
    Replica,
}

/// What an engine does to its connections. Each keeps itself connected, carries commands in order, and subscribes again
/// by itself after it was lost, before it is announced as ready. A command that had not left when its connection broke is
/// not sent on the next one.
pub trait Links {
    /// Connects to a server, or, if there is a connection of this number, to this server from now on, with the same
    /// subscriptions. `handle_ready` or `handle_closed` follows.
    fn open(&mut self, shard: ShardId, server: &Server);

    /// Gives a connection up and makes another to the same server.
    fn reconnect(&mut self, shard: ShardId);

    /// Closes a connection for good and forgets its subscriptions.
    fn close(&mut self, shard: ShardId);

    /// Sends a command. Its reply, or that it was lost, comes back with `token`.
    ///
    /// # Errors
    /// [`LinkFull`]: nothing was taken.
    fn command(&mut self, shard: ShardId, token: u64, arguments: &[&[u8]]) -> Result<(), LinkFull>;

    /// Subscribes to a channel of the server, before the commands that follow; to a sharded one if `sharded`. Is asked again
    /// for a channel that is subscribed to, when the server may have ended the subscription.
    fn subscribe(&mut self, shard: ShardId, channel: &[u8], sharded: bool);

    /// Ends a subscription.
    fn unsubscribe(&mut self, shard: ShardId, channel: &[u8], sharded: bool);
}
