//! Calls that are kept for disconnected nodes: a record for each name.
//!
//! A write of a connection that was given up may arrive after a later call with the same name. It names the state that it
//! replaces, so it does not overwrite that call.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    ATTEMPTS_MAX, Group, Key, RecordPut, RecordRead, Records, StoreError, VERSION, contended,
    get_one, put_one,
};

/// Kept calls with their names.
pub(crate) type KeptCalls = Vec<(Box<str>, Vec<u8>)>;

/// The stored form of a call.
#[derive(Serialize, Deserialize)]
struct KeptRecord<'a> {
    v: u8,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    call: &'a RawValue,
}

/// Encodes a call; `None` if it is not JSON.
pub(crate) fn encode(name: &str, call: &[u8]) -> Option<Vec<u8>> {
    let call = serde_json::from_slice(call).ok()?;
    serde_json::to_vec(&KeptRecord { v: VERSION, name: name.into(), call }).ok()
}

/// Reads the name and the call of a record.
pub(crate) fn decode(value: &[u8]) -> Option<(Box<str>, Vec<u8>)> {
    let KeptRecord { name, call, .. } = serde_json::from_slice(value).ok()?;
    Some((name.into(), call.get().as_bytes().to_vec()))
}

/// Keeps the calls without a record.
pub(crate) async fn keep_absent(
    records: &dyn Records,
    calls: &KeptCalls,
) -> Result<(), StoreError> {
    let put = |(name, call): &(Box<str>, Vec<u8>)| {
        Some(RecordPut { key: Key::Kept(name.clone()), after: None, value: encode(name, call)? })
    };
    records.put(calls.iter().filter_map(put).collect()).await.map(drop)
}

pub(crate) async fn keep(records: &dyn Records, name: &str, call: &[u8]) -> Result<(), StoreError> {
    let Some(value) = encode(name, call) else { return Ok(()) };
    let key = Key::Kept(name.into());
    for _ in 0..ATTEMPTS_MAX {
        let after = get_one(records, key.clone()).await?.map(|found| found.version);
        if put_one(records, key.clone(), after, value.clone()).await? {
            return Ok(());
        }
    }
    Err(contended())
}

pub(crate) async fn read(records: &dyn Records) -> Result<KeptCalls, StoreError> {
    let found = records.list(Group::Kept).await?;
    Ok(found.iter().filter_map(|found| decode(&found.value)).collect())
}

/// Removes calls, unless others have taken their place meanwhile.
pub(crate) async fn remove(records: &dyn Records, calls: &KeptCalls) -> Result<(), StoreError> {
    let keys = calls.iter().map(|(name, _)| Key::Kept(name.clone())).collect();
    let found = records.get(keys).await?.into_iter().zip(calls);
    let still = |(found, call): (Option<RecordRead>, _)| {
        found.filter(|found| decode(&found.value).as_ref() == Some(call))
    };
    let versions = found.filter_map(still).map(|found| found.version).collect();
    records.remove(versions).await.map(drop)
}
