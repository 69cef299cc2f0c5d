//! `/api/push/outcomes/feed`: outcomes of durable pushes, and of pushes whose caller disconnected.

use std::sync::Arc;

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use dunlin_push::journal::{Journal, JournalError};
use serde_json::{Value, json};

use super::feed::{Feed, FeedFollower};
use super::submission::read;
use super::thread::Shared;

/// The default number of outcomes in one response, and the most.
const OUTCOMES: (usize, usize) = (1_000, 10_000);

/// Returns the outcomes after a cursor. If there are none, waits for the next one if the caller asks for that.
pub(super) async fn read_on(shared: &Arc<Shared>, body: &[u8]) -> Result<Value, ApiError> {
    let follower: FeedFollower = read(body)?;
    let last = on_disk(shared, |journal| journal.last_outcome()).await?;
    let feed = Feed { epoch: shared.journal.epoch(), last };
    let next = || shared.journal_writer.next();
    let journal = Arc::clone(&shared.journal);
    let outcomes = move |after, limit| {
        journal.outcomes(after, limit).map_err(|error| ApiErrorCode::Internal.with_reason(error))
    };
    let page = follower.read(shared, feed, OUTCOMES, next, outcomes).await?;
    let outcomes: Vec<Value> = page
        .entries
        .into_iter()
        .filter_map(|(number, line)| {
            let mut outcome: Value = serde_json::from_slice(&line).ok()?;
            outcome["n"] = number.into();
            Some(outcome)
        })
        .collect();
    Ok(json!({ "outcomes": outcomes, "cursor": page.cursor }))
}

/// Reads the journal in a blocking task.
pub(super) async fn on_disk<T: Send + 'static>(
    shared: &Shared,
    call: impl FnOnce(&Journal) -> Result<T, JournalError> + Send + 'static,
) -> Result<T, ApiError> {
    let journal = Arc::clone(&shared.journal);
    match tokio::task::spawn_blocking(move || call(&journal)).await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) => Err(ApiErrorCode::Internal.with_reason(error)),
        Err(error) => Err(ApiErrorCode::Internal.with_reason(error)),
    }
}
