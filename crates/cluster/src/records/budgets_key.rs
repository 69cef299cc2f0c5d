//! The key that hashes names of budgets. The first node that requests it creates it. A client that knew it could choose a name
//! whose hash collides with that of another budget.

use serde::{Deserialize, Serialize};

use super::{
    ATTEMPTS_MAX, Key, Records, StoreError, VERSION, contended, get_one, put_one, refused,
};
use crate::condition::Condition;

/// The stored form of the key.
#[derive(Serialize, Deserialize)]
struct BudgetsKey {
    v: u8,
    key: [u8; 16],
}

pub(crate) fn encode(key: [u8; 16]) -> Vec<u8> {
    serde_json::to_vec(&BudgetsKey { v: VERSION, key }).unwrap_or_default()
}

/// Reads the key; `None`: it is of another version.
pub(crate) fn decode(value: &[u8]) -> Option<[u8; 16]> {
    let read: BudgetsKey = serde_json::from_slice(value).ok()?;
    (read.v == VERSION).then_some(read.key)
}

/// Reads the cluster's key, and stores `made` if there was none.
pub(crate) async fn read(records: &dyn Records, made: [u8; 16]) -> Result<[u8; 16], StoreError> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(found) = get_one(records, Key::Budgets).await? {
            let foreign = "the key of budgets is something that another program wrote";
            return decode(&found.value).ok_or_else(|| refused(Condition::ForeignKey, foreign));
        }
        if put_one(records, Key::Budgets, None, encode(made)).await? {
            return Ok(made);
        }
    }
    Err(contended())
}
