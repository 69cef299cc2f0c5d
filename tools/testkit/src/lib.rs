#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod addresses;
mod nats;
mod process;
mod program;
mod redis;
mod websocket;

pub use addresses::Addresses;
pub use nats::Nats;
pub use program::server_beside;
pub use redis::{Redis, free_port};
pub use websocket::{WebSocket, frame, handshake};
