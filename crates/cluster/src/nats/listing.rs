//! Reads records from the stream's leader.
//!
//! Only the leader answers requests for the state of a stream and for a message by its subject. A new leader may first have to
//! catch up with the committed log; once its last sequence has reached this connection's newest write, it has all of them. A
//! record that is listed but not found was removed in the meantime, or the current leader does not have it yet; another listing
//! shows which.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::stream::{NatsStream, Response, expected};
use crate::ordered::{Record, RecordStream as _};
use crate::records::{ATTEMPTS_MAX, contended};
use crate::store::StoreError;

/// The longest time to wait for the election of a leader and for it to catch up.
const LEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two checks for a leader.
const LEADER_PAUSE: Duration = Duration::from_millis(20);
/// Overlap of two pages of the list, in subjects: a removal between the requests moves the subjects behind it.
const PAGE_OVERLAP: usize = 1_024;

impl NatsStream {
    /// Reads all records whose subjects match a filter, in no order.
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

    /// Lists the subjects that match a filter.
    async fn list(&self, filter: &str) -> Result<BTreeSet<String>, StoreError> {
        let mut listed = BTreeSet::new();
        loop {
            let offset = listed.len().saturating_sub(PAGE_OVERLAP);
            let Response { limit, state, .. } = self.at_leader(filter, offset).await?;
            let first = state.subjects.keys().next();
            if listed.last().is_some_and(|last| first.is_none_or(|first| first > last)) {
                // Too many were removed for the pages to overlap: start over.
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

    /// Reads the state of the stream at a leader with everything that this connection has written, with a page of the subjects that match a filter.
    pub(super) async fn at_leader(
        &self,
        filter: &str,
        offset: usize,
    ) -> Result<Response, StoreError> {
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
