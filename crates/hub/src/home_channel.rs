//! The home side of a channel: order, history, presence, and which workers listen.

use std::hash::BuildHasher;
use std::sync::Arc;

use arcstr::ArcStr;
use foldhash::fast::{FixedState, RandomState};
use hashbrown::{HashMap, HashTable};

use crate::channel_table::ChannelRecord;
use crate::history::Stream;
use crate::publication::{CLIENT_INFO_BYTES, ClientInfo};
use crate::session_id::SessionId;
use crate::worker_set::WorkerSet;

/// A channel at home on this worker. Exists while it has state.
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
    plain: PlainMembers,
    described: Option<Box<Described>>,
    /// Number of sessions of each user, counted from the first time it is needed.
    users: Option<Box<Users>>,
}

const _: () = assert!(size_of::<Members>() <= 48);

type Described = HashMap<SessionId, HomeMember, RandomState>;

type Users = HashMap<ArcStr, u32, RandomState>;

/// A session with only its user and no other information. Two words, because most are such and every client may be one.
struct PlainMember {
    /// The session, above one bit for each flag of [`HomeMember`] and its [`ClientInfo`].
    session: u64,
    user: ArcStr,
}

const _: () = assert!(size_of::<PlainMember>() == 16);

const PRESENCE: u64 = 1;
const JOIN_LEAVE: u64 = 2;
const NUMBER: u64 = 4;
const SESSION_SHIFT: u32 = 3;

impl PlainMember {
    /// Returns `None` if the member has more information.
    fn of(member: &HomeMember) -> Option<Self> {
        let HomeMember { info, presence, join_leave } = member;
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let flags = flag(*presence, PRESENCE)
            | flag(*join_leave, JOIN_LEAVE)
            | flag(info.user_is_number, NUMBER);
        let is_plain = info.conn_info.is_none() && info.chan_info.is_none();
        is_plain.then(|| Self {
            session: info.client.to_u64() << SESSION_SHIFT | flags,
            user: info.user.clone(),
        })
    }

    fn is(&self, flag: u64) -> bool {
        self.session & flag != 0
    }

    fn session(&self) -> SessionId {
        SessionId::from_u64(self.session >> SESSION_SHIFT).expect("made of a session")
    }

    fn hash(session: SessionId) -> u64 {
        // A fixed seed is safe: this process assigns the session ids, clients do not choose them.
        FixedState::with_seed(0).hash_one(session)
    }
}

impl From<&PlainMember> for HomeMember {
    fn from(member: &PlainMember) -> Self {
        let (user, client) = (member.user.clone(), member.session());
        let info = Arc::new(ClientInfo {
            user,
            user_is_number: member.is(NUMBER),
            client,
            foreign_client: None,
            conn_info: None,
            chan_info: None,
        });
        Self { info, presence: member.is(PRESENCE), join_leave: member.is(JOIN_LEAVE) }
    }
}

/// Members by session. A single member needs no table.
enum PlainMembers {
    One(PlainMember),
    Table(HashTable<PlainMember>),
}

impl Default for PlainMembers {
    fn default() -> Self {
        Self::Table(HashTable::new())
    }
}

impl PlainMembers {
    fn iter(&self) -> impl Iterator<Item = &PlainMember> {
        let (one, table) = match self {
            Self::One(member) => (Some(member), None),
            Self::Table(table) => (None, Some(table)),
        };
        one.into_iter().chain(table.into_iter().flatten())
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Table(table) if table.is_empty())
    }

    /// Adds a member that is not in the table.
    fn insert(&mut self, member: PlainMember) {
        if self.is_empty() {
            *self = Self::One(member);
            return;
        }
        let mut table = match std::mem::take(self) {
            Self::Table(table) => table,
            Self::One(first) => {
                let mut table = HashTable::with_capacity(2);
                let hash = PlainMember::hash(first.session());
                table.insert_unique(hash, first, |of| PlainMember::hash(of.session()));
                table
            }
        };
        let hash = PlainMember::hash(member.session());
        table.insert_unique(hash, member, |of| PlainMember::hash(of.session()));
        *self = Self::Table(table);
    }

    fn remove(&mut self, session: SessionId) -> Option<PlainMember> {
        let is_it = |member: &PlainMember| member.session() == session;
        match self {
            Self::Table(table) => {
                let entry = table.find_entry(PlainMember::hash(session), is_it).ok()?;
                Some(entry.remove().0)
            }
            Self::One(member) if is_it(member) => match std::mem::take(self) {
                Self::One(member) => Some(member),
                Self::Table(_) => None,
            },
            Self::One(_) => None,
        }
    }
}

