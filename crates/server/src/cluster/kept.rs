//! Calls that are kept in Redis for nodes which are away: what is revoked, and who is blocked.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::link::{Commands, LinkError, RedisLink};
use super::members::{NodeKeys, links_key};
use super::message::{VERSION, unix_ms};
use crate::api::Method;

/// How long it is kept that a user is not blocked any more, in seconds: no node is away for longer.
const UNBLOCKED_KEPT_S: u64 = 30 * 86_400;

/// A call and its request, JSON.
pub(super) type KeptCall = (Method, Arc<[u8]>);

/// As it stands in Redis.
#[derive(Serialize, Deserialize)]
struct StoredCall<'a> {
    v: u8,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    request: &'a RawValue,
    /// Unix seconds; it is forgotten then. 0: never.
    until_s: u64,
}

pub(super) fn revocations_key(prefix: &str) -> String {
    format!("{prefix}:revocations")
}

/// The field under which a call is kept; `None`: it is not. A later call of the same field takes its place.
pub(super) fn field(method: Method, request: &[u8]) -> Option<String> {
    let request: Value = serde_json::from_slice(request).ok()?;
    let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
    Some(match method {
        Method::RevokeToken => format!("token {}", text("uid")),
        Method::InvalidateUserTokens => format!("tokens {}", text("user")),
        Method::BlockUser | Method::UnblockUser => format!("user {}", text("user")),
        _ => return None,
    })
}

/// KEYS: links, calls. ARGV: uid, connection, field, call. What a connection that was given up has sent may be carried out after a
/// later call of the same field, which it must not undo.
const KEEP: &str = r"
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return redis.error_reply('FENCED calls are kept by another connection')
end
return redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
";

/// Appends what keeps a call, by the connection on which it is sent.
pub(super) fn keep(
    commands: &mut Commands,
    place: &NodeKeys,
    link: u64,
    field: &str,
    (method, request): (Method, &[u8]),
) {
    let Ok(raw) = serde_json::from_slice(request) else { return };
    let until_s = match method {
        Method::UnblockUser => unix_ms() / 1000 + UNBLOCKED_KEPT_S,
        _ => {
            let request: Value = serde_json::from_slice(request).unwrap_or_default();
            request["expire_at"].as_u64().unwrap_or(0)
        }
    };
    let kept = StoredCall { v: VERSION, method: method.name().into(), request: raw, until_s };
    let value = serde_json::to_vec(&kept).unwrap_or_default();
    let (links, key) = (links_key(&place.prefix), revocations_key(&place.prefix));
    commands.push(&[
        b"EVAL",
        KEEP.as_bytes(),
        b"2",
        links.as_bytes(),
        key.as_bytes(),
        place.uid.as_bytes(),
        link.to_string().as_bytes(),
        field.as_bytes(),
        &value,
    ]);
}

/// Reads the calls that are kept, and removes those that are over.
pub(super) async fn read(link: &RedisLink, key: &str) -> Result<Vec<KeptCall>, LinkError> {
    let replies = link.call(&[&[b"HGETALL", key.as_bytes()]]).await?;
    let now_s = unix_ms() / 1000;
    let mut calls = Vec::new();
    let mut over = Commands::default();
    for entry in replies.first().map_or(&[][..], |all| all.list()).chunks(2) {
        let [field, value] = entry else { continue };
        let (field, value) = (field.bytes().unwrap_or_default(), value.bytes().unwrap_or_default());
        // What this version does not know stays for those that do.
        let Ok(kept) = serde_json::from_slice::<StoredCall<'_>>(value) else { continue };
        if kept.until_s != 0 && kept.until_s <= now_s {
            over.push(&[b"HDEL", key.as_bytes(), field]);
        } else if let Some(method) = Method::of(&kept.method).filter(|_| kept.v == VERSION) {
            calls.push((method, kept.request.get().as_bytes().into()));
        }
    }
    link.send(over).await?;
    Ok(calls)
}
