//! Messages between hubs.

use std::sync::Arc;

use crate::command::{HistoryFilter, SessionFilter, SubscribeOptions};
use crate::cursor::{CursorOwner, CursorRequest, CursorState};
use crate::error::Error;
use crate::event::{History, Info, Published};
use crate::options::ChannelOptions;
use crate::position::{Epoch, StreamPosition};
use crate::publication::{ClientInfo, NewPublication, PayloadFormat, Publication};
use crate::session_id::SessionId;
use crate::shares::Owner;
use crate::tag_filter::TagFilter;

/// A message from one worker's hub to another's. Opaque: pass it, in order, to
/// [`Hub::handle_message`](crate::Hub::handle_message) of its receiver.
#[derive(Debug)]
pub struct HubMessage {
    /// The sender's incarnation. A message that a dead worker left in a ring is not mistaken for
    /// one of its successor.
    pub(crate) incarnation: u32,
    pub(crate) kind: HubMessageKind,
}

const _: () = assert!(size_of::<HubMessage>() <= 64);

/// Identifies a request: the requester's incarnation and its key there. A reply to a dead worker is
/// not mistaken for one to its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WaiterId {
    pub(crate) incarnation: u32,
    pub(crate) key: u32,
}

#[derive(Debug)]
pub(crate) enum HubMessageKind {
    /// The sender was restarted. Contains only its incarnation.
    Restarted,

    // To a channel's home worker.
    Subscribe(Box<SubscribeRequest>),
    Unsubscribe {
        channel: Arc<str>,
        /// The session to remove from presence.
        member: Option<SessionId>,
        /// The requesting worker has no more subscribers.
        last: bool,
    },
    /// New client information of a member.
    Describe {
        channel: Arc<str>,
        info: Arc<ClientInfo>,
    },
    Publish(Box<PublishRequest>),
    History(Box<HistoryRequest>),
    HistoryRemove {
        request: WaiterId,
        channel: Arc<str>,
        namespace: Arc<str>,
    },
    Cursor(Box<CursorRequest>),
    Presence {
        request: WaiterId,
        channel: Arc<str>,
        /// Limit of the bytes of the entries, beyond which the reply is an error. `None`: only count.
        bytes_max: Option<usize>,
    },

    // From a channel's home worker.
    Publication {
        channel: Arc<str>,
        epoch: Epoch,
        publication: Publication,
        except: Option<SessionId>,
    },
    Join {
        channel: Arc<str>,
        info: Arc<ClientInfo>,
        of_user: bool,
    },
    Leave {
        channel: Arc<str>,
        info: Arc<ClientInfo>,
        of_user: bool,
    },
    /// A user has acknowledged everything up to an offset, for this device, or for all if it is empty.
    Acked {
        channel: Arc<str>,
        owner: Arc<CursorOwner>,
        offset: u64,
    },
    /// Messages of the channel were lost between workers. The home worker sends no more until this worker subscribes
    /// again.
    Gap {
        channel: Arc<str>,
    },
    Reply(Box<HubReply>),

    // To every worker.
    Scatter {
        request: WaiterId,
        scatter: Arc<ScatterRequest>,
    },
}

#[derive(Debug)]
pub(crate) struct SubscribeRequest {
    pub(crate) request: WaiterId,
    pub(crate) channel: Arc<str>,
    pub(crate) options: Arc<ChannelOptions>,
    pub(crate) since: Option<StreamPosition>,
    /// It begins at this cursor, but for `since`.
    pub(crate) cursor: Option<Box<CursorOwner>>,
    /// Where that stands, once it is known.
    pub(crate) cursor_state: Option<CursorState>,
    /// Refuse the subscription if it cannot recover from its position.
    pub(crate) reject_unrecovered: bool,
    /// The entry for the presence list.
    pub(crate) member: Option<Arc<ClientInfo>>,
    /// The reply includes the presence list.
    pub(crate) list_members: bool,
    pub(crate) owner: Owner,
}

#[derive(Debug)]
pub(crate) struct PublishRequest {
    pub(crate) request: WaiterId,
    pub(crate) channel: Arc<str>,
    pub(crate) options: Arc<ChannelOptions>,
    pub(crate) publish: NewPublication,
}

