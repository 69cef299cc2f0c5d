//! Requests of a home worker to a channel's engine, and the events of the engine.
//!
//! A namespace can name an engine for its channels. The engine then orders, numbers and stores their publications for
//! all nodes. The home worker represents the channel on this node: it holds the node's only subscription, keeps a
//! ring of recent publications, and passes the engine's publications to the other workers. The hub does no I/O: the
//! caller takes requests from [`Hub::poll_engine`](crate::Hub::poll_engine) and passes the engine's events to
//! [`Hub::handle_engine`](crate::Hub::handle_engine).

use std::sync::Arc;

use crate::command::HistoryFilter;
use crate::error::Error;
use crate::event::{History, Published};
use crate::options::ChannelOptions;
use crate::position::{Epoch, StreamPosition};
use crate::publication::{ClientInfo, Durability, NewPublication, Publication};
use crate::session_id::SessionId;

/// The id of an engine on a worker, assigned by the caller. When the address or the database of an engine changes, it
/// gets a new id. Ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u32);

/// How a hub uses an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineConfig {
    /// The engine.
    pub id: EngineId,
    /// Timeout of a request in milliseconds.
    pub timeout_ms: u64,
    /// Milliseconds between two position checks of channels without recent publications.
    pub position_check_ms: u64,
    /// Most bytes of publications of one channel held back until a gap before them is repaired. Beyond it the
    /// channel's subscribers subscribe again and recover.
    pub held_bytes_max: usize,
    /// Joins and leaves of its channels are announced to it, for servers of another kind that share them.
    pub shares_members: bool,
    /// Most [wildcards](crate::wildcard) subscribed to; a further subscription is refused.
    pub wildcards_max: usize,
    /// It can tell what a publication survives. To others, none that asks for it is published.
    pub is_durable: bool,
}

/// The engine of a namespace's channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceEngine {
    /// The engine.
    pub id: EngineId,
    /// Names may be [wildcards](crate::wildcard).
    pub wildcards: bool,
    /// What a publication survives before it is delivered, in an engine that can tell. `None`: what the engine says.
    pub durability: Option<Durability>,
}

/// How much an engine stores of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Most publications; 0: none, and publications have no offsets.
    pub size: u32,
    /// Milliseconds that publications are stored after the last one.
    pub ttl_ms: u64,
    /// Milliseconds that epoch and top offset are stored after the last publication or read.
    pub meta_ttl_ms: u64,
    /// See [`NamespaceEngine::durability`].
    pub durability: Option<Durability>,
}

impl Retention {
    /// Whether publications are numbered and stored.
    pub fn keeps(&self) -> bool {
        self.size > 0 && self.ttl_ms > 0
    }

    pub(crate) fn new(
        options: &ChannelOptions,
        meta_ttl_ms: u64,
        durability: Option<Durability>,
    ) -> Self {
        if !options.keeps_history() {
            return Self::default();
        }
        let meta_ttl_ms = match options.history_meta_ttl_ms {
            0 => meta_ttl_ms,
            ttl_ms => ttl_ms,
        };
        Self { size: options.history_size, ttl_ms: options.history_ttl_ms, meta_ttl_ms, durability }
    }
}

/// A request to an engine. A request with a token ends with exactly one event with that token. Events after the
/// timeout of the request are ignored.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineRequest {
    /// Publish. Requests for one channel are executed in order. Ends with [`EngineEvent::Published`].
    Publish(Box<EnginePublish>),
    /// Subscribe to the channel's publications, unless subscribed, and read its position atomically: publications
    /// after that position are delivered. Creates the stream if there is none and `retention` stores any. Ends with
    /// [`EngineEvent::Subscribed`].
    Subscribe {
        /// Repeated in the event, also in later ones for this subscription.
        token: u64,
        /// The channel.
        channel: Arc<str>,
        /// How much is stored.
        retention: Retention,
        /// The channel is a [wildcard](crate::wildcard): publications to all matching channels are delivered, without
        /// offset and with the [channel](Publication::channel) they were published to.
        is_wildcard: bool,
    },
    /// Unsubscribe from the channel. There is no event.
    Unsubscribe {
        /// The channel.
        channel: Arc<str>,
    },
    /// Read a part of a stream. Creates the stream if there is none. Ends with [`EngineEvent::History`].
    History {
        /// Repeated in the event.
        token: u64,
        /// The channel.
        channel: Arc<str>,
        /// How much is stored.
        retention: Retention,
        /// The part.
        filter: HistoryFilter,
        /// Read the latest state, not a replica's: the answer decides whether a position is refused.
        latest: bool,
    },
    /// Announce to servers of another kind that a session of this node has joined or left a channel. Used if
    /// [`EngineConfig::shares_members`] is set. There is no event; an announcement that cannot be sent at once is
    /// dropped.
    Announce {
        /// The channel.
        channel: Arc<str>,
        /// The client.
        info: Arc<ClientInfo>,
        /// Whether it has joined.
        joined: bool,
    },
    /// Remove a channel's publications; its offsets continue. Every node that is subscribed to the channel gets
    /// [`EngineEvent::Cleared`]. Ends with [`EngineEvent::HistoryRemoved`].
    RemoveHistory {
        /// Repeated in the event.
        token: u64,
        /// The channel.
        channel: Arc<str>,
    },
    /// Read the positions of subscribed channels. Ends with [`EngineEvent::Positions`].
    Positions {
        /// Repeated in the event.
        token: u64,
        /// The channels, at most [`POSITIONS_MAX`].
        channels: Vec<Arc<str>>,
    },
}

