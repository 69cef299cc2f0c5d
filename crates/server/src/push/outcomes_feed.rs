//! `/api/push/outcomes/feed`: how durable pushes ended, and those whose caller has gone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::devices::FeedFollower;
use super::submission::read;
use super::thread::Shared;
use crate::api::{ApiError, ApiErrorCode};

/// Outcomes that one call gives.
const OUTCOMES_MAX: usize = 10_000;
const OUTCOMES_DEFAULT: usize = 1_000;
/// How long a call may wait for the next outcome.
const WAIT_MS_MAX: u64 = 60_000;

/// The outcomes behind a cursor; waits for the next one if there is none and the caller wants to wait.
pub(super) async fn read_on(shared: &Arc<Shared>, body: &[u8]) -> Result<Value, ApiError> {
    let FeedFollower { after, limit, wait_ms } = read(body)?;
    let limit = limit.unwrap_or(OUTCOMES_DEFAULT).clamp(1, OUTCOMES_MAX);
    let deadline = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    loop {
        // Asked for before the look, so that what comes in between is not slept through.
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
