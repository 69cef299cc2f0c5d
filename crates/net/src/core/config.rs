//! Limits and timeouts of a loop, of a listener and of an outgoing connection.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use dunlin_wire::http1;
use ipnet::IpNet;

use super::tls::{ClientTls, ServerTls};
use crate::timeout::TimeoutMs;

/// Limits of one event loop. Each bounds a resource that peers can consume.
#[derive(Clone, Debug)]
pub struct LoopConfig {
    /// Maximum number of open connections, at most 16,777,215. Further ones are accepted and closed at once, without allocating memory for
    /// them.
    pub connections_max: usize,
    /// Maximum number of accepted connections that the handler has not marked by
    /// [`mark_authenticated`](crate::Context::mark_authenticated). Beyond it, and when descriptors run out, the oldest
    /// of them are closed, so that peers which only hold connections open do not exclude others. `None`: connections
    /// are not distinguished.
    pub unauthenticated_max: Option<usize>,
    /// Size in bytes of the receive buffer that all connections of the loop share, which is also the maximum of one
    /// read.
    pub receive_bytes: usize,
    /// Bytes read from one connection before it is the turn of the others.
    pub read_budget_bytes: usize,
    /// Connections accepted from one listener before it is the turn of the others.
    pub accept_budget: usize,
    /// How long a listener waits after running out of descriptors or memory, in milliseconds.
    pub accept_retry_ms: u64,
    /// Maximum bytes buffered, in and out, for all connections together. Beyond it, writes return
    /// [`WriteError::Full`](crate::WriteError::Full) and connections whose input must be buffered are closed.
    pub buffered_bytes_max: usize,
    /// Resolution of connection deadlines in milliseconds. They fire at most this late and never early, and wake a
    /// sleeping loop at most this often. Timers have a resolution of one millisecond.
    pub deadline_tick_ms: u64,
    /// How long a closed connection may take to send its last bytes, and then how long its peer may take to send its
    /// FIN, in milliseconds each.
    pub linger_ms: u64,
    /// How long the addresses of a name are cached, in milliseconds.
    pub name_cache_ms: u64,
    /// Level of permessage-deflate, from 1 (fast) to 9 (small).
    pub deflate_level: u32,
    /// How late the input of [coalesced](crate::Context::coalesce_input) connections may be reported, in milliseconds;
    /// 0 disables coalescing.
    pub coalesce_ms: u64,
    /// Maximum number of events taken from the kernel in one call.
    pub events_max: usize,
    /// Maximum number of unused buffers kept for further connections, each of at most 32 KiB.
    pub spare_buffers_max: usize,
}

impl LoopConfig {
    pub(crate) fn linger(&self) -> TimeoutMs {
        NonZeroU64::new(self.linger_ms.max(1))
    }
}

impl Default for LoopConfig {
    fn default() -> LoopConfig {
        LoopConfig {
            connections_max: 4 << 20,
            unauthenticated_max: None,
            receive_bytes: 64 << 10,
            read_budget_bytes: 256 << 10,
            accept_budget: 256,
            accept_retry_ms: 100,
            buffered_bytes_max: 1 << 30,
            deadline_tick_ms: 16,
            linger_ms: 2000,
            name_cache_ms: 30_000,
            deflate_level: 1,
            coalesce_ms: 0,
            events_max: 1024,
            spare_buffers_max: 256,
        }
    }
}

/// The protocol of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Raw bytes.
    Tcp,
    /// HTTP/1.1, and the protocols that a request upgrades to.
    Http,
}

/// Timeout of a handshake if [`Limits::head_timeout_ms`] is `None`.
const HANDSHAKE_TIMEOUT_MS: TimeoutMs = NonZeroU64::new(10_000);

