//! Bounds and time-outs of a client and of the hosts it asks.

use std::net::SocketAddr;
use std::num::NonZeroU64;

use dunlin_net::{TimeoutMs, Tls};

use crate::{ConnectionLimits, WindowConfig};

/// How many requests to keep in flight on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As many, at least 1. 1 sends one request at a time.
    Fixed(u32),
    /// As many as rate and distance ask for, within bounds; see [`Window`](crate::Window).
    Auto(WindowConfig),
}

impl Depth {
    /// Found from rate and round trip, within the default bounds.
    pub fn auto() -> Depth {
        Depth::Auto(WindowConfig::default())
    }
}

/// Bounds of a client over all hosts.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Milliseconds between two attempts to reach a host by different addresses (RFC 8305 §5).
    pub attempt_delay_ms: u64,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig { attempt_delay_ms: 250 }
    }
}

/// How requests are sent to one host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Connections at most. As many are opened as the requests waiting can fill.
    pub connections: u32,
    /// Requests in flight on each.
    pub depth: Depth,
    /// Requests waiting to leave. Beyond it [`send`](crate::Requests::send) refuses.
    pub queue_max: usize,
    /// Bytes of requests waiting to leave. Beyond it [`send`](crate::Requests::send) refuses.
    pub queue_bytes_max: usize,
    /// Milliseconds the oldest request of a connection may take to be answered, counted from when it became the
    /// oldest.
    pub answer_timeout_ms: TimeoutMs,
    /// Milliseconds a request may wait to leave.
    pub queue_timeout_ms: TimeoutMs,
    /// Milliseconds to open a connection, TLS included, by one address. `None`: as long as the kernel tries.
    pub connect_timeout_ms: TimeoutMs,
    /// Times in a row that no connection could be opened until the requests waiting are given up; at least 1.
    pub connect_attempts: u32,
    /// Milliseconds after which a connection without requests is closed. `None`: when the server does.
    pub idle_timeout_ms: TimeoutMs,
    /// Times an idempotent request is sent again after a connection ended without a word.
    pub replays_max: u8,
    /// Bytes of a body that is gathered. Streamed and counted bodies have no bound.
    pub body_bytes_max: usize,
    /// Bounds on what the server says.
    pub limits: ConnectionLimits,
    /// Addresses to connect to instead of those the name resolves to, best first.
    pub addresses: Vec<SocketAddr>,
    /// Whom to trust, for `https`. `None`: the system's roots.
    pub tls: Option<Tls>,
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        HostConfig {
            connections: 4,
            depth: Depth::auto(),
            queue_max: 10_000,
            queue_bytes_max: 16 << 20,
            answer_timeout_ms: NonZeroU64::new(30_000),
            queue_timeout_ms: NonZeroU64::new(30_000),
            connect_timeout_ms: NonZeroU64::new(10_000),
            connect_attempts: 3,
            idle_timeout_ms: NonZeroU64::new(60_000),
            replays_max: 5,
            body_bytes_max: 1 << 20,
            limits: ConnectionLimits::default(),
            addresses: Vec::new(),
            tls: None,
        }
    }
}
