use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Map;
use crate::effect::settings;

settings! {
    /// What is logged, and in which format. Logs are written to standard error.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Log {
        /// The lowest level that is logged. The environment variable `DUNLIN_LOG` overrides it and may also name
        /// modules (`info,dunlin_net=debug`).
        pub level: LogLevel => Log,
        /// Levels of single targets, under the target's name: `dunlin::client`, `dunlin::api`, `dunlin::listener`,
        /// `dunlin::admin`, `dunlin::settings`, `dunlin::access`, `dunlin::message`, or the name of a module.
        /// See `docs/operating/log.md`.
        pub targets: Map<LogLevel> => Log,
        /// The format of a line.
        pub format: LogFormat => Log,
    }
}

/// The severity of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum LogLevel {
    /// Something was lost or failed.
    Error,
    /// Something that an operator should check.
    Warn,
    /// Starts, stops and changes.
    #[default]
    Info,
    /// Events of single connections.
    Debug,
    /// Events of single messages.
    Trace,
}

impl LogLevel {
    /// Returns its name in the settings.
    pub const fn as_str(&self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
