//! Calls that are kept for disconnected nodes: revocations and blocked users.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dunlin_api::server_api::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::node_message::{VERSION, unix_ms};
use super::store::{KeptCalls, Store, StoreError};

/// How long an unblock is kept, in seconds; no node is expected to be disconnected for longer.
const UNBLOCKED_KEPT_S: u64 = 30 * 86_400;

/// A method and its request as JSON.
pub(super) type KeptCall = (Method, Arc<[u8]>);

/// The stored form of a call.
#[derive(Serialize, Deserialize)]
struct StoredCall<'a> {
    v: u8,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    request: &'a RawValue,
    /// When it is removed, in Unix seconds; 0: never.
    until_s: u64,
}

/// The field under which a call is kept; `None` if it is not kept. A later call replaces an earlier one of the same field.
pub(super) fn field(method: Method, request: &[u8]) -> Option<String> {
    let (kind, key) = match method {
        Method::RevokeToken => ("token", "uid"),
        Method::InvalidateUserTokens => ("tokens", "user"),
        Method::BlockUser | Method::UnblockUser => ("user", "user"),
        _ => return None,
    };
    let request: Value = serde_json::from_slice(request).ok()?;
    Some(format!("{kind} {}", request[key].as_str().unwrap_or_default()))
}

/// The stored form of a call, and until when it is kept, in Unix seconds; 0: forever.
pub(super) fn stored(method: Method, request: &[u8]) -> Option<(Vec<u8>, u64)> {
    let raw = serde_json::from_slice(request).ok()?;
    let until_s = match method {
        Method::UnblockUser => unix_ms() / 1000 + UNBLOCKED_KEPT_S,
        _ => {
            let request: Value = serde_json::from_slice(request).unwrap_or_default();
            request["expire_at"].as_u64().unwrap_or(0)
        }
    };
    let kept = StoredCall { v: VERSION, method: method.name().into(), request: raw, until_s };
    Some((serde_json::to_vec(&kept).ok()?, until_s))
}

/// The kept calls.
#[derive(Default)]
pub(super) struct KeptRead {
    /// The fields of all calls that have not expired.
    pub(super) names: HashSet<Box<str>>,
    /// The calls that this version understands.
    pub(super) calls: Vec<KeptCall>,
}

/// Reads the kept calls and removes expired ones.
pub(super) async fn read(store: &dyn Store) -> Result<KeptRead, StoreError> {
    let now_s = unix_ms() / 1000;
    let (mut read, mut over) = (KeptRead::default(), Vec::new());
    for (field, value) in store.kept().await? {
        // A call that this version does not know stays for nodes that do.
        let kept = serde_json::from_slice::<StoredCall<'_>>(&value);
        if kept.as_ref().is_ok_and(|kept| is_over(kept.until_s, now_s)) {
            drop(kept);
            over.push((field, value));
            continue;
        }
        if let Ok(kept) = kept
            && let Some(method) = Method::of(&kept.method).filter(|_| kept.v == VERSION)
        {
            read.calls.push((method, kept.request.get().as_bytes().into()));
        }
        read.names.insert(field);
    }
    if let Err(error) = store.drop_kept(over).await {
        tracing::debug!(%error, "calls that are over are kept until the next who reads them");
    }
    Ok(read)
}

fn is_over(until_s: u64, now_s: u64) -> bool {
    until_s != 0 && until_s <= now_s
}

/// The kept calls that this process knows, to restore them if the store loses them.
#[derive(Default)]
pub(super) struct KnownCalls(HashMap<Box<str>, KnownCall>);

struct KnownCall {
    stored: Vec<u8>,
    until_s: u64,
}

impl KnownCalls {
    /// Records an executed call. At most `max` are remembered, as many as the node accepts.
    pub(super) fn add(&mut self, method: Method, request: &[u8], max: usize) {
        let Some((name, (stored, until_s))) = field(method, request).zip(stored(method, request))
        else {
            return;
        };
        if self.0.len() >= max && !self.0.contains_key(&*name) {
            let now_s = unix_ms() / 1000;
            self.0.retain(|_, of| !is_over(of.until_s, now_s));
            if self.0.len() >= max {
                return;
            }
        }
        self.0.insert(name.into(), KnownCall { stored, until_s });
    }

    /// The stored form of the calls whose fields are not among `names`.
    pub(super) fn absent(&self, names: &HashSet<Box<str>>) -> KeptCalls {
        let now_s = unix_ms() / 1000;
        let absent = self
            .0
            .iter()
            .filter(|(name, of)| !names.contains(*name) && !is_over(of.until_s, now_s));
        absent.map(|(name, of)| (name.clone(), of.stored.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_that_the_store_lost_is_written_again_in_its_last_version() {
        let mut known = KnownCalls::default();
        known.add(Method::BlockUser, br#"{"user":"ann"}"#, 3);
        known.add(Method::UnblockUser, br#"{"user":"ann"}"#, 3);
        known.add(Method::RevokeToken, br#"{"uid":"over","expire_at":1}"#, 3);
        known.add(Method::RevokeToken, br#"{"uid":"t"}"#, 3);
        known.add(Method::Disconnect, br#"{"user":"ann"}"#, 3);
        let absent = |known: &KnownCalls, names: &[&str]| {
            let names = names.iter().map(|name| Box::from(*name)).collect();
            let mut absent = known.absent(&names);
            absent.sort();
            absent
        };
        let all = absent(&known, &[]);
        let names: Vec<&str> = all.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["token t", "user ann"]);
        let unblocks = String::from_utf8_lossy(&all[1].1).into_owned();
        assert!(unblocks.contains(r#""method":"unblock_user""#), "{unblocks}");
        assert_eq!(absent(&known, &["user ann"]).len(), 1);
        // What is over makes room; beyond it nothing is remembered.
        known.add(Method::BlockUser, br#"{"user":"bob"}"#, 3);
        known.add(Method::BlockUser, br#"{"user":"eve"}"#, 3);
        let names: Vec<Box<str>> = absent(&known, &[]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["token t", "user ann", "user bob"].map(Box::from));
    }
}
