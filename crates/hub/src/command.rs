//! Arguments of the hub's operations.

use crate::encode::EncodingId;
use crate::position::StreamPosition;
use crate::publication::{PayloadFormat, Tags};
use crate::session_id::SessionId;
use crate::shares::Owner;
use crate::tag_filter::TagFilter;

/// A session to open.
#[derive(Debug, Clone)]
pub struct NewSession<'a> {
    /// The caller's name for it, a connection id for instance; comes back in events and flushes.
    pub tag: u64,
    /// The encoding of its pushes.
    pub encoding: EncodingId,
    /// The user; empty for an anonymous session, which only its id reaches.
    pub user: &'a str,
    /// Whose the streams are that it brings into being.
    pub owner: Owner,
    /// Raw JSON about the connection for [`ClientInfo`](crate::ClientInfo).
    pub conn_info: Option<Box<[u8]>>,
    /// Bytes that may wait in its outbox while it is blocked before a channel's overflow policy
    /// applies, at most 256 MiB; four times as many may gather between two flushes. A single frame
    /// may be larger.
    pub outbox_bytes_max: u32,
    /// A long-poll: the session ends with its first response. [`Flush::poll`] repeats it.
    pub poll: bool,
    /// Nothing is flushed until [`Hub::release`](crate::Hub::release).
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
    /// Fail with [`Error::UnrecoverablePosition`](crate::Error) where the channel has a stream and not all of them are held.
    pub reject_unrecovered: bool,
    /// The client follows offsets.
    pub positioned: bool,
    /// The client may come back and recover.
    pub recoverable: bool,
    /// Send differences between publications, if the channel has them. Not of filtered ones.
    pub delta: bool,
    /// Send only publications that pass.
    pub filter: Option<TagFilter>,
    /// Send join and leave pushes, if the channel has them.
    pub join_leave: bool,
    /// The join and leave pushes rest on a grant, as [`granted`](Self::granted) says of the subscription.
    pub join_leave_granted: bool,
    /// Leave out the push of its own join.
    pub skip_own_join: bool,
    /// Whose it is in the presence of this channel; `None`: the session's user.
    pub member: Option<Box<str>>,
    /// List who is present when it begins: [`Subscribed::members`](crate::Subscribed).
    pub list_members: bool,
    /// Raw JSON about the connection in this channel, for [`ClientInfo`](crate::ClientInfo).
    pub chan_info: Option<Box<[u8]>>,
    /// It rests on a grant (the server subscribes the client, or the client has a token for it) and not on the
    /// channel's rules: no [`Withdrawal`](crate::Withdrawal) ends it.
    pub granted: bool,
    /// Puts [`Outgoing::Subscribe`](crate::Outgoing::Subscribe) and the recovered publications into the
    /// session: for a server-side subscription of a client that is connected already.
    pub announce: bool,
    /// Raw JSON that goes with the announcement.
    pub data: Option<Box<[u8]>>,
}

impl SubscribeOptions {
    /// Of a wildcard: there is no stream to follow, and nobody is present. A recovery that was asked for has failed.
    pub(crate) fn follow_nothing(&mut self) {
        self.recover = self.recover.map(|_| StreamPosition::BARRED);
        (self.reject_unrecovered, self.positioned, self.recoverable) = (false, false, false);
        (self.delta, self.join_leave, self.list_members) = (false, false, false);
    }
}

/// Which part of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryFilter {
    /// Only publications after this position, before it if `reverse`.
    pub since: Option<StreamPosition>,
    /// Maximum number of publications. `None`: all. 0: only the position.
    pub limit: Option<u32>,
    /// Newest first.
    pub reverse: bool,
    /// Bytes of publications that follow the first one. `None`: no bound. What is left out is on the next page.
    pub bytes_max: Option<usize>,
}

/// Which sessions of a user a command is about, or of all users: all of what is set has to fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// Only this session.
    pub client: Option<SessionId>,
    /// Only sessions whose [labels](crate::Hub::set_labels) pass.
    pub labels: Option<TagFilter>,
    /// The user is empty and stands for all users of no tenant, or is a tenant's name of nobody and stands for all of
    /// that tenant; anonymous ones are among them. The command goes on in steps: see
    /// [`Hub::continue_walks`](crate::Hub::continue_walks).
    pub all_users: bool,
}

impl SessionFilter {
    /// What it costs to ask it about a session with these labels: about a place of the table of sessions is 1.
    pub(crate) fn cost(&self, labels: &Tags) -> usize {
        self.labels.as_ref().map_or(0, |of| of.parts() * (1 + labels.len() / 8))
    }
}

impl From<Option<SessionId>> for SessionFilter {
    fn from(client: Option<SessionId>) -> SessionFilter {
        SessionFilter { client, ..SessionFilter::default() }
    }
}

/// Which of a user's sessions to disconnect, with code and reason.
#[derive(Debug, Clone, Default)]
pub struct DisconnectUser {
    /// Which of them.
    pub only: SessionFilter,
    /// All but these.
    pub except: Vec<SessionId>,
    /// Disconnect code.
    pub code: u32,
    /// For people.
    pub reason: Box<str>,
}

