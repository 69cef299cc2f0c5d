//! `/api/push/scheduled/…`: durable batches that wait for their time (`send_at_s`).

use std::sync::Arc;

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use dunlin_push::journal::{JournalChange, JournalError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::outcomes_feed::on_disk;
use super::submission::read;
use super::thread::Shared;

/// The most batches in one response.
const BATCHES_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// The last batch of the page before.
    #[serde(default)]
    after: u64,
    node: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    batch: u64,
    node: Option<String>,
}

/// What is read of the data common to a batch.
#[derive(Deserialize)]
pub(super) struct Schedule {
    pub(super) send_at_s: Option<u64>,
}

/// Returns the batches that have not begun, oldest first.
pub(super) async fn list(shared: &Arc<Shared>, body: &[u8]) -> Result<Value, ApiError> {
    let List { after, node } = read(body)?;
    shared.check_node(node.as_deref())?;
    let scheduled = on_disk(shared, move |journal| {
        let mut scheduled = Vec::new();
        for open in journal.open_batches()? {
            let schedule: Option<Schedule> = serde_json::from_slice(&open.common).ok();
            let send_at_s = schedule.and_then(|schedule| schedule.send_at_s);
            if let Some(send_at_s) = send_at_s.filter(|_| open.batch > after && open.started == 0) {
                let pushes = journal.pending_of(open.batch)?;
                scheduled
                    .push(json!({ "batch": open.batch, "send_at_s": send_at_s, "pushes": pushes }));
                if scheduled.len() == BATCHES_MAX {
                    break;
                }
            }
        }
        Ok(scheduled)
    });
    Ok(json!({ "scheduled": scheduled.await? }))
}

/// Drops a batch that has not begun. The journal decides whether it has: a push that is cancelled is never sent.
pub(super) async fn cancel(shared: &Arc<Shared>, body: &[u8]) -> Result<Value, ApiError> {
    let Cancel { batch, node } = read(body)?;
    shared.check_node(node.as_deref())?;
    let written = shared.journal_writer.write(vec![JournalChange::Cancel { batch }]).await;
    let cancelled = written.and_then(|mut done| done.pop().unwrap_or(Err(JournalError::Closed)));
    let cancelled = cancelled.map_err(|error| match error {
        JournalError::Unknown(_) => ApiErrorCode::NotFound.with_reason(error),
        JournalError::Started(_) => ApiErrorCode::BadRequest.with_reason(error),
        error => ApiErrorCode::Internal.with_reason(error),
    })?;
    Ok(json!({ "batch": batch, "cancelled": cancelled.pushes }))
}