#[derive(Debug)]
pub(crate) struct HistoryRequest {
    pub(crate) request: WaiterId,
    pub(crate) channel: Arc<str>,
    pub(crate) options: Arc<ChannelOptions>,
    pub(crate) filter: HistoryFilter,
    pub(crate) owner: Owner,
}

#[derive(Debug)]
pub(crate) struct HubReply {
    pub(crate) request: WaiterId,
    pub(crate) content: ReplyContent,
}

#[derive(Debug)]
pub(crate) enum ReplyContent {
    Failed(Error),
    Subscribed {
        position: StreamPosition,
        recovered: bool,
        publications: Vec<Publication>,
        members: Vec<Arc<ClientInfo>>,
        cursor: Option<Box<CursorState>>,
    },
    Cursor(CursorState),
    Published(Published),
    History(History),
    HistoryRemoved,
    Presence(Vec<Arc<ClientInfo>>),
    PresenceStats {
        clients: u64,
        users: u64,
    },
    Channels(Vec<(Arc<str>, u64)>),
    Info(Info),
    Affected(u64),
}

/// A request to every worker at once.
#[derive(Debug)]
pub(crate) enum ScatterRequest {
    Channels {
        /// Alternatives, each a pattern without braces; empty: all.
        patterns: Vec<String>,
    },
    Info,
    /// A command for sessions of a user, or of all users.
    Sessions {
        user: Box<str>,
        only: SessionFilter,
        action: Box<SessionAction>,
    },
}

/// An action on a session.
#[derive(Debug)]
pub(crate) enum SessionAction {
    Disconnect {
        except: Vec<SessionId>,
        code: u32,
        reason: Arc<str>,
    },
    Unsubscribe {
        channel: Arc<str>,
        code: u32,
        reason: Arc<str>,
    },
    Subscribe {
        channel: Arc<str>,
        options: Arc<ChannelOptions>,
        subscribe: SubscribeOptions,
        expire_at_s: Option<u64>,
    },
    Refresh {
        expire_at_s: Option<u64>,
        conn_info: Option<Box<[u8]>>,
    },
    Send {
        device: Box<str>,
        data: Box<[u8]>,
        format: PayloadFormat,
    },
}

impl HubMessageKind {
    /// Bytes counted in the limit of a queue.
    pub(crate) fn cost(&self) -> usize {
        size_of::<HubMessage>()
            + match self {
                Self::Publication { publication, .. } => publication.cost(),
                Self::Publish(publish) => publish.publish.cost(),
                Self::Reply(reply) => size_of::<HubReply>() + reply.content.cost(),
                Self::Subscribe(_) => size_of::<SubscribeRequest>(),
                Self::History(_) => size_of::<HistoryRequest>(),
                Self::Cursor(asked) => {
                    size_of::<CursorRequest>() + asked.owner.user.len() + asked.owner.device.len()
                }
                Self::Scatter { scatter, .. } => scatter.cost(),
                _ => 0,
            }
    }
}

impl ScatterRequest {
    /// Bytes of its content.
    pub(crate) fn cost(&self) -> usize {
        let Self::Sessions { only, action, .. } = self else { return 0 };
        let filter = only.labels.as_ref().map_or(0, TagFilter::bytes);
        filter
            + match &**action {
                SessionAction::Send { data, .. } => data.len(),
                _ => 0,
            }
    }

    /// Whether it is executed in steps.
    pub(crate) fn is_walk(&self) -> bool {
        matches!(self, Self::Sessions { only, .. } if only.all_users && only.client.is_none())
    }

    /// The user of the sessions.
    pub(crate) fn user(&self) -> Option<&str> {
        match self {
            Self::Sessions { user, .. } => Some(user),
            _ => None,
        }
    }
}

impl ReplyContent {
    fn cost(&self) -> usize {
        match self {
            Self::Subscribed { publications, members, .. } => {
                let publications: usize = publications.iter().map(|p| p.cost()).sum();
                publications + members.len() * size_of::<ClientInfo>()
            }
            Self::History(history) => history.publications.iter().map(|p| p.cost()).sum(),
            Self::Presence(infos) => infos.len() * size_of::<ClientInfo>(),
            Self::Channels(channels) => channels.iter().map(|(name, _)| name.len() + 48).sum(),
            _ => 0,
        }
    }
}
