#![doc = include_str!("../README.md")]
//!
//! ```
//! use dunlin_metrics::{Collector, DescriptorEncoder, Registry, metrics, text};
//!
//! metrics! {
//!     /// A metric of each worker.
//!     Metric,
//!     /// The metrics of one worker.
//!     Counters;
//!     Connections, Gauge, "connections", "Open connections.";
//!     BytesOut, Counter, "sent_bytes_total", "Bytes written.";
//! }
//!
//! #[derive(Debug, Default)]
//! struct Workers([Counters; 2]);
//!
//! impl Collector for Workers {
//!     fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
//!         let series = self.0.iter().enumerate();
//!         Counters::encode(&mut encoder, series.map(|(worker, counters)| ([("worker", worker)], counters)))
//!     }
//! }
//!
//! let workers = Workers::default();
//! workers.0[1].add(Metric::BytesOut, 17);
//! let mut registry = Registry::with_prefix("app");
//! registry.register_collector(Box::new(workers));
//! let text = text::openmetrics(&registry);
//! assert!(text.contains("# UNIT app_sent_bytes bytes\n"));
//! assert!(text.contains("app_sent_bytes_total{worker=\"1\"} 17\n"));
//! ```
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

mod counters;
mod family;
mod histogram;
mod labelled;
mod live;
pub mod text;

pub use family::{Family, Kind};
pub use histogram::{Histogram, Snapshot};
pub use labelled::{Cell, Count, LabelValue, Labelled, Labels, Pairs, SECONDS};
pub use live::LiveSeries;
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
pub use prometheus_client::registry::Registry;
