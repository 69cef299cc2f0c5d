//! Members of channels on other nodes, as a store beside this process lists them.
//!
//! A channel is followed while subscribers here are given the list of its members. The list is requested once, and
//! announcements of joins and leaves keep it current. An announcement that arrives during a request is later than the
//! list or included in it, so it prevails. If announcements may have been lost, the list is requested again, and what
//! differs is announced.

use std::collections::VecDeque;
use std::sync::Arc;

use arcstr::ArcStr;
use foldhash::fast::RandomState;
use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use crate::message::SubscribeRequest;
use crate::publication::ClientInfo;
use crate::session_id::SessionId;

/// The most lists that are requested at a time.
const REQUESTS_MAX: usize = 64;

/// A request for the members of a channel on other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberListRequest {
    /// The channel.
    pub channel: Arc<str>,
    /// The largest size of the list, in bytes.
    pub bytes_max: usize,
    number: u64,
}

/// Why there is no list of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberListError {
    /// It is larger than requested.
    TooLarge,
    /// It is not known now.
    Unavailable,
}

/// A member on another node that has joined or left.
pub(crate) type RemoteChange = (Arc<ClientInfo>, bool);

/// The followed channels of one worker.
#[derive(Debug, Default)]
pub(crate) struct RemoteMembers {
    channels: HashMap<Arc<str>, Followed, RandomState>,
    /// Channels whose list is to be requested.
    due: VecDeque<Arc<str>>,
    /// Lists that are being read.
    requested: usize,
    requests: u64,
}

/// A followed channel.
#[derive(Debug)]
struct Followed {
    sessions: HashMap<SessionId, Arc<ClientInfo>, RandomState>,
    /// The number of sessions of each user.
    users: HashMap<ArcStr, u32, RandomState>,
    state: ListState,
    /// Subscribers are answered with what is known.
    is_known: bool,
    bytes_max: usize,
    /// Sessions that were announced since the list was requested.
    changed: HashSet<SessionId, RandomState>,
    /// Subscriptions that wait for the first list, and their workers.
    waiting: Vec<(u8, SubscribeRequest)>,
    /// Since when nobody here needs it.
    idle_since_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListState {
    Due,
    /// `again`: announcements were lost meanwhile.
    Requested {
        number: u64,
        again: bool,
    },
    Current,
    Failed,
}

impl RemoteMembers {
    fn get(&self, channel: &str) -> Option<&Followed> {
        if self.channels.is_empty() { None } else { self.channels.get(channel) }
    }

    /// Whether a subscriber can be given the list now.
    pub(crate) fn is_known(&self, channel: &str) -> bool {
        self.get(channel).is_some_and(|of| of.is_known)
    }

    /// Keeps a subscription until the list is known.
    pub(crate) fn wait(&mut self, from: u8, asked: SubscribeRequest) {
        let bytes_max = match asked.options.recovery_bytes_max {
            0 => usize::MAX,
            max => max,
        };
        let followed = match self.channels.entry(Arc::clone(&asked.channel)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.due.push_back(Arc::clone(entry.key()));
                entry.insert(Followed::new(bytes_max))
            }
        };
        followed.waiting.push((from, asked));
    }

    /// Drops subscriptions that a worker has cancelled: that of a session, or all.
    pub(crate) fn forget_waiting(&mut self, channel: &str, from: u8, member: Option<SessionId>) {
        if let Some(followed) = self.channels.get_mut(channel) {
            followed.forget_waiting(from, member);
        }
    }

    /// Drops all subscriptions of a worker.
    pub(crate) fn forget_worker(&mut self, worker: u8) {
        self.channels.values_mut().for_each(|followed| followed.forget_waiting(worker, None));
    }

    /// Takes the subscriptions that wait.
    pub(crate) fn take_waiting(&mut self, channel: &str) -> Vec<(u8, SubscribeRequest)> {
        self.channels.get_mut(channel).map(|of| std::mem::take(&mut of.waiting)).unwrap_or_default()
    }

    /// Records a join or a leave on another node. Returns `false` if the channel is followed and this was known.
    pub(crate) fn note(&mut self, channel: &str, info: &Arc<ClientInfo>, joined: bool) -> bool {
        if self.channels.is_empty() {
            return true;
        }
        let Some(followed) = self.channels.get_mut(channel) else { return true };
        if matches!(followed.state, ListState::Requested { .. }) {
            followed.changed.insert(info.client);
        }
        followed.set(info, joined)
    }

    /// Returns the next list to request.
    pub(crate) fn poll_request(&mut self) -> Option<MemberListRequest> {
        while self.requested < REQUESTS_MAX {
            let channel = self.due.pop_front()?;
            let Some(followed) = self.channels.get_mut(&channel) else { continue };
            if followed.state != ListState::Due {
                continue;
            }
            self.requests += 1;
            self.requested += 1;
            let number = self.requests;
            followed.state = ListState::Requested { number, again: false };
            followed.changed.clear();
            return Some(MemberListRequest { channel, bytes_max: followed.bytes_max, number });
        }
        None
    }

