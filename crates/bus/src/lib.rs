#![doc = include_str!("../README.md")]
#![warn(clippy::missing_errors_doc)]

#[cfg(all(feature = "tokio", not(loom)))]
mod async_doorbell;
mod counter;
mod doorbell;
mod endpoint;
mod mesh;
mod port;
mod request_table;
mod ring;
mod rollout;
mod send_error;
mod stats;
mod sync;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(feature = "tokio", not(loom)))]
pub use async_doorbell::AsyncDoorbell;
pub use endpoint::Endpoint;
pub use mesh::{ENDPOINTS_MAX, MeshConfig, mesh};
pub use port::EndpointState;
pub use request_table::{RequestId, RequestTable, TableFull};
pub use rollout::{AdoptionAwaited, FollowerState, Rollout};
pub use send_error::{BroadcastOutcome, SendError};
pub use stats::{EdgeStats, Monitor};
