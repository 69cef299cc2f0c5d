//! Limits and timeouts of a loop, of a listener and of an outgoing connection.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use dunlin_wire::http1;
use ipnet::IpNet;

use super::tls::{ClientTls, ServerTls};
use crate::timeout::TimeoutMs;

/// Limits of one event loop. Each bounds a resource that peers can make it use.
#[derive(Clone, Debug)]
pub struct LoopConfig {
    /// Most open connections. Further ones are accepted and closed at once, without memory for them.
    pub connections_max: usize,
    /// Accepted connections at once that the handler has not vouched for by
    /// [`mark_authenticated`](crate::Context::mark_authenticated). Beyond it, and when descriptors run out, the oldest of
    /// them are closed, so that peers which only hold connections open keep nobody out. `None`: all connections are treated alike.
    pub unauthenticated_max: Option<usize>,
    /// Size in bytes of the receive buffer that all connections of the loop share; also the most that one read takes.
    pub receive_bytes: usize,
    /// Bytes read from one connection before the others get their turn.
    pub read_budget_bytes: usize,
    /// Connections accepted from one listener before the others get their turn.
    pub accept_budget: usize,
    /// How long a listener waits after running out of descriptors or memory, in milliseconds.
    pub accept_retry_ms: u64,
    /// Bytes buffered, in and out, for all connections together. Beyond it writes are refused as full and
    /// connections that need input buffered are closed.
    pub buffered_bytes_max: usize,
    /// Resolution of connection deadlines in milliseconds. They fire up to this much late and never early, and a
    /// sleeping loop wakes for them no more often. Timers have a resolution of one millisecond.
    pub deadline_tick_ms: u64,
    /// How long a closed connection may take to accept our last bytes, and to send its FIN after ours, in
    /// milliseconds each.
    pub linger_ms: u64,
    /// How long the addresses of a name are used before it is resolved again, in milliseconds.
    pub name_cache_ms: u64,
    /// Level of permessage-deflate, from 1 (fast) to 9 (small).
    pub deflate_level: u32,
    /// How late the input of connections that are [coalesced](crate::Context::coalesce_input) may be reported, in
    /// milliseconds; 0: not at all, and none is.
    pub coalesce_ms: u64,
    /// Events taken from the kernel at once.
    pub events_max: usize,
    /// Buffers kept for the next connection that needs one, each of 32 KiB at most.
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
    /// Bytes as they come.
    Tcp,
    /// HTTP/1.1, and the protocols that a request upgrades to.
    Http,
}

/// Of a handshake where heads have no bound.
const HANDSHAKE_TIMEOUT_MS: TimeoutMs = NonZeroU64::new(10_000);

/// Timeouts and bounds of connections. All connections of a listener share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes buffered for sending on one connection by [`write`](crate::Context::write) and what is built on
    /// it. A single answer may exceed it if the buffer was empty.
    pub output_bytes_max: usize,
    /// Raw TCP: milliseconds without input after which the connection is closed.
    pub idle_timeout_ms: TimeoutMs,
    /// HTTP server: milliseconds from accept, or from a request's first byte, to the end of its head. A peer that sent
    /// part of one is answered with status 408. A TLS handshake, and before it a proxy's header, may take as long, and ten
    /// seconds where this is `None`.
    pub head_timeout_ms: TimeoutMs,
    /// HTTP server: milliseconds from the end of a request's head to its last byte.
    pub body_timeout_ms: TimeoutMs,
    /// HTTP server: milliseconds between an answer and the first byte of the next request.
    pub keep_alive_timeout_ms: TimeoutMs,
    /// Bounds on heads and bodies of HTTP messages.
    pub http: http1::Limits,
    /// Bytes of pipelined requests kept waiting behind one whose answer is outstanding. Beyond it the
    /// connection is not read from until it has been answered.
    pub pipelined_bytes_max: usize,
}

impl Limits {
    /// Bounds what precedes the first request, also where no timeout is set.
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

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// What is spoken on it.
    pub role: Role,
    /// Speak TLS below that. `on_open` then follows the handshake, which may take
    /// [`head_timeout_ms`](Limits::head_timeout_ms); one that fails is counted in `Stats::handshakes_failed`.
    pub tls: Option<ServerTls>,
    /// Networks of proxies that begin each connection with a header of the PROXY protocol, version 1 or 2, before TLS if
    /// there is that too: `on_accept` then follows the header, with the address it names. One that is malformed, or does
    /// not come within [`head_timeout_ms`](Limits::head_timeout_ms), ends the connection, as counted in
    /// `Stats::proxy_failed`. Connections from other addresses are served without such a header.
    pub proxies: Arc<[IpNet]>,
    /// Timeouts and limits of its connections.
    pub limits: Limits,
    /// Let several sockets listen on the address, the kernel spreading connections over them
    /// (`SO_REUSEPORT`): one a worker.
    pub reuse_port: bool,
    /// Connections the kernel keeps waiting for accept. It takes at most `net.core.somaxconn`.
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
    /// A listener for raw TCP.
    pub fn tcp() -> ListenConfig {
        ListenConfig::default()
    }

    /// A listener for HTTP, and WebSocket through it.
    pub fn http() -> ListenConfig {
        ListenConfig { role: Role::Http, ..ListenConfig::default() }
    }
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    /// Limits of the connection.
    pub limits: Limits,
    /// Milliseconds until the attempt is given up, the TLS handshake included. `None`: when the kernel does,
    /// after minutes.
    pub timeout_ms: TimeoutMs,
    /// Milliseconds between two attempts when a host has several addresses (RFC 8305 §5).
    pub attempt_delay_ms: u64,
    /// The address to connect from. With port 0 the kernel chooses one only when the destination is known,
    /// so that each source address has its 28,000 ports a destination.
    pub from: Option<SocketAddr>,
    /// Speak TLS below the protocol: `on_connect` then follows the handshake. A handshake that fails, most often because the
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