    /// Takes the answer to a request. Returns what has changed for those who were given a list before. Of an
    /// unavailable list, subscribers get what is known, and the rest as announcements once it is.
    pub(crate) fn handle_list(
        &mut self,
        request: &MemberListRequest,
        list: Result<Vec<Arc<ClientInfo>>, MemberListError>,
    ) -> Result<Vec<RemoteChange>, MemberListError> {
        self.requested = self.requested.saturating_sub(1);
        let Some(followed) = self.channels.get_mut(&request.channel) else { return Ok(Vec::new()) };
        let ListState::Requested { number, again } = followed.state else { return Ok(Vec::new()) };
        if number != request.number {
            return Ok(Vec::new());
        }
        followed.state = match (&list, again) {
            (_, true) => ListState::Due,
            (Ok(_), false) => ListState::Current,
            (Err(_), false) => ListState::Failed,
        };
        if again {
            self.due.push_back(Arc::clone(&request.channel));
        }
        let was_known = std::mem::replace(&mut followed.is_known, true);
        match list {
            Ok(list) => {
                let changes = followed.merge(list);
                Ok(if was_known { changes } else { Vec::new() })
            }
            Err(MemberListError::TooLarge) if !was_known => {
                followed.is_known = false;
                Err(MemberListError::TooLarge)
            }
            Err(_) => Ok(Vec::new()),
        }
    }

    /// Announcements may have been lost: requests every list again.
    pub(crate) fn refresh(&mut self) {
        for (channel, followed) in &mut self.channels {
            match &mut followed.state {
                ListState::Due => {}
                ListState::Requested { again, .. } => *again = true,
                state @ (ListState::Current | ListState::Failed) => {
                    *state = ListState::Due;
                    self.due.push_back(Arc::clone(channel));
                }
            }
        }
    }

    /// Requests failed lists again, and ends to follow channels that nobody has needed for `idle_ms`.
    pub(crate) fn look(&mut self, now_ms: u64, idle_ms: u64, is_used: impl Fn(&str) -> bool) {
        let Self { channels, due, .. } = self;
        channels.retain(|channel, followed| {
            if !followed.waiting.is_empty() || is_used(channel) {
                followed.idle_since_ms = None;
            } else if now_ms - *followed.idle_since_ms.get_or_insert(now_ms) > idle_ms {
                return false;
            }
            if followed.state == ListState::Failed {
                followed.state = ListState::Due;
                due.push_back(Arc::clone(channel));
            }
            true
        });
    }

    /// Ends to follow a channel, or all of them. Returns the subscriptions that wait.
    pub(crate) fn end(&mut self, channel: Option<&str>) -> Vec<(u8, SubscribeRequest)> {
        match channel {
            Some(channel) => self.channels.remove(channel).map(|of| of.waiting).unwrap_or_default(),
            None => self.channels.drain().flat_map(|(_, of)| of.waiting).collect(),
        }
    }

    /// The members of a channel on other nodes.
    pub(crate) fn members(&self, channel: &str) -> impl Iterator<Item = Arc<ClientInfo>> {
        self.get(channel).into_iter().flat_map(|of| of.sessions.values().cloned())
    }

    /// The number of sessions of a user on other nodes.
    pub(crate) fn sessions_of(&self, channel: &str, user: &str) -> u32 {
        self.get(channel).and_then(|of| of.users.get(user)).copied().unwrap_or(0)
    }

    /// The users of a channel on other nodes.
    pub(crate) fn users<'a>(
        &'a self,
        channel: &str,
    ) -> impl Iterator<Item = &'a ArcStr> + Clone + use<'a> {
        self.get(channel).into_iter().flat_map(|of| of.users.keys())
    }
}

impl Followed {
    fn new(bytes_max: usize) -> Followed {
        Followed {
            sessions: HashMap::default(),
            users: HashMap::default(),
            state: ListState::Due,
            is_known: false,
            bytes_max,
            changed: HashSet::default(),
            waiting: Vec::new(),
            idle_since_ms: None,
        }
    }

    fn forget_waiting(&mut self, from: u8, member: Option<SessionId>) {
        self.waiting.retain(|(worker, asked)| {
            let of = asked.member.as_ref().map(|info| info.client);
            *worker != from || member.is_some_and(|member| of != Some(member))
        });
    }

    /// Adds or removes a session. Returns whether it was not so before.
    fn set(&mut self, info: &Arc<ClientInfo>, joined: bool) -> bool {
        if !joined {
            let Some(former) = self.sessions.remove(&info.client) else { return false };
            if let Entry::Occupied(mut sessions) = self.users.entry(former.user.clone()) {
                *sessions.get_mut() -= 1;
                if *sessions.get() == 0 {
                    sessions.remove();
                }
            }
            return true;
        }
        if self.sessions.contains_key(&info.client) {
            return false;
        }
        self.sessions.insert(info.client, Arc::clone(info));
        *self.users.entry(info.user.clone()).or_default() += 1;
        true
    }

    /// Takes a list, over which the announcements since its request prevail. Returns the changes.
    fn merge(&mut self, list: Vec<Arc<ClientInfo>>) -> Vec<RemoteChange> {
        let listed: HashSet<SessionId, RandomState> = list.iter().map(|info| info.client).collect();
        let changed = std::mem::take(&mut self.changed);
        let is_gone = |info: &&Arc<ClientInfo>| {
            !listed.contains(&info.client) && !changed.contains(&info.client)
        };
        let gone: Vec<_> = self.sessions.values().filter(is_gone).cloned().collect();
        let gone = gone.into_iter().map(|info| (info, false));
        let come = list.into_iter().filter(|info| !changed.contains(&info.client));
        let mut changes: Vec<_> = gone.chain(come.map(|info| (info, true))).collect();
        changes.retain(|(info, joined)| self.set(info, *joined));
        changes
    }
}
