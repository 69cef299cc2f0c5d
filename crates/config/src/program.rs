use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;

settings! {
    /// A program in Luau that decides what clients may do, in the place of a proxy, or speaks a protocol. It has a sandbox of its own on each worker:
    /// 16 MiB of memory, and 2 ms for each event. `dunlin program` checks and tests one; see `docs/operating/hooks.md`
    /// and `docs/operating/protocols.md`.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
        /// How the bytes of a client become frames, if the program speaks a protocol: at listeners that name it as their `program`.
        pub framing: Framing => Programs,
        /// The longest frame, in bytes; with `framing = "raw"` the most that the program may leave for later. A client that sends a
        /// longer one is disconnected. On a WebSocket `limits.message_bytes_max` applies.
        #[schemars(range(min = 1, max = 1_048_576))]
        pub frame_bytes_max: usize => Programs,
        /// A path on the addresses of clients at which a WebSocket speaks the program's protocol: `"/irc"`. Each message is a frame. An
        /// empty one: none.
        pub websocket_path: Arc<str> => Programs,
    }
}

impl Default for Program {
    fn default() -> Program {
        Program {
            source: Arc::default(),
            on_error: OnError::default(),
            http_headers: Arc::default(),
            include_connection_meta: false,
            framing: Framing::default(),
            frame_bytes_max: 8_192,
            websocket_path: Arc::default(),
        }
    }
}

/// How the bytes of a client become frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Framing {
    /// Lines that end with LF or CRLF.
    #[default]
    Lines,
    /// A byte with the length, and so many bytes.
    Length8,
    /// Two bytes with the length, the most significant first.
    Length16,
    /// Two bytes with the length, the least significant first.
    Length16Le,
    /// Four bytes with the length, the most significant first.
    Length32,
    /// Four bytes with the length, the least significant first.
    Length32Le,
    /// The program cuts: it gets all bytes that there are, and returns how many it has taken.
    Raw,
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
