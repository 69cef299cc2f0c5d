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
#[derive(Default)]
pub(crate) struct Members {
    pub(crate) sessions: HashMap<SessionId, HomeMember, RandomState>,
    /// How many of them each user has, once one of them was to be counted.
    users: Option<Box<Users>>,
}

type Users = HashMap<Box<str>, u32, RandomState>;

impl Members {
    /// Counts users from now on.
    pub(crate) fn count_users(&mut self) {
        if self.users.is_none() {
            let mut users = Box::<Users>::default();
            for member in self.sessions.values() {
                *users.entry(member.info.user.clone()).or_default() += 1;
            }
            self.users = Some(users);
        }
    }

    /// Whether there is a place for a session of this user beside `users_max` users; 0: always.
    pub(crate) fn has_place(&self, user: &str, users_max: u32) -> bool {
        let Some(users) = self.users.as_ref().filter(|_| users_max > 0) else { return true };
        users.len() < users_max as usize || users.contains_key(user)
    }

    /// Adds a session, or replaces what is known of it.
    pub(crate) fn insert(&mut self, member: HomeMember) {
        if let Some(users) = &mut self.users {
            *users.entry(member.info.user.clone()).or_default() += 1;
        }
        if let Some(before) = self.sessions.insert(member.info.client, member) {
            self.forget_user(&before.info.user);
        }
    }

    /// Takes a session out.
    pub(crate) fn remove(&mut self, session: SessionId) -> Option<HomeMember> {
        let member = self.sessions.remove(&session)?;
        self.forget_user(&member.info.user);
        Some(member)
    }

    /// How many sessions a user has here; `None`: users are not counted.
    pub(crate) fn sessions_of(&self, user: &str) -> Option<u32> {
        self.users.as_ref().map(|users| users.get(user).copied().unwrap_or(0))
    }

    fn forget_user(&mut self, user: &str) {
        if let Some(users) = &mut self.users
            && let Some(sessions) = users.get_mut(user)
        {
            *sessions -= 1;
            if *sessions == 0 {
                users.remove(user);
            }
        }
    }
}

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
