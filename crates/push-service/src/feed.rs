//! A caller that follows a feed: where it goes on, and whether this feed has that place.

use std::time::Duration;

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::futures::Notified;
use tokio::time::{Instant, timeout_at};

use super::thread::Shared;

/// Longest time that a call may wait for the next entry.
const WAIT_MS_MAX: u64 = 60_000;

/// A call that reads a feed from a position.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FeedFollower {
    /// The cursor of the answer before.
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    after: Cursor,
    limit: Option<usize>,
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    wait_ms: u64,
    pub(super) node: Option<String>,
}

/// A place in a feed: `EPOCH-NUMBER`. The epoch tells a feed from another one, of another node or of the time before its
/// file was lost, whose numbers mean other entries. A number alone is taken, too: 0 is the beginning of any feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Value", into = "String")]
struct Cursor {
    epoch: Option<u64>,
    number: u64,
}

/// A feed, as far as it is there now.
pub(super) struct Feed {
    pub(super) epoch: u64,
    /// The number of its last entry.
    pub(super) last: u64,
}

/// A page of a feed.
pub(super) struct Page<T> {
    /// Entries by number.
    pub(super) entries: Vec<(u64, T)>,
    /// Where to go on.
    pub(super) cursor: String,
}

impl TryFrom<Value> for Cursor {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Cursor, &'static str> {
        let wrong = "write the `cursor` of the answer before, or 0 to begin";
        match &value {
            Value::Number(number) => {
                Ok(Cursor { epoch: None, number: number.as_u64().ok_or(wrong)? })
            }
            Value::String(text) => {
                let (epoch, number) = text.split_once('-').ok_or(wrong)?;
                let epoch = u64::from_str_radix(epoch, 16).map_err(|_| wrong)?;
                Ok(Cursor { epoch: Some(epoch), number: number.parse().map_err(|_| wrong)? })
            }
            _ => Err(wrong),
        }
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> String {
        format!("{:x}-{}", cursor.epoch.unwrap_or_default(), cursor.number)
    }
}

impl Feed {
    /// Returns the number after which a cursor goes on.
    ///
    /// # Errors
    /// The cursor is of another feed, or of entries that this one does not have yet.
    fn place(&self, after: Cursor, node: &str) -> Result<u64, ApiError> {
        let is_other = after.epoch.is_some_and(|epoch| epoch != self.epoch);
        if !is_other && after.number <= self.last {
            return Ok(after.number);
        }
        let (given, last) = (String::from(after), String::from(self.cursor(self.last)));
        let why = format!(
            "after: {given} is not of this feed, which ends at {last}: it is of another node than this one ({node}), or of \
             a feed whose file is gone; ask that node, or begin with 0"
        );
        Err(ApiErrorCode::UnrecoverablePosition.with_reason(why))
    }

    fn cursor(&self, number: u64) -> Cursor {
        Cursor { epoch: Some(self.epoch), number }
    }
}

impl FeedFollower {
    /// Returns the entries after the cursor, as `read` finds them behind a number, on a thread that may block. If there are none, waits for the next one,
    /// if the caller asks for that. `next` is created before a read, so that what is written in between wakes it.
    pub(super) async fn read<'s, T: Send + 'static>(
        self,
        shared: &'s Shared,
        feed: Feed,
        limits: (usize, usize),
        next: impl Fn() -> Notified<'s>,
        read: impl Fn(u64, usize) -> Result<Vec<(u64, T)>, ApiError> + Clone + Send + 'static,
    ) -> Result<Page<T>, ApiError> {
        shared.check_node(self.node.as_deref())?;
        let after = feed.place(self.after, &shared.node_name())?;
        let (default, max) = limits;
        let limit = self.limit.unwrap_or(default).clamp(1, max);
        let deadline = Instant::now() + Duration::from_millis(self.wait_ms.min(WAIT_MS_MAX));
        loop {
            let next = next();
            let read = read.clone();
            let entries = tokio::task::spawn_blocking(move || read(after, limit)).await;
            let entries =
                entries.unwrap_or_else(|error| Err(ApiErrorCode::Internal.with_reason(error)))?;
            let may_wait = entries.is_empty() && !shared.is_draining();
            if may_wait && timeout_at(deadline, next).await.is_ok() {
                continue;
            }
            let last = entries.last().map_or(after, |(number, _)| *number);
            return Ok(Page { entries, cursor: feed.cursor(last).into() });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cursor_of_another_feed_or_of_the_future_is_refused_with_the_node() {
        let feed = Feed { epoch: 0xab, last: 7 };
        let place = |after: Value| {
            let after: Cursor = serde_json::from_value(after).unwrap();
            feed.place(after, "n1").map_err(|error| error.to_string())
        };
        assert_eq!(place(json!(0)), Ok(0));
        assert_eq!(place(json!("ab-7")), Ok(7));
        assert_eq!(place(json!(String::from(feed.cursor(3)))), Ok(3));
        for other in [json!("ac-3"), json!("ab-8"), json!(8)] {
            let error = place(other).unwrap_err();
            assert!(error.starts_with("112: ") && error.contains("(n1)"), "{error}");
        }
        for wrong in [json!("7"), json!("ab-x"), json!(-1), json!({})] {
            assert!(serde_json::from_value::<Cursor>(wrong).is_err());
        }
    }
}
