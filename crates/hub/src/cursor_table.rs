//! Cursors of channels in memory, divided among the users whose they are.
//!
//! A user's records in a namespace are one account. Whoever needs room in a full namespace takes it from the largest account
//! if that holds more than he will, and otherwise from his own records: those that have been still for longest go first. So
//! whoever holds less than the others is neither refused nor taken from, whatever the others do. A namespace of a tenant is
//! the tenant's own.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::cursor::UserCursors;
use crate::error::Error;
use crate::list::{Linked, Links, List};
use crate::options::AckOptions;
use crate::ranking::{Places, Ranking};
use crate::slots::{NONE, Slots};

/// Parts of an index, which grow one at a time, and steps in which the table is swept.
const PARTS: usize = 64;
const SWEEP_MS: u64 = 1_000;
/// Bytes of a record in memory beside its name and its cursors: entry, index, header of the allocator.
const RECORD_BYTES: usize = 54;
/// Bytes of an account: itself, index, place in the ranking.
const ACCOUNT_BYTES: usize = 38;
/// Records that make room for one, at most: a bound that was lowered is reached after some calls.
const EVICTIONS_MAX: u64 = 1024;
/// Between channel and user in the name of a record. No name from outside has control characters.
const SEPARATOR: u8 = 2;

/// The name of a user's record of a channel. No channel has such a name.
pub(crate) fn record_name(channel: &str, user: &str) -> Arc<str> {
    format!("{channel}{}{user}", char::from(SEPARATOR)).into()
}

fn user_of(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|&byte| byte == SEPARATOR).map_or(name.len(), |at| at + 1);
    &name[end..]
}

/// Records of channels in memory.
pub(crate) struct CursorTable {
    records: Slots<Record>,
    by_name: Index,
    accounts: Slots<Account>,
    /// By namespace and user.
    by_user: Index,
    /// By namespace: its accounts by size.
    namespaces: Vec<(u32, Namespace)>,
    hasher: RandomState,
    next_sweep: u32,
    next_sweep_ms: u64,
}

/// Numbers of records or accounts by hash.
#[derive(Default)]
struct Index(Vec<HashTable<u32>>);

#[derive(Default)]
struct Record {
    /// The name, then the cursors.
    bytes: Box<[u8]>,
    name_bytes: u32,
    expires_s: u32,
    account: u32,
    /// In the list of its account.
    links: Links,
}

/// What one user has in one namespace.
#[derive(Default)]
struct Account {
    namespace: u32,
    bytes: u32,
    /// Place in the ranking of its namespace.
    place: u32,
    /// Still for longest first.
    records: List,
}

#[derive(Default)]
struct Namespace {
    bytes: usize,
    ranking: Ranking<u32>,
}

impl Index {
    fn part(&mut self, hash: u64) -> &mut HashTable<u32> {
        if self.0.is_empty() {
            self.0.resize_with(PARTS, HashTable::new);
        }
        // The upper bits choose a place within the part.
        &mut self.0[hash as usize % PARTS]
    }

    fn find(&self, hash: u64, is_it: impl FnMut(&u32) -> bool) -> Option<u32> {
        let part = self.0.get(hash as usize % PARTS)?;
        part.find(hash.rotate_right(6), is_it).copied()
    }

    fn insert(&mut self, hash: u64, at: u32, hash_of: impl Fn(u32) -> u64) {
        let part = self.part(hash);
        part.insert_unique(hash.rotate_right(6), at, |&at| hash_of(at).rotate_right(6));
    }

    fn remove(&mut self, hash: u64, at: u32, hash_of: impl Fn(u32) -> u64) {
        let part = self.part(hash);
        if let Ok(entry) = part.find_entry(hash.rotate_right(6), |&other| other == at) {
            entry.remove();
        }
        if part.capacity() > 4 * part.len() + 16 {
            part.shrink_to(2 * part.len(), |&at| hash_of(at).rotate_right(6));
        }
    }
}

struct RecordLinks<'a>(&'a mut Slots<Record>);

impl Linked for RecordLinks<'_> {
    fn links(&mut self, at: u32) -> &mut Links {
        &mut self.0[at].links
    }
}

struct AccountPlaces<'a>(&'a mut Slots<Account>);

impl Places for AccountPlaces<'_> {
    fn place(&mut self, of: u32) -> &mut u32 {
        &mut self.0[of].place
    }
}

impl Default for CursorTable {
    fn default() -> Self {
        Self {
            records: Slots::new(0),
            by_name: Index::default(),
            accounts: Slots::new(0),
            by_user: Index::default(),
            namespaces: Vec::new(),
            hasher: RandomState::default(),
            next_sweep: 0,
            next_sweep_ms: 0,
        }
    }
}

