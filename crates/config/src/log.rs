use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::LIVE;

/// What is logged, and in which form. Logs go to standard error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The least severe level that is logged. The environment variable `DUNLIN_LOG` goes before it
    /// and may name modules too (`info,dunlin_net=debug`).
    #[schemars(extend("x-applies" = LIVE))]
    pub level: LogLevel,
    /// The form of a line.
    #[schemars(extend("x-applies" = LIVE))]
    pub format: LogFormat,
}

/// How severe a line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum LogLevel {
    /// Something was lost or refused to work.
    Error,
    /// Something an operator should look at.
    Warn,
    /// Starts, stops and changes.
    #[default]
    Info,
    /// What happens to single connections.
    Debug,
    /// What happens to single messages.
    Trace,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum LogFormat {
    /// For a person.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
