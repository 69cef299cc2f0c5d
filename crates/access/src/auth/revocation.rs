//! Tokens that are refused although their signature is valid: revoked by id, revoked by user and time of issue, or barred for
//! a while after a disconnect.
//!
//! All workers share one table and check it for each client that presents a token. The admin thread writes revocations, also
//! to disk if there is a state directory ([`RevocationLog`]). Bars are kept in memory only, because they are short.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use dunlin_config::Token;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::TokenClaims;

/// The longest id or user, in bytes.
pub const NAME_BYTES_MAX: usize = 1_024;
/// The file in the state directory.
const FILE: &str = "revocations.jsonl";

/// A revocation, in the form that is stored on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Which tokens.
    #[serde(flatten)]
    pub of: Revoked,
    /// When it expires, in Unix seconds; 0: never.
    pub until_s: u64,
}

/// What is revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Revoked {
    /// The token with this `jti`.
    Jti(Box<str>),
    /// The user's tokens whose `iat` is before this Unix second or missing.
    User {
        /// The user.
        user: Box<str>,
        /// The Unix time in seconds.
        issued_before_s: u64,
    },
    /// All tokens of the user, including future ones: the user is blocked.
    Blocked(Box<str>),
}

impl Revocation {
    /// Revokes the token with this `jti` until a Unix time in seconds.
    pub fn of_token(jti: &str, until_s: u64) -> Revocation {
        Revocation { of: Revoked::Jti(jti.into()), until_s }
    }

    /// Revokes the tokens of a user that were issued before a Unix time in seconds.
    pub fn of_user(user: &str, issued_before_s: u64, until_s: u64) -> Revocation {
        Revocation { of: Revoked::User { user: user.into(), issued_before_s }, until_s }
    }

    /// Revokes all tokens of a user until a Unix time in seconds.
    pub fn block(user: &str, until_s: u64) -> Revocation {
        Revocation { of: Revoked::Blocked(user.into()), until_s }
    }

    fn name(&self) -> &str {
        match &self.of {
            Revoked::Jti(name) | Revoked::User { user: name, .. } | Revoked::Blocked(name) => name,
        }
    }

    fn is_over(&self, now_s: u64) -> bool {
        self.until_s != 0 && self.until_s <= now_s
    }

    /// Combines two revocations of the same token or user, so that the result refuses everything that either refuses.
    fn joined(mut self, other: &Revocation) -> Revocation {
        if let (
            Revoked::User { issued_before_s, .. },
            Revoked::User { issued_before_s: others_s, .. },
        ) = (&mut self.of, &other.of)
        {
            *issued_before_s = (*issued_before_s).max(*others_s);
        }
        self.until_s = match (self.until_s, other.until_s) {
            (0, _) | (_, 0) => 0,
            (own_s, others_s) => own_s.max(others_s),
        };
        self
    }
}

/// The id of a token: 64 bits of a SHA-256, the same on every node. To find a token with the id of another takes 2^64 tries, and
/// the key that signs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenId(pub u64);

impl TokenId {
    /// Used for a connection that a backend admitted without a token.
    pub const NONE: TokenId = TokenId(0);

    fn of_digest(digest: &[u8]) -> TokenId {
        let first = digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        TokenId(first.max(1))
    }
}

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRevoked {
    /// The token itself, or the tokens of its user until a time.
    Revoked,
    /// Refused for `left_s` more seconds.
    Barred {
        /// For how many more seconds.
        left_s: u64,
    },
}

/// Why adding a revocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationError {
    /// `client.token.revocations_max` is reached.
    Full,
    /// The id or the user is longer than [`NAME_BYTES_MAX`].
    TooLong,
    /// It is in force, but could not be written to disk and is lost at the next start.
    NotOnDisk,
}

