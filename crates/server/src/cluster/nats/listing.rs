//! Records as the stream's leader has them.
//!
//! The leader alone answers for the state of a stream and for a message by its subject, and one has what this connection has
//! written only once its last message says so: whoever has just begun to lead may have to catch up with what is agreed upon. A
//! record that is listed and not found was removed meanwhile, or is not there yet with who leads now; the list is asked for again,
//! and tells which.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::stream::{Record, RecordStream, Response, expected};
use super::{ATTEMPTS_MAX, contended};
use crate::cluster::store::StoreError;

/// How long a leader may take to be elected and to catch up.
const LEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two questions whether there is one.
const LEADER_PAUSE: Duration = Duration::from_millis(20);
/// A page of the list begins so many subjects before the end of the former one: what is removed in between moves those behind it.
const PAGE_OVERLAP: usize = 1_024;

impl RecordStream {
    /// All records whose subjects match a filter, in no order.
    pub(super) async fn read_at_leader(&self, filter: &str) -> Result<Vec<Record>, StoreError> {
        let mut found = BTreeMap::<String, Record>::new();
        for _ in 0..ATTEMPTS_MAX {
            let listed = self.list(filter).await?;
            found.retain(|subject, _| listed.contains(subject));
            let due: Vec<String> =
                listed.into_iter().filter(|subject| !found.contains_key(subject)).collect();
            let records = self.get_all(&due).await?;
            let is_whole = records.iter().all(Option::is_some);
            found.extend(
                due.into_iter().zip(records).filter_map(|(of, record)| Some((of, record?))),
            );
            if is_whole {
                return Ok(found.into_values().collect());
            }
        }
        Err(contended())
    }

    /// The subjects that match a filter.
    async fn list(&self, filter: &str) -> Result<BTreeSet<String>, StoreError> {
        let mut listed = BTreeSet::new();
        loop {
            let offset = listed.len().saturating_sub(PAGE_OVERLAP);
            let Response { limit, state, .. } = self.at_leader(filter, offset).await?;
            let first = state.subjects.keys().next();
            if listed.last().is_some_and(|last| first.is_none_or(|first| first > last)) {
                // So many were removed that the pages do not meet: from the beginning.
                listed.clear();
                continue;
            }
            let is_last = limit == 0 || state.subjects.len() < limit;
            listed.extend(state.subjects.into_keys());
            if is_last {
                return Ok(listed);
            }
        }
    }

    /// Waits until the stream has a leader that has all that was written on this connection.
    pub(super) async fn wait_for_leader(&self) -> Result<(), StoreError> {
        self.at_leader("-", 0).await.map(drop)
    }

    /// How the stream stands at such a leader, with a page of the subjects that match a filter.
    async fn at_leader(&self, filter: &str, offset: usize) -> Result<Response, StoreError> {
        let began = Instant::now();
        let written = self.newest_written();
        loop {
            let wanted = json!({ "subjects_filter": filter, "offset": offset });
            let response = expected(&self.ask("STREAM.INFO", &wanted).next().await?)?;
            if !response.cluster.leader.is_empty() && response.state.last_seq >= written {
                return Ok(response);
            }
            if began.elapsed() > LEADER_TIMEOUT {
                let why = "the stream of the cluster has no leader that has all of it";
                return Err(StoreError::Closed(why.into()));
            }
            sleep(LEADER_PAUSE).await;
        }
    }
}
