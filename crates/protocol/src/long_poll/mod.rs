//! Long-poll: `GET /connection/poll?channel=a&channel=b&cursor=…&timeout=25`.
//!
//! For clients with plain HTTP requests only. The response comes as soon as there is something
//! after the cursor, or empty at the timeout, and always has the cursor for the next request:
//!
//! ```json
//! {"publications":[{"channel":"a","data":{"n":1},"offset":7}],"cursor":"AdZ…",
//!  "positions":{"a":{"offset":7,"epoch":"Qk3x"},"b":{"offset":0,"epoch":"Qk3y"}}}
//! ```
//!
//! - No cursor: from now on. `cursor=0`: from the oldest publication in the history. Otherwise the
//!   cursor of a former response. It may be used again, also with other channels, which then begin
//!   now.
//! - `timeout` in seconds (`2.5`) or with a unit (`500ms`, `25s`), at most the server's limit.
//!   `timeout=0` responds at once.
//! - `gap` lists the channels of which something between the cursor and this response is missing
//!   for good, as `[{"channel":"a","reason":"expired"}]` ([`Gap`]). An item with `missed` instead of
//!   `data` counts publications dropped because too many came at once.

mod cursor;
mod request;
mod response;

pub use cursor::{Cursor, CursorError, Since};
pub use request::{PollLimits, PollRequest};
pub use response::{Gap, ResponseChannel, write_item, write_publication_item, write_response};
