//! Counters of a loop.

/// Counters of one loop. They only grow, except for the gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that blocked in the kernel.
    pub sleeps: u64,
    /// Events taken from the kernel.
    pub events: u64,
    /// Connections accepted and kept.
    pub accepted: u64,
    /// Connections accepted and closed at once, by [`Admit::Refuse`](crate::Admit::Refuse) or at
    /// `connections_max`.
    pub refused: u64,
    /// Failed accepts for lack of descriptors or memory (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`).
    pub accept_failed: u64,
    /// Unauthenticated connections closed to make room for newer ones; see
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max).
    pub displaced: u64,
    /// Connections of proxies that ended before their PROXY protocol header was complete.
    pub proxy_failed: u64,
    /// TLS handshakes of accepted connections that failed.
    pub handshakes_failed: u64,
    /// Outgoing connections that opened.
    pub connected: u64,
    /// Outgoing connections that failed to open.
    pub connect_failed: u64,
    /// Connections that ended.
    pub closed: u64,
    /// Connections closed for a protocol error.
    pub protocol_errors: u64,
    /// Connections closed by the loop's own deadline.
    pub timed_out: u64,
    /// Requests delivered to the handler.
    pub requests: u64,
    /// WebSocket messages delivered to the handler.
    pub messages: u64,
    /// Calls of `recv`.
    pub reads: u64,
    /// Calls of `send` and `sendmsg`.
    pub writes: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes that the kernel accepted for sending.
    pub bytes_out: u64,
    /// Writes that returned [`WriteError::Full`](crate::WriteError::Full).
    pub refused_writes: u64,
    /// Gauge: connections with an open descriptor, including lingering ones.
    pub connections: usize,
    /// Gauge: unauthenticated connections, if the loop distinguishes them.
    pub unauthenticated: usize,
    /// Gauge: bytes buffered in and out for all connections.
    pub buffered_bytes: usize,
}