impl Members {
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.described.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = HomeMember> {
        self.plain.iter().map(HomeMember::from).chain(self.described().cloned())
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let described = self.described().map(|member| member.info.client);
        self.plain.iter().map(PlainMember::session).chain(described)
    }

    /// Returns the users of sessions shown in presence, once for each session.
    pub(crate) fn present_users(&self) -> impl Iterator<Item = &ArcStr> {
        let plain = self.plain.iter().filter(|member| member.is(PRESENCE));
        let described = self.described().filter(|member| member.presence);
        plain.map(|member| &member.user).chain(described.map(|member| &member.info.user))
    }

    /// Whether a list of the sessions shown in presence would be longer than `bytes_max`. It builds nothing of the list, so a
    /// refusal costs less than an answer.
    pub(crate) fn exceed(&self, bytes_max: usize) -> bool {
        let plain = self.plain.iter().filter(|member| member.is(PRESENCE));
        let described = self.described().filter(|member| member.presence);
        let costs = plain
            .map(|member| CLIENT_INFO_BYTES + member.user.len())
            .chain(described.map(|member| member.info.cost()));
        let mut room = bytes_max;
        costs.into_iter().any(|cost| match room.checked_sub(cost) {
            Some(left) => {
                room = left;
                false
            }
            None => true,
        })
    }

    fn described(&self) -> impl Iterator<Item = &HomeMember> {
        self.described.iter().flat_map(|members| members.values())
    }

    /// Returns the users, if they are counted.
    pub(crate) fn users(&self) -> impl Iterator<Item = &ArcStr> {
        self.users.iter().flat_map(|users| users.keys())
    }

    /// Begins to count the sessions of each user.
    pub(crate) fn count_users(&mut self) {
        if self.users.is_none() {
            let mut users = Box::<Users>::default();
            let plain = self.plain.iter().map(|member| &member.user);
            for user in plain.chain(self.described().map(|member| &member.info.user)) {
                *users.entry(user.clone()).or_default() += 1;
            }
            self.users = Some(users);
        }
    }

    /// Whether there is a place for a session of this user among `users_max` users, of which these are on other nodes.
    pub(crate) fn has_place<'a>(
        &self,
        user: &str,
        users_max: u32,
        mut elsewhere: impl Iterator<Item = &'a ArcStr> + Clone,
    ) -> bool {
        let Some(users) = &self.users else { return true };
        let others = || elsewhere.clone().filter(|user| !users.contains_key(*user)).count();
        users.len() + others() < users_max as usize
            || users.contains_key(user)
            || elsewhere.any(|of| *of == *user)
    }

    /// Adds a session, or replaces its entry.
    pub(crate) fn insert(&mut self, member: HomeMember) {
        if let Some(users) = &mut self.users {
            *users.entry(member.info.user.clone()).or_default() += 1;
        }
        let session = member.info.client;
        self.remove(session);
        match PlainMember::of(&member) {
            Some(plain) => self.plain.insert(plain),
            None => drop(self.described.get_or_insert_default().insert(session, member)),
        }
    }

    /// Replaces the information of a session, if it is a member.
    pub(crate) fn describe(&mut self, info: &Arc<ClientInfo>) -> Option<HomeMember> {
        let member = HomeMember { info: Arc::clone(info), ..self.remove(info.client)? };
        self.insert(member.clone());
        Some(member)
    }

    /// Removes a session.
    pub(crate) fn remove(&mut self, session: SessionId) -> Option<HomeMember> {
        let member = match self.plain.remove(session) {
            Some(plain) => HomeMember::from(&plain),
            None => {
                let described = self.described.as_mut()?;
                let member = described.remove(&session)?;
                if described.is_empty() {
                    self.described = None;
                }
                member
            }
        };
        self.forget_user(&member.info.user);
        Some(member)
    }

    /// Returns the number of a user's sessions; `None` if they are not counted.
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