/// Timeouts and limits of connections. All connections of a listener share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes buffered for sending on one connection by [`write`](crate::Context::write) and functions based on
    /// it. A single response may exceed it if the buffer was empty.
    pub output_bytes_max: usize,
    /// Raw TCP: milliseconds without input after which the connection is closed.
    pub idle_timeout_ms: TimeoutMs,
    /// HTTP server: milliseconds from accept, or from a request's first byte, to the end of its head. A peer that has
    /// sent part of a head gets status 408. A TLS handshake, and before it a proxy's header, may take as long; ten
    /// seconds if this is `None`.
    pub head_timeout_ms: TimeoutMs,
    /// HTTP server: milliseconds from the end of a request's head to its last byte.
    pub body_timeout_ms: TimeoutMs,
    /// HTTP server: milliseconds between a response and the first byte of the next request.
    pub keep_alive_timeout_ms: TimeoutMs,
    /// Limits on heads and bodies of HTTP messages.
    pub http: http1::Limits,
    /// Maximum bytes of pipelined requests buffered after a request without a response. Beyond it, the connection is
    /// not read until the response is sent.
    pub pipelined_bytes_max: usize,
}

impl Limits {
    /// Returns the time allowed before the first request; never unlimited.
    pub(crate) fn handshake_timeout_ms(&self) -> TimeoutMs {
        self.head_timeout_ms.or(HANDSHAKE_TIMEOUT_MS)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            output_bytes_max: 1 << 20,
            idle_timeout_ms: None,
            head_timeout_ms: NonZeroU64::new(10_000),
            body_timeout_ms: NonZeroU64::new(10_000),
            keep_alive_timeout_ms: NonZeroU64::new(75_000),
            http: http1::Limits::default(),
            pipelined_bytes_max: 64 << 10,
        }
    }
}

/// Configuration of a listener.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// The protocol of its connections.
    pub role: Role,
    /// Use TLS. `on_open` then follows the handshake, which may take [`head_timeout_ms`](Limits::head_timeout_ms); a
    /// failed handshake is counted in `Stats::handshakes_failed`.
    pub tls: Option<ServerTls>,
    /// Networks of proxies that begin each connection with a header of the PROXY protocol, version 1 or 2, before any
    /// TLS. `on_accept` then follows the header and has the address in it. A malformed header, or one that does not
    /// arrive within [`head_timeout_ms`](Limits::head_timeout_ms), ends the connection and is counted in
    /// `Stats::proxy_failed`. Connections from other addresses have no such header.
    pub proxies: Arc<[IpNet]>,
    /// Timeouts and limits of its connections.
    pub limits: Limits,
    /// Allow several sockets to listen on the address, usually one per worker; the kernel distributes connections to
    /// them (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// Maximum number of connections that wait in the kernel to be accepted, at most `net.core.somaxconn`.
    pub backlog: i32,
}

impl Default for ListenConfig {
    fn default() -> ListenConfig {
        ListenConfig {
            role: Role::Tcp,
            tls: None,
            proxies: Arc::default(),
            limits: Limits::default(),
            reuse_port: false,
            backlog: 65_535,
        }
    }
}

impl ListenConfig {
    /// Returns the configuration for raw TCP.
    pub fn tcp() -> ListenConfig {
        ListenConfig::default()
    }

    /// Returns the configuration for HTTP, and WebSocket through it.
    pub fn http() -> ListenConfig {
        ListenConfig { role: Role::Http, ..ListenConfig::default() }
    }
}

/// Configuration of an outgoing connection.
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    /// Limits of the connection.
    pub limits: Limits,
    /// Maximum time of the attempt in milliseconds, including the TLS handshake. `None`: the kernel's timeout, which is
    /// minutes.
    pub timeout_ms: TimeoutMs,
    /// Milliseconds between two attempts if a host has several addresses (RFC 8305 §5).
    pub attempt_delay_ms: u64,
    /// The source address. With port 0, the kernel chooses the port when the destination is known, so each source
    /// address has 28,000 ports per destination.
    pub from: Option<SocketAddr>,
    /// Use TLS below the protocol: `on_connect` then follows the handshake. A failed handshake, most often because the
    /// certificate is not trusted, is reported by `on_connect_failed` with `ErrorKind::InvalidData`.
    pub tls: Option<ClientTls>,
}

impl Default for ConnectConfig {
    fn default() -> ConnectConfig {
        ConnectConfig {
            limits: Limits::default(),
            timeout_ms: NonZeroU64::new(10_000),
            attempt_delay_ms: dunlin_wire::dial::ATTEMPT_DELAY_MS,
            from: None,
            tls: None,
        }
    }
}