impl CursorTable {
    fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name.as_bytes());
        self.by_name.find(hash, |&at| self.records[at].name() == name.as_bytes())
    }

    fn account(&self, namespace: u32, user: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one((namespace, user));
        self.by_user.find(hash, |&at| {
            let account = &self.accounts[at];
            account.namespace == namespace && user_of_account(&self.records, account) == user
        })
    }

    pub(crate) fn get(&self, name: &str) -> UserCursors {
        let record = self.find(name).map(|at| &self.records[at]);
        record.and_then(|record| UserCursors::decode(record.cursors())).unwrap_or_default()
    }

    /// Stores a record. Returns how many others made room for it.
    ///
    /// # Errors
    /// The namespace has no room for it, because its user holds more there than anybody else. What was there stays.
    pub(crate) fn set(
        &mut self,
        (name, namespace): (&str, u32),
        cursors: &UserCursors,
        (now_s, options): (u32, &AckOptions),
        bytes_max: usize,
    ) -> Result<u64, Error> {
        let cursors = cursors.encode();
        let ttl_s = u32::try_from(options.ttl_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
        let expires_s = now_s.saturating_add(ttl_s);
        let mut known = self.find(name);
        // The namespace's settings may have begun after the record.
        if let Some(at) =
            known.filter(|&at| self.accounts[self.records[at].account].namespace != namespace)
        {
            self.remove(at);
            known = None;
        }
        let before = known.map_or(0, |at| self.records[at].cost());
        let after = RECORD_BYTES + name.len() + cursors.len();
        let evicted = match after > before {
            true => self.make_room((name, namespace), known, after - before, bytes_max)?,
            false => 0,
        };
        let at = known.unwrap_or_else(|| self.insert(name, namespace));
        let record = &mut self.records[at];
        record.expires_s = expires_s;
        match record.bytes.get_mut(name.len()..) {
            Some(there) if there.len() == cursors.len() => there.copy_from_slice(&cursors),
            _ => record.bytes = [name.as_bytes(), &cursors].concat().into(),
        }
        let account = record.account;
        let list = &mut self.accounts[account].records;
        list.remove(at, &mut RecordLinks(&mut self.records));
        list.push(at, &mut RecordLinks(&mut self.records));
        self.charge(account, after as isize - before as isize);
        Ok(evicted)
    }

    /// Makes room for so many bytes more of a record, which may be there already. Returns how many others have gone.
    fn make_room(
        &mut self,
        (name, namespace): (&str, u32),
        record: Option<u32>,
        wanted: usize,
        bytes_max: usize,
    ) -> Result<u64, Error> {
        let mut evicted = 0;
        let user = user_of(name.as_bytes());
        let mut own = self.account(namespace, user);
        let will_hold =
            wanted + own.map_or(ACCOUNT_BYTES, |account| self.accounts[account].bytes as usize);
        loop {
            let added = wanted + own.map_or(ACCOUNT_BYTES, |_| 0);
            let of = self.namespaces.iter().find(|(of, _)| *of == namespace);
            if of.map_or(0, |(_, of)| of.bytes) + added <= bytes_max {
                return Ok(evicted);
            }
            let largest = of.and_then(|(_, of)| of.ranking.first());
            let victim = match (largest.filter(|&(bytes, _)| bytes as usize > will_hold), own) {
                (Some((_, account)), _) => self.accounts[account].records.first(),
                (None, Some(own)) => {
                    let list = &self.accounts[own].records;
                    let oldest = list.first_some(2, &mut RecordLinks(&mut self.records));
                    oldest.into_iter().find(|&at| Some(at) != record)
                }
                (None, None) => None,
            };
            let victim = victim.filter(|_| evicted < EVICTIONS_MAX);
            self.remove(victim.ok_or(Error::CursorsFull)?);
            evicted += 1;
            own = self.account(namespace, user);
        }
    }

    /// Adds an empty record, which costs nothing yet.
    fn insert(&mut self, name: &str, namespace: u32) -> u32 {
        let account = self.account(namespace, user_of(name.as_bytes()));
        let is_new = account.is_none();
        let account = account.unwrap_or_else(|| {
            let new = Account { namespace, place: NONE, ..Account::default() };
            self.accounts.insert(new, NONE).unwrap_or(NONE)
        });
        let bytes = name.as_bytes().into();
        let record = Record { bytes, name_bytes: name.len() as u32, account, ..Record::default() };
        let at = self.records.insert(record, NONE).unwrap_or(NONE);
        self.accounts[account].records.push(at, &mut RecordLinks(&mut self.records));
        let Self { records, accounts, hasher, .. } = self;
        let name_of = |at: u32| hasher.hash_one(records[at].name());
        self.by_name.insert(name_of(at), at, name_of);
        if is_new {
            let user_of = |at: u32| hash_of_account(hasher, records, &accounts[at]);
            self.by_user.insert(user_of(account), account, user_of);
            self.charge(account, ACCOUNT_BYTES as isize);
        }
        at
    }

    fn remove(&mut self, at: u32) {
        let (account, cost) = (self.records[at].account, self.records[at].cost());
        let Self { records, accounts, hasher, by_name, by_user, .. } = self;
        let name_of = |at: u32| hasher.hash_one(records[at].name());
        by_name.remove(name_of(at), at, name_of);
        let is_last = accounts[account].records.len() == 1;
        if is_last {
            let user_of = |at: u32| hash_of_account(hasher, records, &accounts[at]);
            by_user.remove(user_of(account), account, user_of);
        }
        self.charge(account, -(cost as isize));
        self.accounts[account].records.remove(at, &mut RecordLinks(&mut self.records));
        self.records.remove(at);
        if is_last {
            self.charge(account, -(ACCOUNT_BYTES as isize));
            let namespace = self.accounts[account].namespace;
            if let Some((_, of)) = self.namespaces.iter_mut().find(|(of, _)| *of == namespace) {
                of.ranking.remove(account, &mut AccountPlaces(&mut self.accounts));
            }
            self.accounts.remove(account);
        }
    }

    /// Changes what an account holds.
    fn charge(&mut self, account: u32, by: isize) {
        let of = &mut self.accounts[account];
        let namespace = of.namespace;
        of.bytes = (of.bytes as usize).saturating_add_signed(by).try_into().unwrap_or(u32::MAX);
        let bytes = of.bytes;
        let at = self.namespaces.iter().position(|(of, _)| *of == namespace);
        let at = at.unwrap_or_else(|| {
            self.namespaces.push((namespace, Namespace::default()));
            self.namespaces.len() - 1
        });
        let of = &mut self.namespaces[at].1;
        of.bytes = of.bytes.saturating_add_signed(by);
        of.ranking.set(account, bytes, &mut AccountPlaces(&mut self.accounts));
    }

    /// Removes what has expired from a part of the table, once a second. Returns how many records went.
    pub(crate) fn sweep(&mut self, now_ms: u64, now_s: u32) -> u64 {
        let all = self.records.indices().end;
        if now_ms < self.next_sweep_ms || all == 0 {
            return 0;
        }
        self.next_sweep_ms = now_ms + SWEEP_MS;
        let mut gone = 0;
        for _ in 0..all.div_ceil(PARTS as u32) {
            let at = self.next_sweep % all;
            self.next_sweep = at + 1;
            let record = &self.records[at];
            if record.name_bytes > 0 && record.expires_s <= now_s {
                self.remove(at);
                gone += 1;
            }
        }
        gone
    }

    /// Records of users.
    pub(crate) fn len(&self) -> u64 {
        self.records.len().into()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.namespaces.iter().map(|(_, of)| of.bytes).sum()
    }
}

