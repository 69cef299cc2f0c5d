//! What a home worker asks of a channel's engine, and what the engine says.
//!
//! A channel whose namespace names an engine lives there: the engine orders, numbers and keeps its publications for all
//! nodes. The home worker is this node's agent of the channel. It holds the node's one subscription, keeps a ring of recent
//! publications, and deals what the engine says to the other workers. The hub does no I/O: the caller takes requests
//! from [`Hub::poll_engine`](crate::Hub::poll_engine) and hands the engine's answers to
//! [`Hub::handle_engine`](crate::Hub::handle_engine).

use std::sync::Arc;

use crate::command::HistoryFilter;
use crate::error::Error;
use crate::event::{History, Published};
use crate::options::ChannelOptions;
use crate::position::{Epoch, StreamPosition};
use crate::publication::{ClientInfo, NewPublication, Publication};
use crate::session_id::SessionId;

/// An engine of a worker. The caller gives the numbers, and a new one when an engine becomes another: another address,
/// another database. The number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u32);

/// How a hub uses an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineConfig {
    /// The engine.
    pub id: EngineId,
    /// Milliseconds until a request that it has not answered has failed.
    pub timeout_ms: u64,
    /// Milliseconds between two checks of the positions of channels from which nothing was heard.
    pub position_check_ms: u64,
    /// Bytes of publications of one channel that wait behind a gap until it is repaired. Beyond it the channel's subscribers
    /// come back and recover.
    pub held_bytes_max: usize,
    /// Joins and leaves of its channels are said to it, for servers of another kind that share them.
    pub shares_members: bool,
    /// [Wildcards](crate::wildcard) that are heard at once; a subscription to one more is refused.
    pub wildcards_max: usize,
}

/// Where the channels of a namespace live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceEngine {
    /// The engine.
    pub id: EngineId,
    /// Some of its names are [wildcards](crate::wildcard).
    pub wildcards: bool,
}

/// What an engine keeps of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Publications; 0: none, they have no offsets.
    pub size: u32,
    /// Milliseconds the publications are kept after the last of them.
    pub ttl_ms: u64,
    /// Milliseconds epoch and top offset are remembered after the last publication or read.
    pub meta_ttl_ms: u64,
}

impl Retention {
    /// Whether publications are numbered and kept.
    pub fn keeps(&self) -> bool {
        self.size > 0 && self.ttl_ms > 0
    }

    pub(crate) fn new(options: &ChannelOptions, meta_ttl_ms: u64) -> Self {
        if !options.keeps_history() {
            return Self::default();
        }
        let meta_ttl_ms = match options.history_meta_ttl_ms {
            0 => meta_ttl_ms,
            ttl_ms => ttl_ms,
        };
        Self { size: options.history_size, ttl_ms: options.history_ttl_ms, meta_ttl_ms }
    }
}

/// A request to an engine. One with a token ends in exactly one event with that token; an answer that comes after the hub
/// has given up is ignored.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineRequest {
    /// Publish. Requests for one channel are carried out in their order. Ends in [`EngineEvent::Published`].
    Publish(Box<EnginePublish>),
    /// Hear the channel's publications from now on, if that is not so yet, and read its position in the same step: what is
    /// published after that position is heard. Begins the stream if there is none and `retention` keeps any. Ends in
    /// [`EngineEvent::Subscribed`].
    Subscribe {
        /// Comes back in the event, also in later ones for this subscription.
        token: u64,
        /// The channel.
        channel: Arc<str>,
        /// What is kept.
        retention: Retention,
        /// It is a [wildcard](crate::wildcard): what is published to any channel that it matches is heard, without offset and
        /// with the [channel](Publication::channel) that it was published to.
        is_wildcard: bool,
    },
    /// Hear the channel's publications no more. Nothing is answered.
    Unsubscribe {
        /// The channel.
        channel: Arc<str>,
    },
    /// Read a part of a stream. Begins the stream if there is none. Ends in [`EngineEvent::History`].
    History {
        /// Comes back in the event.
        token: u64,
        /// The channel.
        channel: Arc<str>,
        /// What is kept.
        retention: Retention,
        /// Which part.
        filter: HistoryFilter,
    },
    /// Say to servers of another kind that a session of this node has joined a channel, or left it. Asked for where
    /// [`EngineConfig::shares_members`] says so. Nothing is answered; one that cannot be said at once is not said.
    Announce {
        /// The channel.
        channel: Arc<str>,
        /// Who.
        info: Arc<ClientInfo>,
        /// It has joined; else it has left.
        joined: bool,
    },
    /// Remove a channel's publications; its offsets go on. Every node that hears the channel learns of it by
    /// [`EngineEvent::Cleared`]. Ends in [`EngineEvent::HistoryRemoved`].
    RemoveHistory {
        /// Comes back in the event.
        token: u64,
        /// The channel.
        channel: Arc<str>,
    },
    /// Read the positions of channels that are heard. Ends in [`EngineEvent::Positions`].
    Positions {
        /// Comes back in the event.
        token: u64,
        /// The channels, [`POSITIONS_MAX`] at most.
        channels: Vec<Arc<str>>,
    },
}

