//! `/api/push/outcomes/feed`: outcomes of durable pushes, and of pushes whose caller disconnected.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::devices::FeedFollower;
use super::submission::read;
use super::thread::Shared;
use crate::api::{ApiError, ApiErrorCode};

/// Most outcomes in one response, and their default number.
const OUTCOMES_MAX: usize = 10_000;
const OUTCOMES_DEFAULT: usize = 1_000;
/// Longest time that a call may wait for the next outcome.
const WAIT_MS_MAX: u64 = 60_000;

/// Returns the outcomes after a cursor. If there are none, waits for the next one if the caller asks for that.
pub(super) async fn read_on(shared: &Arc<Shared>, body: &[u8]) -> Result<Value, ApiError> {
    let FeedFollower { after, limit, wait_ms } = read(body)?;
    let limit = limit.unwrap_or(OUTCOMES_DEFAULT).clamp(1, OUTCOMES_MAX);
    let deadline = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    loop {
        // Created before the read, so that an outcome written in between wakes it.
        let next = shared.journal_writer.next();
        let journal = Arc::clone(&shared.journal);
        let found = tokio::task::spawn_blocking(move || journal.outcomes(after, limit)).await;
        let found = match found {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(ApiErrorCode::Internal.with_reason(error)),
            Err(error) => return Err(ApiErrorCode::Internal.with_reason(error)),
        };
        let may_wait = found.is_empty() && !shared.is_draining();
        if may_wait && timeout_at(deadline, next).await.is_ok() {
            continue;
        }
        let cursor = found.last().map_or(after, |(number, _)| *number);
        let outcomes: Vec<Value> = found
            .into_iter()
            .filter_map(|(number, line)| {
                let mut outcome: Value = serde_json::from_slice(&line).ok()?;
                outcome["n"] = number.into();
                Some(outcome)
            })
            .collect();
        return Ok(json!({ "outcomes": outcomes, "cursor": cursor }));
    }
}