/// One of the members of a channel.
#[derive(Clone)]
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

    pub(crate) fn is_empty(&self) -> bool {
        self.interest.is_empty() && self.stream.is_none() && self.members.is_none()
    }
}

impl ChannelRecord for HomeChannel {
    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u64, user: &str, chan_info: Option<&str>) -> HomeMember {
        let client = SessionId::from_u64(number).expect("53 bits");
        let chan_info = chan_info.map(|info| info.as_bytes().into());
        let info = Arc::new(ClientInfo {
            user: user.into(),
            user_is_number: number.is_multiple_of(5),
            client,
            foreign_client: None,
            conn_info: None,
            chan_info,
        });
        HomeMember {
            info,
            presence: number.is_multiple_of(2),
            join_leave: number.is_multiple_of(3),
        }
    }

    /// Session, user, what is known of him, whether he is a number, presence, join and leave.
    type Listed = (u64, String, Option<Box<[u8]>>, bool, bool, bool);

    fn listed(members: &Members) -> Vec<Listed> {
        let mut listed: Vec<_> = members
            .iter()
            .map(|HomeMember { info, presence, join_leave }| {
                let (number, user) = (info.client.to_u64(), info.user.to_string());
                let is_number = info.user_is_number;
                (number, user, info.chan_info.clone(), is_number, presence, join_leave)
            })
            .collect();
        listed.sort();
        listed
    }

    #[test]
    fn members_are_found_whatever_is_known_of_them() {
        let mut members = Members::default();
        let widest = (1 << 53) - 1;
        members.insert(member(widest, "ada", None));
        assert_eq!(
            listed(&members),
            [(widest, "ada".into(), None, false, false, widest.is_multiple_of(3))]
        );
        assert_eq!(members.remove(SessionId::from_u64(7).unwrap()).map(|_| ()), None);
        members.insert(member(6, "", None));
        members.insert(member(4, "bob", Some("{}")));
        members.insert(member(3, "ada", None));
        let sessions = members.sessions().map(SessionId::to_u64);
        assert_eq!(sessions.collect::<std::collections::BTreeSet<_>>(), [3, 4, 6, widest].into());
        let mut users: Vec<&str> = members.present_users().map(|user| user.as_str()).collect();
        users.sort_unstable();
        assert_eq!(users, ["", "bob"]);

        members.insert(member(6, "eve", Some("1")));
        members.insert(member(4, "bob", None));
        let described = Some(b"1".as_slice().into());
        assert_eq!(
            listed(&members)[1..3],
            [
                (4, "bob".into(), None, false, true, false),
                (6, "eve".into(), described, false, true, true),
            ]
        );
        for number in [widest, 6, 4, 3] {
            assert!(!members.is_empty());
            let removed = members.remove(SessionId::from_u64(number).unwrap()).unwrap();
            assert_eq!(removed.info.client.to_u64(), number);
        }
        assert!(members.is_empty());
    }

    #[test]
    fn users_are_counted_from_when_they_are_asked_for() {
        let mut members = Members::default();
        members.insert(member(1, "ada", None));
        members.insert(member(2, "ada", Some("{}")));
        assert_eq!(members.sessions_of("ada"), None);
        members.count_users();
        members.insert(member(3, "bob", None));
        members.insert(member(3, "bob", None));
        assert_eq!((members.sessions_of("ada"), members.sessions_of("bob")), (Some(2), Some(1)));
        assert!(members.has_place("bob", 2, [].iter()) && !members.has_place("eve", 2, [].iter()));
        members.remove(SessionId::from_u64(3).unwrap());
        assert!(members.has_place("eve", 2, [].iter()));
        let [bob, eve] = ["bob", "eve"].map(ArcStr::from);
        // "ada" is here; others are on other nodes.
        assert!(!members.has_place("dan", 2, [bob.clone()].iter()));
        assert!(members.has_place("dan", 3, [bob.clone()].iter()));
        assert!(members.has_place("eve", 3, [bob, eve].iter()), "she has her place already");
        assert_eq!(members.sessions_of("bob"), Some(0));
    }
}
