//! Arguments of hub operations.

use crate::cursor::CursorOwner;
use crate::encode::EncodingId;
use crate::position::StreamPosition;
use crate::publication::{PayloadFormat, Tags};
use crate::session_id::SessionId;
use crate::shares::Owner;
use crate::tag_filter::TagFilter;

/// A session to open.
#[derive(Debug, Clone)]
pub struct NewSession<'a> {
    /// The caller's id of the session, for example a connection id. Returned in events and flushes.
    pub tag: u64,
    /// The encoding of its pushes.
    pub encoding: EncodingId,
    /// The user; empty for an anonymous session, which can be addressed only by id.
    pub user: &'a str,
    /// The owner of the streams that this session creates.
    pub owner: Owner,
    /// Raw JSON about the connection for [`ClientInfo`](crate::ClientInfo).
    pub conn_info: Option<Box<[u8]>>,
    /// Bytes that may wait in its outbox while it is blocked before a channel's overflow policy
    /// applies, at most 256 MiB; four times as many may gather between two flushes. A single frame
    /// may be larger.
    pub outbox_bytes_max: u32,
    /// The session is a long-poll and ends with its first response. [`Flush::poll`] repeats this.
    pub poll: bool,
    /// Do not flush until [`Hub::release`](crate::Hub::release) is called.
    pub held: bool,
}

impl Default for NewSession<'_> {
    fn default() -> Self {
        Self {
            tag: 0,
            encoding: EncodingId(0),
            user: "",
            owner: Owner::NONE,
            conn_info: None,
            outbox_bytes_max: 1 << 20,
            poll: false,
            held: false,
        }
    }
}

/// Options of one subscription.
#[derive(Debug, Clone, Default)]
pub struct SubscribeOptions {
    /// Recover the publications after this position, if the history still holds all of them.
    pub recover: Option<StreamPosition>,
    /// Fail with [`Error::UnrecoverablePosition`](crate::Error) if the channel has a stream and a publication after
    /// the position is missing.
    pub reject_unrecovered: bool,
    /// The client tracks offsets.
    pub positioned: bool,
    /// The client may reconnect and recover.
    pub recoverable: bool,
    /// Begin at this cursor, in a channel with [acknowledgements](crate::ChannelOptions::ack), and not before `recover`.
    pub cursor: Option<Box<CursorOwner>>,
    /// Send deltas, if the channel supports them. Not for filtered subscriptions.
    pub delta: bool,
    /// Send only publications that pass this filter.
    pub filter: Option<TagFilter>,
    /// Send join and leave pushes, if the channel has them.
    pub join_leave: bool,
    /// The join and leave pushes are based on a grant, like [`granted`](Self::granted) for the subscription.
    pub join_leave_granted: bool,
    /// Do not send the join of this session to itself.
    pub skip_own_join: bool,
    /// The server makes the subscription, and the client does not make it again: [`Event::Unsubscribed`](crate::Event)
    /// says so when it ends.
    pub server_side: bool,
    /// The user in the presence of this channel; `None`: the session's user.
    pub member: Option<MemberUser>,
    /// Return the presence list with the subscription: [`Subscribed::members`](crate::Subscribed).
    pub list_members: bool,
    /// Raw JSON about the connection in this channel, for [`ClientInfo`](crate::ClientInfo).
    pub chan_info: Option<Box<[u8]>>,
    /// The subscription is based on a grant (a server-side subscription, or a token) and not on the channel's rules.
    /// A [`Withdrawal`](crate::Withdrawal) does not end it.
    pub granted: bool,
    /// The subscription is one of those that the session was given when it began, and not its own wish: a
    /// [comparison](crate::Hub::compare_session) names it as such.
    pub of_connection: bool,
    /// Send [`Outgoing::Subscribe`](crate::Outgoing::Subscribe) and the recovered publications to the session: for a
    /// server-side subscription of a client that is already connected.
    pub announce: bool,
    /// Raw JSON for the announcement.
    pub data: Option<Box<[u8]>>,
}

/// The user as whom a session is present in a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberUser {
    /// The name, or the text of the number.
    pub name: Box<str>,
    /// See [`ClientInfo::user_is_number`](crate::ClientInfo).
    pub is_number: bool,
}

