//! Limits and timeouts of a client and its hosts.

use std::net::SocketAddr;
use std::num::NonZeroU64;

use dunlin_net::{TimeoutMs, Tls};

use crate::{ConnectionLimits, WindowConfig};

/// The number of requests in flight on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// A fixed number, at least 1. 1 sends one request at a time.
    Fixed(u32),
    /// Adapted to rate and round trip, within limits; see [`Window`](crate::Window).
    Auto(WindowConfig),
}

impl Depth {
    /// Returns a depth that adapts to rate and round trip, within the default limits.
    pub fn auto() -> Depth {
        Depth::Auto(WindowConfig::default())
    }
}

/// Settings of a client for all hosts.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Milliseconds between attempts to connect to different addresses of a host (RFC 8305 §5).
    pub attempt_delay_ms: u64,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig { attempt_delay_ms: 250 }
    }
}

/// Settings of a client for one host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Most connections. As many are opened as the queued requests can fill.
    pub connections: u32,
    /// Requests in flight on each connection.
    pub depth: Depth,
    /// Most queued requests. Beyond it [`send`](crate::Requests::send) returns an error.
    pub queue_max: usize,
    /// Most bytes of queued requests. Beyond it [`send`](crate::Requests::send) returns an error.
    pub queue_bytes_max: usize,
    /// Time limit in milliseconds for the answer to the oldest request of a connection, from the time it became the
    /// oldest.
    pub answer_timeout_ms: TimeoutMs,
    /// Most milliseconds that a request is queued.
    pub queue_timeout_ms: TimeoutMs,
    /// Time limit in milliseconds for opening a connection to one address, including TLS. `None`: the limit of the
    /// kernel.
    pub connect_timeout_ms: TimeoutMs,
    /// Consecutive failed attempts to connect after which the queued requests fail; at least 1.
    pub connect_attempts: u32,
    /// Milliseconds after which a connection without requests is closed. `None`: the server closes it.
    pub idle_timeout_ms: TimeoutMs,
    /// How often an idempotent request is sent again after a connection ended without notice.
    pub replays_max: u8,
    /// Most bytes of a gathered body. Streamed and counted bodies have no limit.
    pub body_bytes_max: usize,
    /// Limits of the answers.
    pub limits: ConnectionLimits,
    /// Addresses to connect to, preferred first, instead of resolving the name.
    pub addresses: Vec<SocketAddr>,
    /// TLS settings for `https`. `None`: the system's root certificates.
    pub tls: Option<Tls>,
}

impl HostConfig {
    /// Returns the settings for requests that are made one at a time, and now and then: one connection, nothing queued, answers of at most
    /// `answer_bytes_max` bytes within `timeout_ms` (0: no limit).
    pub fn one_at_a_time(timeout_ms: u64, answer_bytes_max: usize) -> HostConfig {
        let timeout_ms = NonZeroU64::new(timeout_ms);
        HostConfig {
            connections: 1,
            depth: Depth::Fixed(1),
            queue_max: 1,
            answer_timeout_ms: timeout_ms,
            queue_timeout_ms: timeout_ms,
            connect_timeout_ms: timeout_ms,
            connect_attempts: 1,
            replays_max: 1,
            body_bytes_max: answer_bytes_max,
            // Stops reading an endless response.
            limits: ConnectionLimits {
                body_bytes_max: answer_bytes_max as u64,
                ..ConnectionLimits::default()
            },
            ..HostConfig::default()
        }
    }
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