impl Record {
    fn name(&self) -> &[u8] {
        &self.bytes[..self.name_bytes as usize]
    }

    fn cursors(&self) -> &[u8] {
        &self.bytes[self.name_bytes as usize..]
    }

    /// What it costs; nothing before it has cursors.
    fn cost(&self) -> usize {
        match self.cursors().len() {
            0 => 0,
            _ => RECORD_BYTES + self.bytes.len(),
        }
    }
}

/// The user of an account, which has a record.
fn user_of_account<'a>(records: &'a Slots<Record>, account: &Account) -> &'a [u8] {
    account.records.first().map_or(&[], |at| user_of(records[at].name()))
}

fn hash_of_account(hasher: &RandomState, records: &Slots<Record>, account: &Account) -> u64 {
    hasher.hash_one((account.namespace, user_of_account(records, account)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::cursor::tests::{cursors_at, options};

    fn set(
        table: &mut CursorTable,
        (name, namespace): (&str, u32),
        max: usize,
    ) -> Result<u64, Error> {
        table.set((name, namespace), &cursors_at(5), (100, &options()), max)
    }

    fn name(channel: usize, user: usize) -> String {
        record_name(&format!("inbox:{channel:04}"), &format!("user{user:04}")).to_string()
    }

    /// What a user holds.
    fn held(table: &CursorTable, namespace: u32, user: usize) -> usize {
        let account = table.account(namespace, format!("user{user:04}").as_bytes());
        account.map_or(0, |at| table.accounts[at].bytes as usize)
    }

    #[test]
    fn table_is_bounded_by_namespace_and_forgets_what_has_expired() {
        let mut table = CursorTable::default();
        for user in 0..3 {
            assert_eq!(set(&mut table, (&name(0, user), 1), 450), Ok(0), "{user}");
        }
        assert_eq!(set(&mut table, (&name(0, 3), 1), 450), Err(Error::CursorsFull));
        assert_eq!(set(&mut table, (&name(0, 0), 1), 450), Ok(0), "it may move");
        assert_eq!(set(&mut table, (&name(0, 3), 2), 450), Ok(0));
        assert_eq!(table.len(), 4);
        let gone: u64 = (1..=PARTS as u64).map(|at| table.sweep(at * SWEEP_MS, 161)).sum();
        assert_eq!((gone, table.len(), table.bytes()), (4, 0, 0));
    }

    #[test]
    fn user_with_cursors_in_ever_new_channels_gives_up_its_own_and_everybody_else_finds_room() {
        let mut table = CursorTable::default();
        const MAX: usize = 20_000;
        let mut evicted = 0;
        for channel in 0..1_000 {
            let stored = set(&mut table, (&name(channel, 0), 1), MAX);
            evicted += stored.expect("its own make room");
        }
        assert!(evicted > 700 && table.bytes() <= MAX);
        for user in 1..100 {
            let stored = set(&mut table, (&name(0, user), 1), MAX);
            assert!(stored.is_ok(), "{user}");
            set(&mut table, (&name(user, 0), 1), MAX).expect("its own make room");
        }
        for user in 1..100 {
            assert!(!table.get(&name(0, user)).is_empty(), "{user} was taken from");
        }
        assert_eq!(table.get(&name(99, 0)), cursors_at(5), "the newest are there");
        assert!(table.get(&name(998, 0)).is_empty(), "the oldest are gone");
    }

    #[test]
    fn what_an_entry_is_said_to_cost_is_what_it_costs() {
        // Index: four bytes and a control byte, at seven eighths.
        let index = 5 * 8 / 7 + 1;
        let record = size_of::<Record>() + index + 8;
        assert!(record <= RECORD_BYTES, "{record}");
        let account = size_of::<Account>() + index + size_of::<(u32, u32)>();
        assert!(account <= ACCOUNT_BYTES, "{account}");
    }

    proptest! {
        /// Nobody is refused while somebody holds more than he would, and nobody who holds less is taken from. All figures are the sums.
        #[test]
        fn user_below_the_largest_is_neither_refused_nor_taken_from(
            steps in proptest::collection::vec((0..40usize, 0..8usize, 0..2u32), 1..400),
            max in 200..3_000usize,
        ) {
            let mut table = CursorTable::default();
            for (channel, user, namespace) in steps {
                // A channel is of one namespace.
                let (channel, of) = (channel * 2 + namespace as usize, namespace);
                let before: BTreeMap<usize, usize> = (0..8).map(|user| (user, held(&table, of, user))).collect();
                let was_there = table.find(&name(channel, user)).is_some();
                let stored = set(&mut table, (&name(channel, user), of), max);
                let after: BTreeMap<usize, usize> = (0..8).map(|user| (user, held(&table, of, user))).collect();
                let cost = RECORD_BYTES + name(channel, user).len() + cursors_at(5).encode().len();
                let wanted = match before[&user] {
                    0 => cost + ACCOUNT_BYTES,
                    held if was_there => held,
                    held => held + cost,
                };
                let largest = *after.values().max().expect("eight users");
                prop_assert!(stored.is_ok() || wanted >= largest, "{wanted} of {before:?}, {after:?}");
                prop_assert!(stored.is_ok() || before[&user] == 0, "who holds something gives it up");
                for other in (0..8).filter(|&other| other != user && after[&other] < before[&other]) {
                    prop_assert!(before[&other] > wanted, "{other} for {user}: {before:?}");
                }
                prop_assert!(held(&table, of, user) > 0 || stored.is_err());
                let bytes: usize = table.namespaces.iter().map(|(_, of)| of.bytes).sum();
                let accounts: usize = (0..2).flat_map(|of| (0..8).map(move |user| (of, user)))
                    .map(|(of, user)| held(&table, of, user)).sum();
                let records: usize = table.records.indices().map(|at| table.records[at].cost()).sum();
                let open = (0..2).flat_map(|of| (0..8).map(move |user| (of, user)))
                    .filter(|&(of, user)| held(&table, of, user) > 0).count();
                prop_assert_eq!((bytes, accounts), (accounts, records + open * ACCOUNT_BYTES));
                for (_, of) in &table.namespaces {
                    prop_assert!(of.bytes <= max);
                }
            }
        }
    }
}