/// Channels in one request for positions.
pub const POSITIONS_MAX: usize = 512;

/// A publication for an engine.
#[derive(Debug)]
pub struct EnginePublish {
    /// Comes back in the event.
    pub token: u64,
    /// The channel.
    pub channel: Arc<str>,
    /// What is kept. None of it where the publisher skips the history: the publication has offset 0 then.
    pub retention: Retention,
    /// What is published, with its idempotency key and its version, which the engine heeds. `delta` is as it is to be
    /// delivered.
    pub publish: NewPublication,
    /// When the home worker took it, Unix time in milliseconds.
    pub time_ms: u64,
}

/// What an engine says.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EngineEvent {
    /// Ends [`EngineRequest::Publish`]. An error says whether the publication may have been stored: only after
    /// [`Error::EngineUncertain`].
    Published {
        /// The request's.
        token: u64,
        /// The position it was given.
        result: Result<Published, Error>,
    },
    /// Ends [`EngineRequest::Subscribe`]. Comes again whenever the engine has subscribed to the channel anew, because a
    /// connection was lost for instance: publications before this position may not have been heard.
    Subscribed {
        /// The request's.
        token: u64,
        /// The channel's position and what it inherits.
        result: Result<EnginePosition, Error>,
    },
    /// A publication of a channel that is heard. Its offset is 0 where nothing is kept. One that the position of
    /// [`Subscribed`](EngineEvent::Subscribed) reaches may come behind it: its offset is not above that position's.
    Publication {
        /// The channel.
        channel: Arc<str>,
        /// Of its stream; none with offset 0.
        epoch: Epoch,
        /// As it is delivered.
        publication: Publication,
        /// The session that it is not for.
        except: Option<SessionId>,
    },
    /// A client of a server of another kind has joined a channel that is heard, or left it.
    Announced {
        /// The channel.
        channel: Arc<str>,
        /// Who.
        info: Arc<ClientInfo>,
        /// It has joined; else it has left.
        joined: bool,
    },
    /// The publications of a channel that is heard were removed.
    Cleared {
        /// The channel.
        channel: Arc<str>,
    },
    /// What the stream of a channel has of epochs before, as it was met in a read: comes before the event that ends the read. Who
    /// recovers from such an epoch need not wait until the channel is subscribed to anew.
    Lineage {
        /// The channel.
        channel: Arc<str>,
        /// The stream's.
        epoch: Epoch,
        /// What it inherits.
        inherits: Lineage,
    },
    /// Ends [`EngineRequest::History`]. A position of another epoch is [`Error::UnrecoverablePosition`].
    History {
        /// The request's.
        token: u64,
        /// What was read: consecutive offsets, and the stream's top.
        result: Result<History, Error>,
    },
    /// Ends [`EngineRequest::RemoveHistory`].
    HistoryRemoved {
        /// The request's.
        token: u64,
        /// Done, or why not.
        result: Result<(), Error>,
    },
    /// Ends [`EngineRequest::Positions`].
    Positions {
        /// The request's.
        token: u64,
        /// In the order asked for; the default for a channel without a stream.
        result: Result<Vec<StreamPosition>, Error>,
    },
}

/// Where a channel is in its engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnginePosition {
    /// Its top; the default for a channel that keeps nothing.
    pub position: StreamPosition,
    /// What means the same in epochs before.
    pub inherits: Lineage,
}

/// What a stream has of epochs before its own: of each, the position up to which offsets mean the same. A stream that went on
/// after a failover has another epoch, and what came before is what it was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage(Box<[StreamPosition]>);

impl Lineage {
    /// No epoch before is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the position is one of the stream, though of an epoch before.
    #[must_use]
    pub fn contains(&self, at: StreamPosition) -> bool {
        self.0.iter().any(|known| known.epoch == at.epoch && at.offset <= known.offset)
    }

    /// Whether the position is of an epoch that is known here.
    pub(crate) fn has_epoch(&self, at: StreamPosition) -> bool {
        self.0.iter().any(|known| known.epoch == at.epoch)
    }
}

impl FromIterator<StreamPosition> for Lineage {
    fn from_iter<T: IntoIterator<Item = StreamPosition>>(positions: T) -> Self {
        Self(positions.into_iter().collect())
    }
}