/// Which of a user's sessions to unsubscribe, with code and reason.
#[derive(Debug, Clone, Default)]
pub struct UnsubscribeUser {
    /// Which of them.
    pub only: SessionFilter,
    /// Unsubscribe code.
    pub code: u32,
    /// For people.
    pub reason: Box<str>,
}

/// Which of a user's sessions to subscribe, and how. Announced to each of them.
#[derive(Debug, Clone, Default)]
pub struct SubscribeUser {
    /// Which of them.
    pub only: SessionFilter,
    /// How; `granted` and `announce` are implied.
    pub subscribe: SubscribeOptions,
    /// Unix seconds: [`Event::Expires`](crate::Event::Expires) repeats it for each of them.
    pub expire_at_s: Option<u64>,
}

/// Which of a user's sessions expire at another time from now on.
#[derive(Debug, Clone, Default)]
pub struct RefreshUser {
    /// Which of them.
    pub only: SessionFilter,
    /// Unix seconds: [`Event::Refreshed`](crate::Event::Refreshed) repeats it for each of them. `None`: never.
    pub expire_at_s: Option<u64>,
    /// Raw JSON about the connection from now on, for [`ClientInfo`](crate::ClientInfo).
    pub conn_info: Option<Box<[u8]>>,
}

/// A message for a user's sessions alone, of no channel.
#[derive(Debug, Clone, Default)]
pub struct SendToUser {
    /// Only to this session.
    pub client: Option<SessionId>,
    /// Only to sessions of this device: see [`Encode::is_of_device`](crate::Encode::is_of_device). Empty: any.
    pub device: Box<str>,
    /// The payload.
    pub data: Box<[u8]>,
    /// What it is.
    pub format: PayloadFormat,
}

/// A session with something to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flush {
    /// The session.
    pub session: SessionId,
    /// The caller's name for it.
    pub tag: u64,
    /// It is a long-poll: send the response and close the session.
    pub poll: bool,
}

/// A session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionView<'a> {
    /// The caller's name for it.
    pub tag: u64,
    /// The encoding of its pushes.
    pub encoding: EncodingId,
    /// Whose it is.
    pub user: &'a str,
    /// Subscriptions, those under way included.
    pub subscriptions: u16,
    /// See [`NewSession::poll`].
    pub poll: bool,
    /// See [`NewSession::held`].
    pub held: bool,
    /// See [`Hub::set_blocked`](crate::Hub::set_blocked).
    pub blocked: bool,
    /// Disconnected by the hub, not yet closed by the caller.
    pub closing: bool,
    /// Bytes waiting in its outbox.
    pub outbox_bytes: u32,
    /// For how many minutes it has been open; it comes round after 45 days.
    pub age_min: u16,
}

/// Gauges and counters of one hub since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HubStats {
    /// Sessions open.
    pub sessions: u64,
    /// Different named users with sessions here.
    pub users: u64,
    /// Subscriptions, those under way included.
    pub subscriptions: u64,
    /// Channels with subscribers here.
    pub channels: u64,
    /// Channels at home here.
    pub home_channels: u64,
    /// Memory held by history.
    pub history_bytes: u64,
    /// Memory held for outboxes: frames and queue entries.
    pub pending_memory_bytes: u64,
    /// Bytes waiting in all outboxes, a shared frame counted for each.
    pub pending_bytes: u64,
    /// Payload waiting for other workers.
    pub transmit_bytes: u64,
    /// Publications taken by channels at home here.
    pub publications: u64,
    /// Pushes put into outboxes.
    pub deliveries: u64,
    /// Publications dropped from outboxes. Each is counted in a gap marker to its client.
    pub dropped: u64,
    /// Sessions disconnected for a full outbox or a used-up budget.
    pub slow_disconnects: u64,
    /// Subscriptions ended by a gap in their stream.
    pub gaps: u64,
    /// Recoveries that succeeded.
    pub recovered: u64,
    /// Recoveries that failed.
    pub unrecovered: u64,
    /// Messages given back because a ring was full.
    pub transmit_refused: u64,
    /// Requests refused or replies replaced because the queue to a worker was full.
    pub overloaded: u64,
    /// Requests not answered in time.
    pub timeouts: u64,
    /// Publications evicted from history for memory, before their time to live ended.
    pub history_evicted: u64,
    /// Home channels without subscribers, evicted before their time to live ended.
    pub channels_evicted: u64,
    /// Channels that this node hears from an engine.
    pub engine_channels: u64,
    /// Requests that engines have not answered.
    pub engine_pending: u64,
    /// Bytes of publications that wait behind a gap.
    pub engine_held_bytes: u64,
    /// Requests that an engine has not answered in time.
    pub engine_timeouts: u64,
    /// Streams of engines read, for a gap or for a recovery that the ring did not have.
    pub engine_reads: u64,
    /// Gaps of engines that were repaired before a subscriber saw them.
    pub engine_repaired: u64,
    /// Gaps of engines that could not be: the subscribers were unsubscribed and come back.
    pub engine_unrepaired: u64,
    /// Idempotency keys evicted before their time to live ended.
    pub idempotency_evicted: u64,
}
