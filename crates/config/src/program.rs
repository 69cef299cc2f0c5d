use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;

settings! {
    /// A program in Luau that decides what clients may do, in the place of a proxy. It has a sandbox of its own on each worker:
    /// 16 MiB of memory, and 2 ms for each event. `dunlin program` checks and tests one; see `docs/operating/hooks.md`.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Program {
        /// The source; at most 256 KiB. It ends with `return { publish = function(event) ... end }`, with a function for each
        /// event that it is asked about.
        pub source: Arc<str> => Programs,
        /// The result if the program fails: it raises an error, or needs more time or memory than it may. Has to be chosen.
        pub on_error: OnError => Programs,
        /// Headers of the client's HTTP request that the program sees as `event.headers`: `["Cookie", "Origin"]`.
        pub http_headers: Arc<[String]> => Programs,
        /// Whether the program sees the `meta` of the connection, from its token or from who has decided on its connect.
        pub include_connection_meta: bool => Programs,
    }
}

/// The result if a program fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OnError {
    /// Nothing is chosen, and the program is not accepted.
    #[default]
    Unset,
    /// The operation is refused with error 100 (internal server error), and the client may try again.
    Deny,
    /// The operation is judged as without the program: by the namespace's `allow_…` keys, or by `client.anonymous`.
    Allow,
}
