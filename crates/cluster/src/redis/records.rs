//! Records in Redis, under the keys and in the encodings that they had before there was [`Records`]: nodes of earlier versions read
//! and write them, too.
//!
//! A kept call is a field of a hash, without its name; the key of budgets is a string; the head of the log of settings is four
//! fields of a hash whose other fields are the changes, and the claim to append is a key that expires. A record has no number of
//! its own: the script that writes compares the SHA-1 of its value. Calls are kept only over the connection that the lease was
//! written on last.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::link::{Commands, RedisReply};
use super::{RedisStore, malformed};
use crate::records::settings_log::{Claim, LogHead, parts, read_part};
use crate::records::{
    Group, Key, RecordPut, RecordRead, RecordVersion, Records, VERSION, budgets_key, kept,
};
use crate::store::{Destination, StoreError, StoreFuture};

/// KEYS: the hash or string, links. ARGV: uid, connection (empty: any may write), field (empty: the key is a string), the SHA-1 of
/// the value (empty: there is none), what to do, the new value. Returns whether the value was that.
const WRITE: &str = r"
if ARGV[2] ~= '' and redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then
  return redis.error_reply('FENCED calls are kept by another connection')
end
local kind, place = 'H', {KEYS[1], ARGV[3]}
if ARGV[3] == '' then kind, place = '', {KEYS[1]} end
local found = redis.call(kind .. 'GET', unpack(place))
if (found and redis.sha1hex(found) or '') ~= ARGV[4] then return 0 end
if ARGV[5] == 'put' then
  table.insert(place, ARGV[6])
  redis.call(kind .. 'SET', unpack(place))
else
  redis.call(kind .. 'DEL', unpack(place))
end
return 1
";

/// KEYS: log, claim. ARGV: the expected head as [`state_of`] has it, then the new one: id, revision, since, bytes, the holder of
/// the claim (empty: nobody) and for how many milliseconds. The claim and the position change in one step, because nodes of
/// earlier versions rely on that.
const WRITE_HEAD: &str = r"
local head = redis.call('HMGET', KEYS[1], 'id', 'revision', 'since', 'bytes')
for at = 1, 4 do head[at] = head[at] or '0' end
head[5] = redis.call('GET', KEYS[2]) or ''
if table.concat(head, ' ') ~= ARGV[1] then return 0 end
if ARGV[2] ~= '0' then
  redis.call('HSET', KEYS[1], 'id', ARGV[2], 'revision', ARGV[3], 'since', ARGV[4], 'bytes', ARGV[5])
end
if ARGV[6] == '' then redis.call('DEL', KEYS[2]) else redis.call('SET', KEYS[2], ARGV[6], 'PX', ARGV[7]) end
return 1
";

const KEPT: &str = "revocations";
const BUDGETS: &str = "budgets";
const LOG: &str = "settings";
const CLAIM: &str = "settings:claim";
/// The state of a head that is not there.
const NO_HEAD: &str = "0 0 0 0 ";
/// The most records in one step.
const RECORDS_A_STEP: usize = 256;
/// The largest value, in bytes: that of a string.
const VALUE_BYTES_MAX: usize = 512 << 20;

/// The key of a record, and its field if that is a hash.
fn place(key: &Key) -> (&'static str, String) {
    match key {
        Key::Kept(name) => (KEPT, name.to_string()),
        Key::Budgets => (BUDGETS, String::new()),
        Key::LogHead => (LOG, "revision".to_owned()),
        Key::LogChange(revision, _) => (LOG, revision.to_string()),
    }
}

/// A value as Redis has it.
fn to_redis(key: &Key, value: &[u8]) -> Option<Vec<u8>> {
    match key {
        Key::Kept(_) => kept::decode(value).map(|(_, call)| call),
        Key::Budgets => {
            let key = u128::from_be_bytes(budgets_key::decode(value)?);
            Some(format!("1 {key:032x}").into_bytes())
        }
        Key::LogHead => None,
        Key::LogChange(..) => read_part(value).map(|(_, _, sealed)| sealed.to_vec()),
    }
}

/// A value of Redis as a record has it. What another program wrote stays as it is.
fn from_redis(key: &Key, value: &[u8]) -> Vec<u8> {
    let read = match key {
        Key::Kept(name) => kept::encode(name, value),
        Key::Budgets => {
            let key = str::from_utf8(value).ok().and_then(|text| text.strip_prefix("1 "));
            let key = key.and_then(|key| u128::from_str_radix(key, 16).ok());
            key.map(|key| budgets_key::encode(key.to_be_bytes()))
        }
        Key::LogHead => None,
        Key::LogChange(..) => parts(value, VALUE_BYTES_MAX).and_then(|mut parts| parts.pop()),
    };
    read.unwrap_or_else(|| value.to_vec())
}