impl From<&str> for MemberUser {
    fn from(name: &str) -> MemberUser {
        MemberUser { name: name.into(), is_number: false }
    }
}

impl SubscribeOptions {
    /// Adapts the options to a wildcard, which has neither stream nor presence. A requested recovery fails.
    pub(crate) fn follow_nothing(&mut self) {
        self.recover = self.recover.map(|_| StreamPosition::BARRED);
        self.cursor = None;
        (self.reject_unrecovered, self.positioned, self.recoverable) = (false, false, false);
        (self.delta, self.join_leave, self.list_members) = (false, false, false);
    }
}

/// The part of a history to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryFilter {
    /// Only publications after this position, or before it if `reverse`.
    pub since: Option<StreamPosition>,
    /// Maximum number of publications. `None`: all. 0: only the position.
    pub limit: Option<u32>,
    /// Newest first.
    pub reverse: bool,
    /// Limit of the bytes of publications after the first one; `None`: no limit. The rest is on the next page.
    pub bytes_max: Option<usize>,
    /// Only publications of the stream's present epoch: those that no reader of an earlier epoch has. Not with `reverse`.
    pub present_epoch: bool,
}

/// Selects sessions of a user, or of all users. All conditions must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// Only this session, if it belongs to the user, or to a user of the same tenant if no user is named.
    pub client: Option<SessionId>,
    /// Only sessions whose [labels](crate::Hub::set_labels) match.
    pub labels: Option<TagFilter>,
    /// Select sessions of all users, including anonymous ones: of no tenant if the user is empty, of a tenant if the
    /// user is only the tenant's prefix. The command is executed in steps: see
    /// [`Hub::continue_walks`](crate::Hub::continue_walks).
    pub all_users: bool,
}

impl SessionFilter {
    /// The cost of evaluating the filter for a session with these labels. Visiting a slot of the session table costs
    /// about 1.
    pub(crate) fn cost(&self, labels: &Tags) -> usize {
        self.labels.as_ref().map_or(0, |of| of.parts() * (1 + labels.len() / 8))
    }
}

impl From<Option<SessionId>> for SessionFilter {
    fn from(client: Option<SessionId>) -> SessionFilter {
        SessionFilter { client, ..SessionFilter::default() }
    }
}

/// Disconnects sessions of a user.
#[derive(Debug, Clone, Default)]
pub struct DisconnectUser {
    /// The sessions.
    pub only: SessionFilter,
    /// Sessions to exclude.
    pub except: Vec<SessionId>,
    /// Disconnect code.
    pub code: u32,
    /// The reason as text.
    pub reason: Box<str>,
}

/// Unsubscribes sessions of a user.
#[derive(Debug, Clone, Default)]
pub struct UnsubscribeUser {
    /// The sessions.
    pub only: SessionFilter,
    /// Unsubscribe code.
    pub code: u32,
    /// The reason as text.
    pub reason: Box<str>,
}

/// Subscribes sessions of a user. The subscription is announced to each of them.
#[derive(Debug, Clone, Default)]
pub struct SubscribeUser {
    /// The sessions.
    pub only: SessionFilter,
    /// The options; `granted`, `announce` and `server_side` are implied.
    pub subscribe: SubscribeOptions,
    /// Expiry in Unix seconds. Repeated in [`Event::Expires`](crate::Event::Expires) for each session.
    pub expire_at_s: Option<u64>,
}

/// Changes the expiry of sessions of a user.
#[derive(Debug, Clone, Default)]
pub struct RefreshUser {
    /// The sessions.
    pub only: SessionFilter,
    /// Expiry in Unix seconds; `None`: never. Repeated in [`Event::Refreshed`](crate::Event::Refreshed) for each
    /// session.
    pub expire_at_s: Option<u64>,
    /// New raw JSON about the connection, for [`ClientInfo`](crate::ClientInfo).
    pub conn_info: Option<Box<[u8]>>,
}

/// A message to the sessions of a user, outside of channels.
#[derive(Debug, Clone, Default)]
pub struct SendToUser {
    /// Send only to this session.
    pub client: Option<SessionId>,
    /// Send only to sessions of this device: see [`Encode::is_of_device`](crate::Encode::is_of_device). Empty: all.
    pub device: Box<str>,
    /// The payload.
    pub data: Box<[u8]>,
    /// The format of the payload.
    pub format: PayloadFormat,
}

