//! Calls that are kept in NATS for disconnected nodes: a record for each name.
//!
//! A write of a connection that was given up may arrive after a later call with the same name. It names the message that it
//! follows, so it does not overwrite that call.

use std::borrow::Cow;

use dunlin_engine::nats::word;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::stream::RecordWrite;
use super::{ATTEMPTS_MAX, NatsStore, VERSION, contended};
use crate::cluster::store::{KeptCalls, StoreError};

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
fn encoded(name: &str, call: &[u8]) -> Option<Vec<u8>> {
    let call = serde_json::from_slice(call).ok()?;
    serde_json::to_vec(&KeptRecord { v: VERSION, name: name.into(), call }).ok()
}

/// Keeps the calls without a record.
pub(super) async fn keep_absent(store: &NatsStore, calls: &KeptCalls) -> Result<(), StoreError> {
    let put = |(name, call): &(Box<str>, Vec<u8>)| {
        let subject = store.subject(&format!("kept.{}", word(name)));
        Some(RecordWrite { subject, after: 0, payload: encoded(name, call)? })
    };
    let puts: Vec<RecordWrite> = calls.iter().filter_map(put).collect();
    store.0.stream.put_all(&puts).await.map(drop)
}

pub(super) async fn keep(store: &NatsStore, name: &str, call: &[u8]) -> Result<(), StoreError> {
    let Some(payload) = encoded(name, call) else { return Ok(()) };
    let subject = store.subject(&format!("kept.{}", word(name)));
    for _ in 0..ATTEMPTS_MAX {
        let after = store.0.stream.get(&subject).await?.map_or(0, |record| record.seq);
        if store.0.stream.put(subject.clone(), after, payload.clone()).await?.is_some() {
            return Ok(());
        }
    }
    Err(contended())
}

pub(super) async fn read(store: &NatsStore) -> Result<KeptCalls, StoreError> {
    let records = store.0.stream.read(&store.subject("kept.>")).await?;
    let call = |record: &super::stream::Record| {
        let KeptRecord { name, call, .. } = record.read()?;
        Some((name.into(), call.get().as_bytes().to_vec()))
    };
    Ok(records.iter().filter_map(call).collect())
}

pub(super) async fn remove(store: &NatsStore, names: &[Box<str>]) -> Result<(), StoreError> {
    let subjects = names.iter().map(|name| store.subject(&format!("kept.{}", word(name))));
    let subjects: Vec<String> = subjects.collect();
    let records = store.0.stream.get_all(&subjects).await?;
    let seqs: Vec<u64> = records.into_iter().flatten().map(|record| record.seq).collect();
    store.0.stream.remove_all(&seqs).await.map(drop)
}

/// The stored form of the key that hashes names of budgets.
#[derive(Serialize, Deserialize)]
struct BudgetsKey {
    v: u8,
    key: [u8; 16],
}

/// Reads the cluster's key, and stores `made` if there was none.
pub(super) async fn budgets_key(store: &NatsStore, made: [u8; 16]) -> Result<[u8; 16], StoreError> {
    let subject = store.subject("state.budgets");
    let record = serde_json::to_vec(&BudgetsKey { v: VERSION, key: made }).unwrap_or_default();
    for _ in 0..ATTEMPTS_MAX {
        let after = match store.0.stream.get(&subject).await? {
            Some(found) => match found.read::<BudgetsKey>() {
                Some(BudgetsKey { key, .. }) => return Ok(key),
                None => found.seq,
            },
            None => 0,
        };
        if store.0.stream.put(subject.clone(), after, record.clone()).await?.is_some() {
            return Ok(made);
        }
    }
    Err(contended())
}
