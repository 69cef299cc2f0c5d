//! Long-poll: `GET /connection/poll?channel=a&channel=b&cursor=…&timeout=25`.
//!
//! For clients that can only send plain HTTP requests. The response is sent as soon as there is
//! something after the cursor, or empty at the timeout. It always has the cursor for the next
//! request:
//!
//! ```json
//! {"publications":[{"channel":"a","data":{"n":1},"offset":7}],"cursor":"AdZ…",
//!  "positions":{"a":{"offset":7,"epoch":"Qk3x"},"b":{"offset":0,"epoch":"Qk3y"}}}
//! ```
//!
//! - No cursor: from now on. `cursor=0`: from the oldest publication in the history. Otherwise the
//!   cursor of an earlier response, which may be reused, also with other channels; those begin from
//!   now on.
//! - `timeout` in seconds (`2.5`) or with a unit (`500ms`, `25s`), at most the server's limit.
//!   `timeout=0` responds at once.
//! - `gap` lists the channels with lost publications between the cursor and this response, as
//!   `[{"channel":"a","reason":"expired"}]` ([`Gap`]). An item with `missed` instead of `data`
//!   counts publications that were dropped because too many arrived at once.

mod cursor;
mod request;
mod response;

pub use cursor::{Cursor, CursorError, Since};
pub use request::{PollLimits, PollRequest};
pub use response::{Gap, ResponseChannel, write_item, write_publication_item, write_response};
