//! Users and their sessions on this worker.

use std::hash::BuildHasher;
use std::sync::Arc;

use arcstr::ArcStr;
use foldhash::fast::RandomState;
use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};

use crate::session::Session;
use crate::slots::{NONE, Slots};
use crate::tenant;
use crate::user_directory::UserDirectory;

/// Users by name. The sessions of a user form a linked list through the session records. Anonymous sessions are in no
/// list.
pub(crate) struct Users {
    records: Slots<User>,
    by_name: HashTable<u32>,
    hasher: RandomState,
    /// The number of sessions and distinct users of each tenant.
    tenants: HashMap<Box<str>, (u32, u32), RandomState>,
    /// The directory through which other workers find these users, and the number of this worker.
    directory: Option<(Arc<UserDirectory>, u8)>,
}

#[derive(Default)]
struct User {
    name: ArcStr,
    /// First session of the list.
    session: u32,
    /// The number of sessions in the list.
    sessions: u32,
}

const _: () = assert!(size_of::<User>() == 16);

impl Users {
    pub(crate) fn new(directory: Option<(Arc<UserDirectory>, u8)>) -> Self {
        let hasher = match &directory {
            Some((directory, worker)) => {
                directory.reset(*worker);
                directory.hasher().clone()
            }
            None => RandomState::default(),
        };
        let (records, by_name) = (Slots::new(0), HashTable::new());
        Self { records, by_name, hasher, tenants: HashMap::default(), directory }
    }

    /// Whether a worker may have sessions of the user `name`.
    pub(crate) fn may_be_on(&self, worker: u8, name: &str) -> bool {
        self.directory.as_ref().is_none_or(|(directory, _)| directory.may_have(worker, name))
    }

    pub(crate) fn len(&self) -> u32 {
        self.records.len()
    }

    /// The number of sessions and distinct users of a tenant here.
    pub(crate) fn of_tenant(&self, tenant: &str) -> (u32, u32) {
        self.tenants.get(tenant).copied().unwrap_or_default()
    }

    /// The name of a session's user.
    pub(crate) fn name(&self, user: u32) -> &str {
        if user == NONE { "" } else { &self.records[user].name }
    }

    /// The same, shared.
    pub(crate) fn shared_name(&self, user: u32) -> ArcStr {
        if user == NONE { ArcStr::new() } else { self.records[user].name.clone() }
    }

    /// Adds a session to the list of the user `name`.
    pub(crate) fn link(&mut self, sessions: &mut Slots<Session>, slot: u32, name: &str) {
        if name.is_empty() {
            return;
        }
        let Self { records, by_name, hasher, tenants, directory } = self;
        let hash = hasher.hash_one(name);
        let entry = by_name.entry(
            hash,
            |&user| &*records[user].name == name,
            |&user| hasher.hash_one(&*records[user].name),
        );
        let user = match entry {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let Ok(user) =
                    records.insert(User { name: name.into(), session: NONE, sessions: 0 }, NONE)
                else {
                    unreachable!("there are no more users than sessions")
                };
                entry.insert(user);
                if let Some((directory, worker)) = directory {
                    let hashes = || by_name.iter().map(|&at| hasher.hash_one(&*records[at].name));
                    directory.add(*worker, hash, by_name.len(), hashes);
                }
                user
            }
        };
        records[user].sessions += 1;
        let next = std::mem::replace(&mut records[user].session, slot);
        if let (Some(tenant), bare) = tenant::split(name) {
            let (sessions, users) = tenants.entry(tenant.into()).or_default();
            *sessions += 1;
            *users += u32::from(next == NONE && !bare.is_empty());
        }
        if next != NONE {
            sessions[next].user_prev = slot;
        }
        let session = &mut sessions[slot];
        (session.user, session.user_next, session.user_prev) = (user, next, NONE);
    }

    /// Removes a session from its user's list, and the user after the last session.
    pub(crate) fn unlink(&mut self, sessions: &mut Slots<Session>, slot: u32) {
        let session = &mut sessions[slot];
        let (next, prev) = (session.user_next, session.user_prev);
        let user = std::mem::replace(&mut session.user, NONE);
        if user == NONE {
            return;
        }
        self.records[user].sessions -= 1;
        if next != NONE {
            sessions[next].user_prev = prev;
        }
        if prev != NONE {
            sessions[prev].user_next = next;
        } else {
            self.records[user].session = next;
        }
        if let (Some(tenant), bare) = tenant::split(&self.records[user].name)
            && let Some((sessions, users)) = self.tenants.get_mut(tenant)
        {
            *sessions -= 1;
            *users -= u32::from(self.records[user].session == NONE && !bare.is_empty());
            if *sessions == 0 {
                self.tenants.remove(tenant);
            }
        }
        if self.records[user].session == NONE {
            let hash = self.hasher.hash_one(&*self.records[user].name);
            if let Ok(entry) = self.by_name.find_entry(hash, |&at| at == user) {
                entry.remove();
            }
            self.records.remove(user);
            if let Some((directory, worker)) = &self.directory {
                directory.remove(*worker, hash);
            }
        }
    }

    fn find(&self, name: &str) -> Option<&User> {
        let hash = self.hasher.hash_one(name);
        let user = self.by_name.find(hash, |&user| &*self.records[user].name == name);
        user.map(|&user| &self.records[user])
    }

    /// The number of sessions of a user.
    pub(crate) fn count(&self, name: &str) -> u32 {
        self.find(name).map_or(0, |user| user.sessions)
    }

    /// The slots of a user's sessions, latest first.
    pub(crate) fn sessions<'a>(
        &self,
        sessions: &'a Slots<Session>,
        name: &str,
    ) -> impl Iterator<Item = u32> + 'a {
        let first = self.find(name).map_or(NONE, |user| user.session);
        std::iter::successors((first != NONE).then_some(first), |&slot| {
            let next = sessions[slot].user_next;
            (next != NONE).then_some(next)
        })
    }
}
