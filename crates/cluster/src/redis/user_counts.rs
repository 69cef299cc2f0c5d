//! Connection counts of users in Redis. Each process has its own hash, so one command removes that of a dead process.

use std::sync::LazyLock;

use super::RedisStore;
use super::link::Script;
use crate::store::{StoreError, UserCountsWrite};

/// Users that one script writes. Redis serves no other client while a script runs.
const USERS_A_STEP: usize = 128;

/// KEYS: links, counts of this process, counts of each other process. ARGV: uid, link, then for each user the name and the count
/// of this process. Returns for each the sum of the others; 0 if the own count is 0. An entry is a version and the count; an
/// unknown version counts as 0.
const WRITE: &str = r"
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return redis.error_reply('FENCED users are counted by another connection')
end
local elsewhere = {}
for at = 3, #ARGV, 2 do
  local sum = 0
  if ARGV[at + 1] == '0' then
    redis.call('HDEL', KEYS[2], ARGV[at])
  else
    redis.call('HSET', KEYS[2], ARGV[at], '1 ' .. ARGV[at + 1])
    for other = 3, #KEYS do
      local entry = redis.call('HGET', KEYS[other], ARGV[at])
      sum = sum + tonumber(entry and string.match(entry, '^1 (%d+)$') or 0)
    end
  end
  table.insert(elsewhere, sum)
end
return elsewhere
";

/// KEYS: links, counts of this process. ARGV: uid, link.
const REMOVE: &str = r"
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return redis.error_reply('FENCED users are counted by another connection')
end
return redis.call('UNLINK', KEYS[2])
";

static WRITE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(WRITE));
static REMOVE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(REMOVE));

impl RedisStore {
    /// The hash with the counts of a process.
    pub(super) fn users_key(&self, uid: &str) -> String {
        self.key(&format!("users:{uid}"))
    }
}

/// Writes counts of this process, and returns the sums of the others.
pub(super) async fn write(
    store: &RedisStore,
    UserCountsWrite { users, is_all, others }: &UserCountsWrite,
) -> Result<Vec<u64>, StoreError> {
    let (links, number) = (store.links_key(), store.link.number.to_string());
    let of_processes = std::iter::once(&store.uid).chain(others);
    let keys: Vec<_> = of_processes.map(|uid| store.users_key(uid)).collect();
    let mut all_keys = vec![links.as_bytes()];
    all_keys.extend(keys.iter().map(|key| key.as_bytes()));
    if *is_all {
        let arguments = [store.uid.as_bytes(), number.as_bytes()];
        store.link.script(&REMOVE_SCRIPT, &all_keys[..2], &arguments).await?;
    }
    let mut elsewhere = Vec::with_capacity(users.len());
    for step in users.chunks(USERS_A_STEP) {
        let counts: Vec<_> = step.iter().map(|(_, count)| count.to_string()).collect();
        let mut arguments = vec![store.uid.as_bytes(), number.as_bytes()];
        for ((user, _), count) in step.iter().zip(&counts) {
            arguments.extend([user.as_bytes(), count.as_bytes()]);
        }
        let reply = store.link.script(&WRITE_SCRIPT, &all_keys, &arguments).await?;
        let counts = reply.list().iter().map(|of| of.integer().unwrap_or(0).unsigned_abs());
        elsewhere.extend(counts);
    }
    Ok(elsewhere)
}
