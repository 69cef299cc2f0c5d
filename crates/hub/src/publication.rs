//! Publications and their publishers.

use std::sync::Arc;

use arcstr::ArcStr;
use triomphe::ThinArc;

use crate::session_id::SessionId;
use crate::shares::Owner;
use crate::trace::TraceContext;

/// A message of a channel with the offset from its home worker. A cheap handle: history, workers and events share one
/// allocation, including the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication(ThinArc<Record, u8>);

/// The header before the payload.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    offset: u64,
    /// Unix time in milliseconds, above one bit each for [`DELTA`] and [`BINARY`].
    stamp: u64,
    /// `None` for a message of the server without tags, which most are.
    extras: Option<Box<Extras>>,
}

// History stores millions of them.
const _: () = assert!(size_of::<Record>() == 24);
const _: () = assert!(size_of::<Option<Publication>>() == 8);

const DELTA: u64 = 1;
const BINARY: u64 = 2;
const TIME_SHIFT: u32 = 2;

#[derive(Debug, PartialEq, Eq)]
struct Extras {
    info: Option<Arc<ClientInfo>>,
    tags: Tags,
    key: Option<Box<str>>,
    channel: Option<Box<str>>,
    trace: Option<TraceContext>,
}

/// The parts of a [`Publication`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublicationParts {
    /// See [`Publication::offset`].
    pub offset: u64,
    /// See [`Publication::data`].
    pub data: Box<[u8]>,
    /// See [`Publication::format`].
    pub format: PayloadFormat,
    /// See [`Publication::delta`].
    pub delta: bool,
    /// See [`Publication::info`].
    pub info: Option<Arc<ClientInfo>>,
    /// See [`Publication::tags`].
    pub tags: Tags,
    /// See [`Publication::key`].
    pub key: Option<Box<str>>,
    /// See [`Publication::channel`].
    pub channel: Option<Box<str>>,
    /// See [`Publication::time_ms`]; limited to 62 bits.
    pub time_ms: u64,
    /// See [`Publication::trace`].
    pub trace: Option<TraceContext>,
}

impl From<PublicationParts> for Publication {
    fn from(parts: PublicationParts) -> Self {
        let PublicationParts {
            offset,
            data,
            format,
            delta,
            info,
            tags,
            key,
            channel,
            time_ms,
            trace,
        } = parts;
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let flags = flag(delta, DELTA) | flag(format == PayloadFormat::Binary, BINARY);
        let is_plain = info.is_none()
            && tags.is_empty()
            && key.is_none()
            && channel.is_none()
            && trace.is_none();
        let extras = (!is_plain).then(|| Box::new(Extras { info, tags, key, channel, trace }));
        let record = Record { offset, stamp: time_ms << TIME_SHIFT | flags, extras };
        Self(ThinArc::from_header_and_slice(record, &data))
    }
}

impl Publication {
    fn record(&self) -> &Record {
        &self.0.header.header
    }

    fn extras(&self) -> Option<&Extras> {
        self.record().extras.as_deref()
    }

    /// The offset in the channel's stream, from 1 without gaps; 0 if the channel has no history, or the publisher
    /// skipped it.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.record().offset
    }

    /// The payload. The hub does not parse it.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.0.slice
    }

    /// The format of the payload, as given by the publisher or detected by the server.
    pub fn format(&self) -> PayloadFormat {
        if self.record().stamp & BINARY == 0 { PayloadFormat::Json } else { PayloadFormat::Binary }
    }

    /// Whether it may be sent as a delta from the previous publication.
    pub fn delta(&self) -> bool {
        self.record().stamp & DELTA != 0
    }

    /// The client that published it, if one did.
    pub fn info(&self) -> Option<&Arc<ClientInfo>> {
        self.extras()?.info.as_ref()
    }

    /// The tags set by the publisher; delivered to clients.
    pub fn tags(&self) -> &Tags {
        const NO_TAGS: &Tags = &Tags::NONE;
        self.extras().map_or(NO_TAGS, |extras| &extras.tags)
    }

    /// The key for [`OverflowPolicy::KeepLatest`](crate::OverflowPolicy::KeepLatest).
    pub fn key(&self) -> Option<&str> {
        self.extras()?.key.as_deref()
    }

    /// The channel it was published to, if it was received through a [wildcard](crate::wildcard).
    pub fn channel(&self) -> Option<&str> {
        self.extras()?.channel.as_deref()
    }

    /// The span that has caused it, if somebody traces it. It is not delivered to clients.
    pub fn trace(&self) -> Option<TraceContext> {
        self.extras()?.trace
    }

    /// When the home worker accepted it, Unix time in milliseconds.
    pub fn time_ms(&self) -> u64 {
        self.record().stamp >> TIME_SHIFT
    }

    /// The same publication without an offset.
    pub(crate) fn unnumbered(&self) -> Self {
        let Record { stamp, .. } = *self.record();
        let extras = self.extras().map(|Extras { info, tags, key, channel, trace }| {
            let (info, tags) = (info.clone(), tags.clone());
            let (key, channel) = (key.clone(), channel.clone());
            Box::new(Extras { info, tags, key, channel, trace: *trace })
        });
        Self(ThinArc::from_header_and_slice(Record { offset: 0, stamp, extras }, self.data()))
    }
}

