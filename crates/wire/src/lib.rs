#![doc = include_str!("../README.md")]
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

pub mod backoff;
pub mod dial;
pub mod fair_queue;
pub mod fossil;
pub mod http1;
pub mod http2;
pub mod nats;
pub mod protobuf;
pub mod proxy;
pub mod random;
pub mod resp;
pub mod sse;
pub mod text;
mod token;
pub mod websocket;
