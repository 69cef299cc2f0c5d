//! Calls that are kept for nodes which are away: what is revoked, and who is blocked.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::message::{VERSION, unix_ms};
use super::store::{KeptCalls, Store, StoreError};
use crate::api::Method;

/// How long it is kept that a user is not blocked any more, in seconds: no node is away for longer.
const UNBLOCKED_KEPT_S: u64 = 30 * 86_400;

/// A call and its request, JSON.
pub(super) type KeptCall = (Method, Arc<[u8]>);

/// As it is stored.
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

/// The field under which a call is kept; `None`: it is not. A later call of the same field takes its place.
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

/// A call as it is kept, and until when, in Unix seconds; 0: for good.
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

/// What is kept.
#[derive(Default)]
pub(super) struct KeptRead {
    /// Of all that is not over.
    pub(super) names: HashSet<Box<str>>,
    /// Those that this version knows.
    pub(super) calls: Vec<KeptCall>,
}

/// Reads the calls that are kept, and removes those that are over.
pub(super) async fn read(store: &dyn Store) -> Result<KeptRead, StoreError> {
    let now_s = unix_ms() / 1000;
    let (mut read, mut over) = (KeptRead::default(), Vec::new());
    for (field, value) in store.kept().await? {
        // What this version does not know stays for those that do.
        if let Ok(kept) = serde_json::from_slice::<StoredCall<'_>>(&value) {
            if is_over(kept.until_s, now_s) {
                over.push(field);
                continue;
            }
            if let Some(method) = Method::of(&kept.method).filter(|_| kept.v == VERSION) {
                read.calls.push((method, kept.request.get().as_bytes().into()));
            }
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

/// The calls that this process knows to be kept, for when the store loses them.
#[derive(Default)]
pub(super) struct KnownCalls(HashMap<Box<str>, KnownCall>);

struct KnownCall {
    stored: Vec<u8>,
    until_s: u64,
}

impl KnownCalls {
    /// A call is carried out. At most `max` are remembered: as many as the node takes.
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

    /// Those that are not among these, as they are kept.
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
    fn what_is_known_and_not_kept_any_more_is_kept_again_as_it_was_last() {
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
