//! The mesh, on one thread and on several.
#![cfg(not(loom))]

mod epoll;
mod mesh;
mod properties;
mod sleep;
#[cfg(feature = "tokio")]
mod tokio;
