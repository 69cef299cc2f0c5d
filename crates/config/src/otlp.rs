use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Map, Secret};

settings! {
    /// Traces and metrics for a collector of OpenTelemetry (OTLP over HTTP). See `docs/operating/tracing.md`.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Otlp {
        /// The URL of the collector: `http://10.0.0.9:4318`; `/v1/traces` and `/v1/metrics` are appended. Empty: nothing
        /// is sent.
        pub endpoint: Arc<str> => Otlp,
        /// Headers of every request: `Authorization = "Bearer ..."`.
        pub headers: Map<Secret> => Otlp,
        /// Certificate authorities in PEM to trust instead of the system's.
        pub ca: Option<Arc<str>> => Otlp,
        /// Of a million calls, publications and questions to backends that belong to no trace yet, how many begin one.
        /// What comes with a `traceparent` follows its flag instead: it is traced if its caller traces it.
        #[schemars(range(max = 1_000_000))]
        pub sampled_per_million: u32 => Otlp,
        /// Milliseconds between two exports of the metrics; 0: only traces are sent.
        #[schemars(range(max = 3_600_000))]
        pub metrics_interval_ms: u64 => Otlp,
        /// Time limit for the response to a request.
        #[schemars(range(min = 100, max = 60_000))]
        pub timeout_ms: u64 => Otlp,
    }
}

impl Default for Otlp {
    fn default() -> Otlp {
        Otlp {
            endpoint: Arc::default(),
            headers: Map::new(),
            ca: None,
            sampled_per_million: 10_000,
            metrics_interval_ms: 60_000,
            timeout_ms: 10_000,
        }
    }
}