/// The revocations and bars of the process.
#[derive(Default)]
pub struct Revocations {
    hashes: RandomState,
    /// Checked for every new client without taking the lock; `false` until the first revocation or bar.
    any: AtomicBool,
    table: RwLock<Table>,
    /// Bars of tokens that the other nodes of a cluster were not notified of.
    unsent: Mutex<Vec<(TokenId, u64)>>,
}

#[derive(Default)]
struct Table {
    tokens: HashMap<u64, Revocation>,
    users: HashMap<Box<str>, Revocation>,
    blocked: HashMap<Box<str>, Revocation>,
    /// Tokens and users that were disconnected, by their hashes.
    bars: HashMap<u64, Bar>,
}

/// How long a token is refused after a disconnect.
#[derive(Clone, Copy)]
struct Bar {
    /// Unix milliseconds.
    until_ms: u64,
    /// For a user's bar: it refuses tokens whose `iat` is before this Unix second.
    issued_before_s: u64,
}

impl Table {
    /// The number of revocations. Bars have a separate limit, so that they never prevent a revocation.
    fn revocations(&self) -> usize {
        self.tokens.len() + self.users.len() + self.blocked.len()
    }

    /// Removes expired entries.
    fn expire(&mut self, now_ms: u64) {
        self.tokens.retain(|_, of| !of.is_over(now_ms / 1000));
        self.users.retain(|_, of| !of.is_over(now_ms / 1000));
        self.blocked.retain(|_, of| !of.is_over(now_ms / 1000));
        self.bars.retain(|_, bar| bar.until_ms > now_ms);
    }
}

impl Revocations {
    /// Returns the id of a token: the hash of its `jti`, or of what is signed if it has no `jti`.
    pub fn id_of(&self, token: &TokenClaims) -> TokenId {
        match &token.jti {
            Some(jti) => self.id_of_jti(jti),
            None => TokenId::of_digest(&token.signed),
        }
    }

    /// Returns the id of the tokens with this `jti`.
    pub fn id_of_jti(&self, jti: &str) -> TokenId {
        TokenId::of_digest(digest(&SHA256, jti.as_bytes()).as_ref())
    }

