//! The home side of a channel: order, history, presence, and which workers listen.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::channel_table::ChannelRecord;
use crate::history::Stream;
use crate::publication::ClientInfo;
use crate::session_id::SessionId;
use crate::worker_set::WorkerSet;

/// A channel at home on this worker. Exists while it has something to remember.
pub(crate) struct HomeChannel {
    pub(crate) name: Arc<str>,
    /// Workers that have subscribers or pending ones.
    pub(crate) interest: WorkerSet,
    pub(crate) stream: Option<Box<Stream>>,
    pub(crate) members: Option<Box<Members>>,
    /// Distinguishes successive channels at one index.
    pub(crate) incarnation: u32,
    /// Index of its namespace in [`Shares`](crate::shares::Shares).
    pub(crate) namespace: u32,
}

const _: () = assert!(size_of::<HomeChannel>() <= 56);

/// Sessions of a channel with presence or join and leave.
pub(crate) type Members = HashMap<SessionId, HomeMember, RandomState>;

pub(crate) struct HomeMember {
    pub(crate) info: Arc<ClientInfo>,
    /// Shown in presence.
    pub(crate) presence: bool,
    /// Its departure is announced.
    pub(crate) join_leave: bool,
}

impl HomeChannel {
    pub(crate) fn new(name: Arc<str>, namespace: u32, incarnation: u32) -> Self {
        let interest = WorkerSet::default();
        Self { name, interest, stream: None, members: None, incarnation, namespace }
    }

    /// Nobody is in it.
    pub(crate) fn is_idle(&self) -> bool {
        self.interest.is_empty() && self.members.is_none()
    }

    /// Nobody is in it, and what is remembered of it is its position alone.
    pub(crate) fn is_forgettable(&self, stream: &Stream) -> bool {
        self.is_idle() && stream.len() == 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.interest.is_empty() && self.stream.is_none() && self.members.is_none()
    }
}

impl ChannelRecord for HomeChannel {
    fn name(&self) -> &str {
        &self.name
    }
}
