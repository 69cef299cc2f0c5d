//! Calls that are kept in NATS for nodes which are away: a record for each name.
//!
//! What a connection that was given up has sent may be carried out after a later call of the same name. It says which message it
//! follows, and undoes nothing.

use std::borrow::Cow;

use dunlin_engine::nats::word;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{ATTEMPTS_MAX, NatsStore, VERSION, contended};
use crate::cluster::store::{KeptCalls, StoreError};

/// A call as it is stored.
#[derive(Serialize, Deserialize)]
struct KeptRecord<'a> {
    v: u8,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    call: &'a RawValue,
}

pub(super) async fn keep(store: &NatsStore, name: &str, call: &[u8]) -> Result<(), StoreError> {
    let Ok(call) = serde_json::from_slice(call) else { return Ok(()) };
    let record = KeptRecord { v: VERSION, name: name.into(), call };
    let payload = serde_json::to_vec(&record).unwrap_or_default();
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

/// The key that names of budgets are hashed by, as it is stored.
#[derive(Serialize, Deserialize)]
struct BudgetsKey {
    v: u8,
    key: [u8; 16],
}

/// The key of all nodes: `made`, if there was none.
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
