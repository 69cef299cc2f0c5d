//! Calls that are kept for nodes which are away: what is revoked, and who is blocked.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::message::{VERSION, unix_ms};
use super::store::{Store, StoreError};
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
    let request: Value = serde_json::from_slice(request).ok()?;
    let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
    Some(match method {
        Method::RevokeToken => format!("token {}", text("uid")),
        Method::InvalidateUserTokens => format!("tokens {}", text("user")),
        Method::BlockUser | Method::UnblockUser => format!("user {}", text("user")),
        _ => return None,
    })
}

/// A call as it is kept.
pub(super) fn stored(method: Method, request: &[u8]) -> Option<Vec<u8>> {
    let raw = serde_json::from_slice(request).ok()?;
    let until_s = match method {
        Method::UnblockUser => unix_ms() / 1000 + UNBLOCKED_KEPT_S,
        _ => {
            let request: Value = serde_json::from_slice(request).unwrap_or_default();
            request["expire_at"].as_u64().unwrap_or(0)
        }
    };
    let kept = StoredCall { v: VERSION, method: method.name().into(), request: raw, until_s };
    serde_json::to_vec(&kept).ok()
}

/// Reads the calls that are kept, and removes those that are over.
pub(super) async fn read(store: &dyn Store) -> Result<Vec<KeptCall>, StoreError> {
    let now_s = unix_ms() / 1000;
    let (mut calls, mut over) = (Vec::new(), Vec::new());
    for (field, value) in store.kept().await? {
        // What this version does not know stays for those that do.
        let Ok(kept) = serde_json::from_slice::<StoredCall<'_>>(&value) else { continue };
        if kept.until_s != 0 && kept.until_s <= now_s {
            over.push(field);
        } else if let Some(method) = Method::of(&kept.method).filter(|_| kept.v == VERSION) {
            calls.push((method, kept.request.get().as_bytes().into()));
        }
    }
    store.drop_kept(over).await?;
    Ok(calls)
}