    /// Whether a token is refused, and why. `issued_at_s` is its `iat`.
    pub fn refuses(
        &self,
        token: TokenId,
        user: &str,
        issued_at_s: Option<u64>,
        now_ms: u64,
    ) -> Option<TokenRevoked> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let table = self.read();
        let revoked = table.tokens.get(&token.0).is_some_and(|of| !of.is_over(now_ms / 1000))
            || table
                .users
                .get(user)
                .is_some_and(|of| !of.is_over(now_ms / 1000) && concerns(of, issued_at_s))
            || table.blocked.get(user).is_some_and(|of| !of.is_over(now_ms / 1000));
        if revoked {
            return Some(TokenRevoked::Revoked);
        }
        let of_user = table.bars.get(&self.user_bar(user));
        // A token without `iat` may have been issued after the disconnect.
        let of_user = of_user.filter(|bar| issued_at_s.is_some_and(|at| at < bar.issued_before_s));
        let bars = table.bars.get(&token.0).into_iter().chain(of_user);
        let until_ms = bars.map(|bar| bar.until_ms).max().filter(|until_ms| *until_ms > now_ms)?;
        Some(TokenRevoked::Barred { left_s: (until_ms - now_ms).div_ceil(1000) })
    }

    /// Adds a revocation; at most `max` are kept. Returns the one in force: an unexpired revocation of the same token or user is
    /// combined with it, so that adding one never admits a token that was refused before.
    ///
    /// # Errors
    /// The table is full, or the id or user is too long.
    pub fn add(
        &self,
        revocation: Revocation,
        now_ms: u64,
        max: usize,
    ) -> Result<Revocation, RevocationError> {
        if revocation.name().len() > NAME_BYTES_MAX {
            return Err(RevocationError::TooLong);
        }
        let mut table = self.write();
        if table.revocations() >= max {
            table.expire(now_ms);
        }
        let known = match &revocation.of {
            Revoked::Jti(jti) => table.tokens.get(&self.id_of_jti(jti).0),
            Revoked::User { user, .. } => table.users.get(user),
            Revoked::Blocked(user) => table.blocked.get(user),
        };
        if known.is_none() && table.revocations() >= max {
            return Err(RevocationError::Full);
        }
        self.any.store(true, Ordering::Release);
        let revocation = match known.filter(|of| !of.is_over(now_ms / 1000)) {
            Some(known) => revocation.joined(known),
            None => revocation,
        };
        match &revocation.of {
            Revoked::Jti(jti) => {
                table.tokens.insert(self.id_of_jti(jti).0, revocation.clone());
            }
            Revoked::User { user, .. } => {
                table.users.insert(user.clone(), revocation.clone());
            }
            Revoked::Blocked(user) => {
                table.blocked.insert(user.clone(), revocation.clone());
            }
        }
        Ok(revocation)
    }

    /// Unblocks a user. Returns whether the user was blocked.
    pub fn unblock(&self, user: &str) -> bool {
        self.write().blocked.remove(user).is_some()
    }

    /// Removes revocations of a token id and of a user's earlier tokens. Returns whether there was one.
    pub fn remove(&self, jti: Option<&str>, user: Option<&str>) -> bool {
        let mut table = self.write();
        let token = jti.and_then(|jti| table.tokens.remove(&self.id_of_jti(jti).0));
        token.is_some() | user.is_some_and(|user| table.users.remove(user).is_some())
    }

    /// Bars a token until `until_ms`. If `max` bars exist, it replaces an arbitrary one: no caller could act on an error.
    pub fn bar(&self, token: TokenId, until_ms: u64, now_ms: u64, max: usize) {
        self.insert_bar(token.0, Bar { until_ms, issued_before_s: 0 }, now_ms, max);
    }

    /// Remembers a bar for [`Revocations::take_unsent`], at most `max`.
    pub fn tell_others(&self, token: TokenId, until_ms: u64, max: usize) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        if unsent.len() < max {
            unsent.push((token, until_ms));
        }
    }

    /// Returns the bars that the other nodes are to be notified of.
    pub fn take_unsent(&self) -> Vec<(TokenId, u64)> {
        std::mem::take(&mut *self.unsent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bars the user's tokens that were issued before now, for `bar_after_disconnect_ms`. This also covers connections that are
    /// being opened and clients between two polls.
    pub fn bar_user(&self, user: &str, settings: &Token, now_ms: u64) {
        if user.is_empty() || settings.bar_after_disconnect_ms == 0 {
            return;
        }
        let until_ms = now_ms.saturating_add(settings.bar_after_disconnect_ms);
        let max = settings.revocations_max as usize;
        let bar = Bar { until_ms, issued_before_s: now_ms / 1000 };
        self.insert_bar(self.user_bar(user), bar, now_ms, max);
    }

    fn user_bar(&self, user: &str) -> u64 {
        self.hashes.hash_one((2_u8, user))
    }

    fn insert_bar(&self, key: u64, bar: Bar, now_ms: u64, max: usize) {
        let mut table = self.write();
        if table.bars.len() >= max {
            table.expire(now_ms);
        }
        if table.bars.len() >= max {
            let first = table.bars.keys().next().copied();
            if first.is_none_or(|first| table.bars.remove(&first).is_none()) {
                return;
            }
        }
        self.any.store(true, Ordering::Release);
        table.bars.insert(key, bar);
    }

    /// Returns the revocations that have not expired.
    pub fn list(&self, now_ms: u64) -> Vec<Revocation> {
        let table = self.read();
        let all = table.tokens.values().chain(table.users.values()).chain(table.blocked.values());
        all.filter(|of| !of.is_over(now_ms / 1000)).cloned().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a revocation applies to the user's tokens that were issued at this time.
pub fn concerns(revocation: &Revocation, issued_at_s: Option<u64>) -> bool {
    match revocation.of {
        Revoked::User { issued_before_s, .. } => issued_at_s.unwrap_or(0) < issued_before_s,
        Revoked::Blocked(_) => true,
        Revoked::Jti(_) => false,
    }
}

/// The revocations on disk: one JSON object per line, the newest last.
pub struct RevocationLog {
    path: PathBuf,
    file: File,
    lines: usize,
    /// The last write may have left an incomplete line, which an append would continue.
    is_torn: bool,
}

impl RevocationLog {
    /// Adds the revocations on disk to `into`, and rewrites the file without the expired ones. Lines that are malformed, after a
    /// crash for instance, or do not fit are counted in `report`.
    ///
    /// # Errors
    /// What the disk says.
    pub fn open(
        state_dir: &Path,
        into: &Revocations,
        now_ms: u64,
        max: usize,
        report: &mut Vec<String>,
    ) -> io::Result<RevocationLog> {
        let path = state_dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut lost = 0;
        for line in text.lines().filter(|line| !line.is_empty()) {
            match serde_json::from_str::<Revocation>(line) {
                Ok(of) if of.is_over(now_ms / 1000) => {}
                Ok(of) => lost += usize::from(into.add(of, now_ms, max).is_err()),
                Err(_) => lost += 1,
            }
        }
        if lost > 0 {
            let sentence = format!(
                "{} lines of {} could not be used: revoke those tokens again",
                lost,
                path.display()
            );
            tracing::warn!("{sentence}");
            report.push(sentence);
        }
        RevocationLog::write_all(path, &into.list(now_ms))
    }

    /// Appends a revocation, and returns once it is on disk.
    ///
    /// # Errors
    /// What the disk says.
    pub fn append(
        &mut self,
        revocation: &Revocation,
        all: &Revocations,
        now_ms: u64,
        max: usize,
    ) -> io::Result<()> {
        if self.is_torn || self.lines >= max.saturating_mul(2) {
            return self.rewrite(all, now_ms);
        }
        let line = serde_json::to_string(revocation)? + "\n";
        self.is_torn = true;
        self.file.write_all(line.as_bytes())?;
        self.file.sync_data()?;
        self.lines += 1;
        self.is_torn = false;
        Ok(())
    }

    /// Rewrites the file with all revocations.
    ///
    /// # Errors
    /// What the disk says.
    pub fn rewrite(&mut self, all: &Revocations, now_ms: u64) -> io::Result<()> {
        *self = RevocationLog::write_all(self.path.clone(), &all.list(now_ms))?;
        Ok(())
    }

    fn write_all(path: PathBuf, all: &[Revocation]) -> io::Result<RevocationLog> {
        let made = path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&made)?;
        let mut text = Vec::new();
        for revocation in all {
            serde_json::to_writer(&mut text, revocation)?;
            text.push(b'\n');
        }
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&made, &path)?;
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(RevocationLog { path, file, lines: all.len(), is_torn: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_700_000_000_000;
    const NOW_S: u64 = NOW_MS / 1000;

    #[test]
    fn a_token_is_refused_by_its_id_its_user_and_its_time() {
        let revocations = Revocations::default();
        let unnamed = TokenClaims { signed: [b'a'; 32], ..TokenClaims::default() };
        let [a, b, unnamed] =
            [revocations.id_of_jti("a"), revocations.id_of_jti("b"), revocations.id_of(&unnamed)];
        let refused = |token, user, iat| revocations.refuses(token, user, iat, NOW_MS).is_some();
        assert!(!refused(a, "ada", None));
        revocations.add(Revocation::of_token("a", 0), NOW_MS, 9).unwrap();
        assert!(
            refused(a, "ada", Some(NOW_S))
                && !refused(b, "ada", None)
                && !refused(unnamed, "ada", None)
        );

        revocations.add(Revocation::of_user("bob", NOW_S, NOW_S + 60), NOW_MS, 9).unwrap();
        revocations.add(Revocation::of_user("bob", NOW_S - 50, 0), NOW_MS, 9).unwrap();
        assert!(refused(b, "bob", Some(NOW_S - 1)) && refused(b, "bob", None));
        assert!(!refused(b, "bob", Some(NOW_S)) && !refused(b, "ada", None));
        let later = revocations.refuses(b, "bob", None, NOW_MS + 60_000);
        assert_eq!(later, Some(TokenRevoked::Revoked), "the second was for good");
        assert!(revocations.remove(Some("a"), None) && !revocations.remove(Some("a"), None));
        assert!(!refused(a, "ada", None));
    }

    /// Regression test: a second revocation with an earlier `issued_before_s` was ignored although it lasted longer, so the
    /// user's old tokens were admitted once the first had expired after three seconds.
    #[test]
    fn the_later_time_and_the_longer_end_of_two_revocations_hold_before_and_after_a_restart() {
        let of = |before_s, until_s| Revocation::of_user("bob", before_s, until_s);
        for (first, second, joined) in [
            (of(NOW_S, NOW_S + 3), of(NOW_S - 50, NOW_S + 10_000), of(NOW_S, NOW_S + 10_000)),
            (of(NOW_S - 50, 0), of(NOW_S, NOW_S + 3), of(NOW_S, 0)),
            (
                Revocation::of_token("a", 0),
                Revocation::of_token("a", NOW_S + 3),
                Revocation::of_token("a", 0),
            ),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let open = |into: &Revocations, now_ms| {
                RevocationLog::open(directory.path(), into, now_ms, 9, &mut Vec::new()).unwrap()
            };
            let revocations = Revocations::default();
            let mut log = open(&revocations, NOW_MS);
            for of in [first, second] {
                let in_force = revocations.add(of, NOW_MS, 9).unwrap();
                log.append(&in_force, &revocations, NOW_MS, 9).unwrap();
            }
            let later_ms = NOW_MS + 4_000;
            assert_eq!(revocations.list(later_ms), [joined]);
            let again = Revocations::default();
            drop(open(&again, later_ms));
            assert_eq!(again.list(later_ms), revocations.list(later_ms));
        }
    }

    /// Regression test: on a full disk half a line was written. The next append continued it, and both were lost at the next
    /// start.
    #[test]
    fn after_a_write_that_failed_the_next_one_begins_the_file_anew() {
        let directory = tempfile::tempdir().unwrap();
        let mut report = Vec::new();
        let revocations = Revocations::default();
        let mut log =
            RevocationLog::open(directory.path(), &revocations, NOW_MS, 9, &mut report).unwrap();
        log.file.write_all(br#"{"jti":"hal"#).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = std::mem::replace(&mut log.file, full);
        let [first, second] = ["a", "b"].map(|jti| Revocation::of_token(jti, 0));
        revocations.add(first.clone(), NOW_MS, 9).unwrap();
        assert!(log.append(&first, &revocations, NOW_MS, 9).is_err());
        log.file = file;
        revocations.add(second.clone(), NOW_MS, 9).unwrap();
        log.append(&second, &revocations, NOW_MS, 9).unwrap();

        let again = Revocations::default();
        drop(RevocationLog::open(directory.path(), &again, NOW_MS, 9, &mut report).unwrap());
        let mut listed = again.list(NOW_MS);
        listed.sort_by_key(|of| of.name().to_owned());
        assert_eq!((listed, report), (vec![first, second], Vec::new()));
    }

    #[test]
    fn a_blocked_user_is_refused_until_he_is_unblocked_and_what_was_revoked_before_stays_so() {
        let revocations = Revocations::default();
        let id = revocations.id_of(&TokenClaims::default());
        let refused = |iat, now_ms| revocations.refuses(id, "ada", iat, now_ms).is_some();
        revocations.add(Revocation::of_user("ada", NOW_S, 0), NOW_MS, 9).unwrap();
        revocations.add(Revocation::block("ada", NOW_S + 60), NOW_MS, 9).unwrap();
        assert!(refused(Some(NOW_S + 10), NOW_MS) && refused(None, NOW_MS));
        assert!(!refused(Some(NOW_S + 10), NOW_MS + 60_000), "it was for a minute");
        assert_eq!(revocations.list(NOW_MS).len(), 2);
        assert!(revocations.unblock("ada") && !revocations.unblock("ada"));
        assert!(!refused(Some(NOW_S + 10), NOW_MS) && refused(Some(NOW_S - 1), NOW_MS));
        let line = serde_json::to_string(&Revocation::block("ada", 0)).unwrap();
        assert_eq!(line, r#"{"blocked":"ada","until_s":0}"#);
    }

    #[test]
    fn a_bar_ends_and_memory_is_bounded() {
        let revocations = Revocations::default();
        let token = |n: u64| revocations.id_of_jti(&n.to_string());
        revocations.bar(token(0), NOW_MS + 1_500, NOW_MS, 9);
        let refusal = revocations.refuses(token(0), "", None, NOW_MS);
        assert_eq!(refusal, Some(TokenRevoked::Barred { left_s: 2 }));
        assert_eq!(revocations.refuses(token(0), "", None, NOW_MS + 1_500), None);

        let settings =
            Token { bar_after_disconnect_ms: 1_500, revocations_max: 9, ..Token::default() };
        revocations.bar_user("ada", &settings, NOW_MS);
        let refuses = |user, issued_at_s, now_ms| {
            revocations.refuses(token(7), user, issued_at_s, now_ms).is_some()
        };
        assert!(refuses("ada", Some(NOW_S - 1), NOW_MS) && !refuses("bob", Some(1), NOW_MS));
        assert!(!refuses("ada", Some(NOW_S), NOW_MS), "issued since");
        assert!(!refuses("ada", None, NOW_MS), "nobody knows when");
        assert!(!refuses("ada", Some(1), NOW_MS + 1_500));

        for n in 1..100 {
            revocations.bar(token(n), NOW_MS + 9_000, NOW_MS, 9);
        }
        assert_eq!(revocations.read().bars.len(), 9);
        assert!(revocations.refuses(token(99), "", None, NOW_MS).is_some(), "the newest holds");
        // Many bars do not prevent the revocation of a stolen token.
        for n in 0..9 {
            let revocation = Revocation::of_user(&n.to_string(), NOW_S, NOW_S + 10);
            revocations.add(revocation, NOW_MS, 9).unwrap();
        }
        let full = revocations.add(Revocation::of_token("x", 0), NOW_MS, 9);
        assert_eq!(full, Err(RevocationError::Full));
        revocations.add(Revocation::of_token("x", 0), NOW_MS + 10_000, 9).unwrap();
        let long = Revocation::of_token(&"x".repeat(NAME_BYTES_MAX + 1), 0);
        assert_eq!(revocations.add(long, NOW_MS, 9), Err(RevocationError::TooLong));
    }

    #[test]
    fn revocations_outlive_the_process_and_a_line_that_was_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let mut report = Vec::new();
        let mut begin = || {
            let revocations = Revocations::default();
            let log = RevocationLog::open(directory.path(), &revocations, NOW_MS, 9, &mut report)
                .unwrap();
            (revocations, log)
        };
        let (revocations, mut log) = begin();
        let kept = [Revocation::of_token("a", 0), Revocation::of_user("bob", NOW_S, NOW_S + 60)];
        for of in kept.iter().chain([&Revocation::of_token("over", NOW_S)]) {
            revocations.add(of.clone(), NOW_MS, 9).unwrap();
            log.append(of, &revocations, NOW_MS, 9).unwrap();
        }
        log.file.write_all(br#"{"jti":"cut"#).unwrap();
        let (revocations, log) = begin();
        let mut listed = revocations.list(NOW_MS);
        listed.sort_by_key(|of| of.until_s);
        assert_eq!(listed, kept);
        assert_eq!(log.lines, 2, "without what is over");
        drop(begin());
        assert_eq!(report.len(), 1, "{report:?}");
    }
}