/// A session with output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flush {
    /// The session.
    pub session: SessionId,
    /// The caller's id of the session.
    pub tag: u64,
    /// The session is a long-poll: send the response and close it.
    pub poll: bool,
}

/// A session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionView<'a> {
    /// The caller's id of the session.
    pub tag: u64,
    /// The encoding of its pushes.
    pub encoding: EncodingId,
    /// The user.
    pub user: &'a str,
    /// The number of subscriptions, including pending ones.
    pub subscriptions: u16,
    /// See [`NewSession::poll`].
    pub poll: bool,
    /// See [`NewSession::held`].
    pub held: bool,
    /// See [`Hub::set_blocked`](crate::Hub::set_blocked).
    pub blocked: bool,
    /// Disconnected by the hub, but not yet closed by the caller.
    pub closing: bool,
    /// Bytes waiting in its outbox.
    pub outbox_bytes: u32,
    /// Minutes since it was opened; wraps around after 45 days.
    pub age_min: u16,
}

/// Gauges and counters of one hub since its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HubStats {
    /// Open sessions.
    pub sessions: u64,
    /// Distinct named users with sessions here.
    pub users: u64,
    /// Subscriptions, including pending ones.
    pub subscriptions: u64,
    /// Channels with subscribers here.
    pub channels: u64,
    /// Channels at home here.
    pub home_channels: u64,
    /// Memory used by history.
    pub history_bytes: u64,
    /// Memory used by filters of subscriptions.
    pub filter_bytes: u64,
    /// Memory used by outboxes: frames and queue entries.
    pub pending_memory_bytes: u64,
    /// Bytes waiting in all outboxes, a shared frame counted for each.
    pub pending_bytes: u64,
    /// Payload bytes waiting for other workers.
    pub transmit_bytes: u64,
    /// Publications accepted by channels at home here.
    pub publications: u64,
    /// Pushes put into outboxes.
    pub deliveries: u64,
    /// Publications dropped from outboxes. Each is counted in a gap marker to its client.
    pub dropped: u64,
    /// Sessions disconnected because of a full outbox or an exceeded budget.
    pub slow_disconnects: u64,
    /// Subscriptions ended by a gap in their stream.
    pub gaps: u64,
    /// Recoveries that succeeded.
    pub recovered: u64,
    /// Recoveries that failed.
    pub unrecovered: u64,
    /// Messages refused by a full ring.
    pub transmit_refused: u64,
    /// Requests refused or replies replaced because the queue to a worker was full.
    pub overloaded: u64,
    /// Requests not answered in time.
    pub timeouts: u64,
    /// Publications evicted from history for memory, before their time to live ended.
    pub history_evicted: u64,
    /// Home channels without subscribers, evicted before their time to live ended.
    pub channels_evicted: u64,
    /// Channels that this node subscribes to in an engine.
    pub engine_channels: u64,
    /// Outstanding requests to engines.
    pub engine_pending: u64,
    /// Bytes of publications held back after gaps.
    pub engine_held_bytes: u64,
    /// Requests to engines that timed out.
    pub engine_timeouts: u64,
    /// Reads of streams in engines, to repair a gap or for a recovery that the ring could not serve.
    pub engine_reads: u64,
    /// Gaps of engine streams repaired before subscribers noticed them.
    pub engine_repaired: u64,
    /// Gaps of engine streams that could not be repaired: subscribers were unsubscribed and subscribe again.
    pub engine_unrepaired: u64,
    /// Idempotency keys evicted before their time to live ended.
    pub idempotency_evicted: u64,
    /// Acknowledgements that moved a cursor of a channel at home here.
    pub acks: u64,
    /// Cursors of devices that had not moved for as long as they are kept.
    pub cursors_expired: u64,
    /// Users' cursors in a channel in memory that were given up to make room for others.
    pub cursors_evicted: u64,
    /// Messages sent again because they were not acknowledged in time.
    pub redelivered: u64,
    /// Subscriptions that wait for an acknowledgement before they are sent more, or catch up.
    pub windows_full: u64,
    /// Users with cursors in channels in memory.
    pub cursor_records: u64,
    /// Memory used by them.
    pub cursor_bytes: u64,
}