fn sha1(value: &[u8]) -> Box<str> {
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, value);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

fn record_read(key: Key, value: &[u8]) -> RecordRead {
    let read = from_redis(&key, value);
    RecordRead { version: RecordVersion::Value(key, sha1(value)), value: read, age_ms: 0 }
}

/// The state of the head: its fields, and the holder of the claim.
fn state_of(LogHead { id, revision, since, bytes, claim, .. }: &LogHead) -> Box<str> {
    let holder = claim.as_ref().map_or("", |claim| &*claim.uid);
    format!("{id} {revision} {since} {bytes} {holder}").into()
}

/// Reads the head from the replies to `HMGET`, `GET` and `PTTL`.
fn head(fields: &RedisReply, holder: &RedisReply, left_ms: &RedisReply) -> Option<RecordRead> {
    let number = |at: usize| match fields.list().get(at)? {
        RedisReply::Null => Some(0),
        field => field.text()?.parse().ok(),
    };
    let (id, revision, since, bytes) = (number(0)?, number(1)?, number(2)?, number(3)?);
    let hold_ms = left_ms.integer().map_or(1, |ms| ms.max(1).unsigned_abs());
    let claim = holder.text().map(|uid| Claim { uid: uid.into(), hold_ms });
    if id == 0 && claim.is_none() {
        return None;
    }
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let head = LogHead { v: VERSION, id, revision, since, bytes, claim };
    let version = RecordVersion::Value(Key::LogHead, state_of(&head));
    Some(RecordRead { version, value: head.encode(), age_ms: 0 })
}

impl RedisStore {
    async fn read_records(&self, keys: &[Key]) -> Result<Vec<Option<RecordRead>>, StoreError> {
        let mut found = Vec::with_capacity(keys.len());
        for step in keys.chunks(RECORDS_A_STEP) {
            let mut commands = Commands::default();
            for key in step {
                let (name, field) = place(key);
                let name = self.key(name);
                match key {
                    Key::LogHead => {
                        let claim = self.key(CLAIM);
                        let fields: [&[u8]; 4] = [b"id", b"revision", b"since", b"bytes"];
                        let [id, revision, since, bytes] = fields;
                        let log = name.as_bytes();
                        commands.push(&[b"HMGET", log, id, revision, since, bytes]);
                        commands.push(&[b"GET", claim.as_bytes()]);
                        commands.push(&[b"PTTL", claim.as_bytes()]);
                    }
                    Key::Budgets => _ = commands.push(&[b"GET", name.as_bytes()]),
                    _ => _ = commands.push(&[b"HGET", name.as_bytes(), field.as_bytes()]),
                }
            }
            let mut replies = self.link.send(commands).await?.into_iter();
            for key in step {
                let mut next = || replies.next().unwrap_or(RedisReply::Null);
                found.push(match key {
                    Key::LogHead => head(&next(), &next(), &next()),
                    // Redis has no parts.
                    Key::LogChange(_, 1..) => None,
                    key => next().bytes().map(|value| record_read(key.clone(), value)),
                });
            }
        }
        Ok(found)
    }

    /// Adds the command that replaces a record in this state, or with `None` removes it.
    fn push_write(
        &self,
        commands: &mut Commands,
        (key, expected): (&Key, &str),
        value: Option<&[u8]>,
    ) {
        let (name, field) = place(key);
        // A removal names what it removes, so a late one removes nothing else.
        let is_fenced = matches!(key, Key::Kept(_)) && value.is_some();
        let number = if is_fenced { self.link.number.to_string() } else { String::new() };
        commands.push(&[
            b"EVAL",
            WRITE.as_bytes(),
            b"2",
            self.key(name).as_bytes(),
            self.links_key().as_bytes(),
            self.uid.as_bytes(),
            number.as_bytes(),
            field.as_bytes(),
            expected.as_bytes(),
            if value.is_some() { b"put" } else { b"remove" },
            value.unwrap_or_default(),
        ]);
    }