/// The format of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PayloadFormat {
    /// One JSON value without line breaks outside strings. Every encoding may copy it.
    #[default]
    Json,
    /// Any bytes. JSON encodings must encode them in another form.
    Binary,
}

/// Names and values of a publication's tags or a connection's labels. One pointer, because most have none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Tags(Option<Box<TagList>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TagList(Box<[(Box<str>, Box<str>)]>);

impl Tags {
    /// No tags.
    pub(crate) const NONE: Tags = Tags(None);
}

impl std::ops::Deref for Tags {
    type Target = [(Box<str>, Box<str>)];

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().map_or(&[], |list| &list.0)
    }
}

impl FromIterator<(Box<str>, Box<str>)> for Tags {
    fn from_iter<I: IntoIterator<Item = (Box<str>, Box<str>)>>(tags: I) -> Self {
        let list: Box<[_]> = tags.into_iter().collect();
        Tags((!list.is_empty()).then(|| Box::new(TagList(list))))
    }
}

impl Publication {
    /// Bytes counted in the limits of history and queues.
    pub fn cost(&self) -> usize {
        publication_cost(self.data().len(), self.tags(), self.key())
            + self.channel().map_or(0, str::len)
    }
}

fn publication_cost(data: usize, tags: &Tags, key: Option<&str>) -> usize {
    // Includes the reference count, the length of the payload, and the entry in the history.
    const RECORD: usize = size_of::<Record>() + 3 * size_of::<usize>();
    let tags: usize = tags.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
    RECORD + data + tags + key.map_or(0, str::len)
}

/// A client as other clients see it in presence, join and leave messages and publications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// The user, empty if anonymous. The text is shared.
    pub user: ArcStr,
    /// Its backend named the user by a JSON number, whose text `user` is. Protocols that pass on a user as the backend
    /// has written it write a number.
    pub user_is_number: bool,
    /// The session.
    pub client: SessionId,
    /// The client's id on a server of another kind that shares the channel. `client` is then not a session id, but a
    /// number derived from this id.
    pub foreign_client: Option<Box<str>>,
    /// Raw JSON about the connection.
    pub conn_info: Option<Box<[u8]>>,
    /// Raw JSON about the connection in this channel.
    pub chan_info: Option<Box<[u8]>>,
}

/// Approximate size of a client's information in a response, without its values.
pub(crate) const CLIENT_INFO_BYTES: usize = 128;

impl ClientInfo {
    /// Approximate size in a response, in bytes.
    pub(crate) fn cost(&self) -> usize {
        let json = |json: &Option<Box<[u8]>>| json.as_ref().map_or(0, |json| json.len());
        let foreign = self.foreign_client.as_ref().map_or(0, |client| client.len());
        CLIENT_INFO_BYTES
            + self.user.len()
            + foreign
            + json(&self.conn_info)
            + json(&self.chan_info)
    }
}

/// What a stored publication survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The end of the process: the kernel has it.
    Written,
    /// A loss of power: the disk has it.
    Synced,
}

/// A message to publish.
#[derive(Debug, Clone, Default)]
pub struct NewPublication {
    /// The owner of the channel's stream, if this creates it.
    pub owner: Owner,
    /// The payload.
    pub data: Box<[u8]>,
    /// See [`Publication::format`].
    pub format: PayloadFormat,
    /// See [`Publication::delta`]; also by [`ChannelOptions::delta_publish`](crate::ChannelOptions).
    pub delta: bool,
    /// See [`Publication::tags`].
    pub tags: Tags,
    /// See [`Publication::info`].
    pub info: Option<Arc<ClientInfo>>,
    /// The session that does not receive it. It must not track offsets, because it would miss this one.
    pub except: Option<SessionId>,
    /// See [`Publication::key`].
    pub key: Option<Box<str>>,
    /// A second publication with the same key into the same channel, within the time to live, is
    /// suppressed. It gets the first one's position.
    pub idempotency_key: Option<Box<str>>,
    /// Milliseconds the key is remembered; 5 minutes when `None`.
    pub idempotency_ttl_ms: Option<u32>,
    /// Deliver to current subscribers only; do not number or store it.
    pub skip_history: bool,
    /// Greater than 0: suppressed unless greater than the version published last into this
    /// (history-keeping) channel.
    pub version: u64,
    /// Versions compare only within the same epoch; empty: regardless.
    pub version_epoch: Box<str>,
    /// The operation ends when the publication survives this, and fails where its engine cannot tell. `None`: what
    /// the [engine of the namespace](crate::engine::NamespaceEngine::durability) waits for.
    pub durability: Option<Durability>,
    /// See [`Publication::trace`].
    pub trace: Option<TraceContext>,
}

impl NewPublication {
    /// Whether it has anything beside a payload. The publisher is not considered.
    pub(crate) fn is_more_than_payload(&self) -> bool {
        !self.tags.is_empty()
            || self.key.is_some()
            || self.idempotency_key.is_some()
            || self.version > 0
            || self.delta
            || self.except.is_some()
    }

    pub(crate) fn cost(&self) -> usize {
        publication_cost(self.data.len(), &self.tags, self.key.as_deref())
            + self.idempotency_key.as_deref().map_or(0, str::len)
    }
}
