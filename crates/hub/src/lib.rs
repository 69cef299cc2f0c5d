#![doc = include_str!("../README.md")]
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

mod accounts;
mod agent;
mod ages;
mod broadcast;
mod channel;
mod channel_event;
mod channel_filters;
mod channel_table;
pub mod code;
mod command;
mod config;
mod cursor;
mod cursor_table;
mod encode;
pub mod engine;
mod error;
mod event;
mod filter_shares;
mod frame_log;
pub mod glob;
mod history;
mod home_channel;
mod hub;
mod idempotency;
mod in_flight;
mod inbox;
mod labels;
mod list;
mod member_event;
mod message;
mod node_numbers;
mod options;
mod outbox;
mod pacing;
mod pending_requests;
mod position;
mod publication;
mod ranking;
mod remote_members;
mod session;
mod session_id;
mod shares;
mod slots;
mod tag_filter;
pub mod tenant;
mod trace;
mod transmit;
mod user;
mod user_directory;
pub mod wildcard;
mod worker_set;

pub use broadcast::BroadcastStatus;
pub use channel_event::{ChannelEvent, ChannelEventFilter, UnsubscribeCause};
pub use command::{
    DisconnectUser, Flush, HistoryFilter, HubStats, MemberUser, NewSession, RefreshUser,
    SendToUser, SessionFilter, SessionView, SubscribeOptions, SubscribeUser, UnsubscribeUser,
};
pub use config::{HubConfig, Now};
pub use cursor::{CURSOR_USER_BYTES_MAX, CursorOwner, CursorState, DEVICE_BYTES_MAX};
pub use encode::{ENCODINGS_MAX, Encode, EncodingId, Outgoing, Patch};
pub use error::Error;
pub use event::{ChannelSummary, Event, History, Info, PresenceStats, Published, Subscribed};
pub use hub::{
    ChannelPattern, CheckedSubscription, Hub, SubscriberCount, SubscriberRights, SubscriptionBasis,
    TenantTraffic, Withdrawal,
};
pub use inbox::{INBOX_ID, INBOX_TTL_MS};
pub use member_event::MemberEvent;
pub use message::HubMessage;
pub use options::{AckOptions, ChannelOptions, ChannelRef, OverflowPolicy, RecoveryMode};
pub use pacing::{BURST_MS, Pacing};
pub use position::{Epoch, StreamPosition};
pub use publication::{
    ClientInfo, Durability, NewPublication, PayloadFormat, Publication, PublicationParts, Tags,
};
pub use remote_members::{MemberListError, MemberListRequest};
pub use session_id::{
    BOOTS_MAX, InvalidSessionId, NODES_MAX, SESSIONS_MAX, SessionId, WORKERS_MAX,
};
pub use shares::{NamespaceShare, Owner};
pub use tag_filter::{NumberOrder, TagCondition, TagFilter};
pub use trace::{TraceContext, TracedDelivery};
pub use user_directory::UserDirectory;