/// Most channels in one request for positions.
pub const POSITIONS_MAX: usize = 512;

/// A publication for an engine.
#[derive(Debug)]
pub struct EnginePublish {
    /// Repeated in the event.
    pub token: u64,
    /// The channel.
    pub channel: Arc<str>,
    /// How much is stored. Nothing if the publisher skips the history; the publication then has offset 0.
    pub retention: Retention,
    /// The publication with its idempotency key and its version, which the engine checks. `delta` says how it is
    /// delivered.
    pub publish: NewPublication,
    /// When the home worker accepted it, Unix time in milliseconds.
    pub time_ms: u64,
}

/// An event of an engine.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EngineEvent {
    /// Ends [`EngineRequest::Publish`]. With the error [`Error::EngineUncertain`] the publication may have been
    /// stored, with any other error it was not.
    Published {
        /// The token of the request.
        token: u64,
        /// The position of the publication.
        result: Result<Published, Error>,
    },
    /// Ends [`EngineRequest::Subscribe`]. Repeated each time the engine has subscribed to the channel again, for
    /// example after a lost connection: publications before this position may have been missed.
    Subscribed {
        /// The token of the request.
        token: u64,
        /// The channel's position and lineage.
        result: Result<EnginePosition, Error>,
    },
    /// A publication of a subscribed channel. Its offset is 0 if nothing is stored. A publication that is included in
    /// the position of [`Subscribed`](EngineEvent::Subscribed) may follow that event; its offset is not greater than
    /// the position's.
    Publication {
        /// The channel.
        channel: Arc<str>,
        /// The epoch of its stream; none with offset 0.
        epoch: Epoch,
        /// The publication to deliver.
        publication: Publication,
        /// The session that does not receive it.
        except: Option<SessionId>,
    },
    /// A client of a server of another kind has joined or left a subscribed channel.
    Announced {
        /// The channel.
        channel: Arc<str>,
        /// The client.
        info: Arc<ClientInfo>,
        /// Whether it has joined.
        joined: bool,
    },
    /// The publications of a subscribed channel were removed.
    Cleared {
        /// The channel.
        channel: Arc<str>,
    },
    /// The lineage of a channel's stream, as found by a read. Precedes the event that ends the read. A client that
    /// recovers from an earlier epoch need not wait until the channel is subscribed to again.
    Lineage {
        /// The channel.
        channel: Arc<str>,
        /// The epoch of the stream.
        epoch: Epoch,
        /// Its lineage.
        inherits: Lineage,
    },
    /// Ends [`EngineRequest::History`]. A position of another epoch is [`Error::UnrecoverablePosition`].
    History {
        /// The token of the request.
        token: u64,
        /// Publications with consecutive offsets, and the top of the stream.
        result: Result<History, Error>,
    },
    /// Ends [`EngineRequest::RemoveHistory`].
    HistoryRemoved {
        /// The token of the request.
        token: u64,
        /// The result.
        result: Result<(), Error>,
    },
    /// Ends [`EngineRequest::Positions`].
    Positions {
        /// The token of the request.
        token: u64,
        /// The positions in the order of the request; the default for a channel without a stream.
        result: Result<Vec<StreamPosition>, Error>,
    },
}

/// The position of a channel in its engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnginePosition {
    /// The top of the stream; the default for a channel without history.
    pub position: StreamPosition,
    /// The positions in earlier epochs that are still valid.
    pub inherits: Lineage,
}

/// The earlier epochs of a stream: for each, the position up to which offsets are valid in the current epoch. A
/// stream that continues after a failover has a new epoch, but the same publications before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage(Box<[StreamPosition]>);

impl Lineage {
    /// Whether no earlier epoch is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a position of an earlier epoch is valid in this stream.
    #[must_use]
    pub fn contains(&self, at: StreamPosition) -> bool {
        self.0.iter().any(|known| known.epoch == at.epoch && at.offset <= known.offset)
    }

    /// Whether the epoch of a position is known here.
    pub(crate) fn has_epoch(&self, at: StreamPosition) -> bool {
        self.0.iter().any(|known| known.epoch == at.epoch)
    }
}

impl FromIterator<StreamPosition> for Lineage {
    fn from_iter<T: IntoIterator<Item = StreamPosition>>(positions: T) -> Self {
        Self(positions.into_iter().collect())
    }
}
