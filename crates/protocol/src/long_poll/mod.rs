//! Long-poll: `GET /connection/poll?channel=a&channel=b&cursor=…&timeout=25`.
//!
//! For clients that have nothing but an HTTP request. The answer comes as soon as there is something after the
//! cursor, or empty at the time-out, and always carries the cursor for the next request:
//!
//! ```json
//! {"publications":[{"channel":"a","data":{"n":1},"offset":7}],"cursor":"AdZ…",
//!  "positions":{"a":{"offset":7,"epoch":"Qk3x"},"b":{"offset":0,"epoch":"Qk3y"}}}
//! ```
//!
//! - No cursor: from now on. `cursor=0`: from the oldest publication the history holds. Otherwise the cursor of the
//!   last answer, as it is; it may be used again, and it may be used with other channels, which then begin now.
//! - `timeout` in seconds (`2.5`), or with a unit (`500ms`, `25s`); what is above the server's limit is cut to it.
//!   `timeout=0` answers at once.
//! - `gap` is there when something between the cursor and this answer is missing and will not come: a list of the
//!   channels and why, as `[{"channel":"a","reason":"expired"}]` ([`Gap`]). An item with `missed` instead of `data` counts publications dropped
//!   because too many came at once.

mod cursor;
mod request;
mod response;

pub use cursor::{Cursor, CursorError, Since};
pub use request::{PollLimits, PollRequest};
pub use response::{Gap, ResponseChannel, write_item, write_publication_item, write_response};
