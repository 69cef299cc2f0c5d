//! Publications and their senders.

use std::sync::Arc;

use crate::session_id::SessionId;
use crate::shares::Maker;

/// One message of a channel, as its home worker numbered it. Shared as `Arc` by history, every
/// worker and every event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Publication {
    /// Number in the channel's stream, from 1 without holes; 0 when the channel keeps no history
    /// (or the publisher skipped it).
    pub offset: u64,
    /// The payload. The hub does not parse it.
    pub data: Box<[u8]>,
    /// What the payload is, as the publisher said or the server found.
    pub format: PayloadFormat,
    /// May be sent as the difference from the publication before.
    pub delta: bool,
    /// The client that published it, if one did.
    pub info: Option<Arc<ClientInfo>>,
    /// Labels by the publisher; delivered to clients.
    pub tags: Tags,
    /// The subject, for [`OverflowPolicy::KeepLatest`](crate::OverflowPolicy::KeepLatest).
    pub key: Option<Box<str>>,
    /// When the home worker accepted it, Unix time in milliseconds.
    pub time_ms: u64,
}

// History keeps millions of them.
const _: () = assert!(size_of::<Publication>() <= 72);

/// What a payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PayloadFormat {
    /// One JSON value without a line break outside strings: every encoding may copy it.
    #[default]
    Json,
    /// Any bytes. Encodings in JSON have to find another form for them.
    Binary,
}

/// Labels of a publication: name and value. One pointer, because most publications have none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tags(Option<Box<TagList>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct TagList(Box<[(Box<str>, Box<str>)]>);

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
    /// Bytes it counts in the bounds of history and queues.
    pub fn cost(&self) -> usize {
        publication_cost(self.data.len(), &self.tags, self.key.as_deref())
    }
}

fn publication_cost(data: usize, tags: &Tags, key: Option<&str>) -> usize {
    const RECORD: usize = size_of::<Publication>() + 2 * size_of::<usize>();
    let tags: usize = tags.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
    RECORD + data + tags + key.map_or(0, str::len)
}

/// A client as other clients see it in presence, join and leave messages and publications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// The user, empty when anonymous.
    pub user: Box<str>,
    /// The session.
    pub client: SessionId,
    /// Raw JSON about the connection.
    pub conn_info: Option<Box<[u8]>>,
    /// Raw JSON about the connection in this channel.
    pub chan_info: Option<Box<[u8]>>,
}

impl ClientInfo {
    /// About the bytes that it takes in an answer.
    pub(crate) fn cost(&self) -> usize {
        const NAMES: usize = 128;
        let json = |json: &Option<Box<[u8]>>| json.as_ref().map_or(0, |json| json.len());
        NAMES + self.user.len() + json(&self.conn_info) + json(&self.chan_info)
    }
}

/// What is to be published.
#[derive(Debug, Clone, Default)]
pub struct NewPublication {
    /// Whose the channel's stream is if it begins with this.
    pub maker: Maker,
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
    /// Not delivered to this session. It must follow no offsets: it would miss this one.
    pub except: Option<SessionId>,
    /// See [`Publication::key`].
    pub key: Option<Box<str>>,
    /// A second publication with the same key into the same channel, within the time to live, is
    /// suppressed. It gets the first one's position.
    pub idempotency_key: Option<Box<str>>,
    /// Milliseconds the key is remembered; 5 minutes when `None`.
    pub idempotency_ttl_ms: Option<u32>,
    /// Deliver to present subscribers only: not numbered, not kept.
    pub skip_history: bool,
    /// Greater than 0: suppressed unless greater than the version published last into this
    /// (history-keeping) channel.
    pub version: u64,
    /// Versions compare only within the same epoch; empty: regardless.
    pub version_epoch: Box<str>,
}

impl NewPublication {
    pub(crate) fn cost(&self) -> usize {
        publication_cost(self.data.len(), &self.tags, self.key.as_deref())
            + self.idempotency_key.as_deref().map_or(0, str::len)
    }
}