    /// Adds the command that replaces the head in this state.
    fn push_head(&self, commands: &mut Commands, expected: &str, head: &LogHead) {
        let numbers = [head.id, head.revision, head.since, head.bytes as u64];
        let [id, revision, since, bytes] = numbers.map(|number| number.to_string());
        let (holder, hold_ms) = match &head.claim {
            Some(Claim { uid, hold_ms }) => (&**uid, (*hold_ms).max(1).to_string()),
            None => ("", String::new()),
        };
        commands.push(&[
            b"EVAL",
            WRITE_HEAD.as_bytes(),
            b"2",
            self.key(LOG).as_bytes(),
            self.key(CLAIM).as_bytes(),
            expected.as_bytes(),
            id.as_bytes(),
            revision.as_bytes(),
            since.as_bytes(),
            bytes.as_bytes(),
            holder.as_bytes(),
            hold_ms.as_bytes(),
        ]);
    }

    async fn put_records(
        &self,
        puts: &[RecordPut],
    ) -> Result<Vec<Option<RecordVersion>>, StoreError> {
        let mut written = Vec::with_capacity(puts.len());
        for step in puts.chunks(RECORDS_A_STEP) {
            let (mut commands, mut versions) = (Commands::default(), Vec::new());
            for RecordPut { key, after, value } in step {
                let expected = match after {
                    Some(RecordVersion::Value(_, expected)) => expected,
                    _ => "",
                };
                let new = if *key == Key::LogHead {
                    let head = LogHead::decode(value).ok_or_else(malformed)?;
                    let expected = if after.is_some() { expected } else { NO_HEAD };
                    self.push_head(&mut commands, expected, &head);
                    state_of(&head)
                } else {
                    let value = to_redis(key, value).ok_or_else(malformed)?;
                    self.push_write(&mut commands, (key, expected), Some(&value));
                    sha1(&value)
                };
                versions.push(RecordVersion::Value(key.clone(), new));
            }
            let done =
                self.link.send(commands).await?.into_iter().map(|of| of.integer() == Some(1));
            written.extend(versions.into_iter().zip(done).map(|(of, done)| done.then_some(of)));
        }
        Ok(written)
    }

    async fn remove_records(&self, versions: &[RecordVersion]) -> Result<Vec<bool>, StoreError> {
        let mut removed = Vec::with_capacity(versions.len());
        for step in versions.chunks(RECORDS_A_STEP) {
            let mut commands = Commands::default();
            for version in step {
                if let RecordVersion::Value(key, expected) = version {
                    self.push_write(&mut commands, (key, expected), None);
                }
            }
            let replies = self.link.send(commands).await?;
            removed.extend(replies.into_iter().map(|of| of.integer() == Some(1)));
        }
        Ok(removed)
    }

    async fn list_records(&self, group: Group) -> Result<Vec<RecordRead>, StoreError> {
        let mut found = Vec::new();
        let key = |field: &str| match group {
            Group::Kept => Some(Key::Kept(field.into())),
            // The other fields are those of the head.
            Group::LogChanges => Some(Key::LogChange(field.parse().ok()?, 0)),
        };
        let take = |entry: &[RedisReply]| {
            if let [field, value] = entry
                && let (Some(key), Some(value)) = (field.text().and_then(key), value.bytes())
            {
                found.push(record_read(key, value));
            }
            true
        };
        let name = if group == Group::Kept { KEPT } else { LOG };
        self.reads.scan("HSCAN", self.key(name).as_bytes(), take).await?;
        Ok(found)
    }
}

impl Records for RedisStore {
    fn get(&self, keys: Vec<Key>) -> StoreFuture<Vec<Option<RecordRead>>> {
        let store = self.clone();
        Box::pin(async move { store.read_records(&keys).await })
    }

    fn put(&self, puts: Vec<RecordPut>) -> StoreFuture<Vec<Option<RecordVersion>>> {
        let store = self.clone();
        Box::pin(async move { store.put_records(&puts).await })
    }

    fn remove(&self, versions: Vec<RecordVersion>) -> StoreFuture<Vec<bool>> {
        let store = self.clone();
        Box::pin(async move { store.remove_records(&versions).await })
    }

    fn list(&self, group: Group) -> StoreFuture<Vec<RecordRead>> {
        let store = self.clone();
        Box::pin(async move { store.list_records(group).await })
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn publish(&self, messages: Vec<(Destination, Vec<u8>)>) -> StoreFuture<()> {
        let mut commands = Commands::default();
        for (to, message) in messages {
            commands.push(&[b"PUBLISH", self.channel(&to).as_bytes(), &message]);
        }
        let sent = self.link.begin(commands);
        Box::pin(async move { sent.await.map(drop) })
    }
}
