//! What a loop has done since it began.

/// Counters of one loop. They only grow, except for the gauges named so.
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
    /// Connections accepted and closed at once, by [`Admit::Refuse`](crate::Admit::Refuse) or because
    /// `connections_max` was reached.
    pub refused: u64,
    /// Failures of accept for want of descriptors or memory (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`).
    pub accept_failed: u64,
    /// Connections closed unauthenticated, to make room for newer ones; see
    /// [`unauthenticated_max`](crate::LoopConfig::unauthenticated_max).
    pub displaced: u64,
    /// Connections of proxies that ended before a header of the PROXY protocol was complete.
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
    /// Connections closed because a deadline of the loop's own passed.
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
    /// Bytes the kernel took for sending.
    pub bytes_out: u64,
    /// Writes refused as full.
    pub refused_writes: u64,
    /// Gauge: connections with a descriptor open, those lingering included.
    pub connections: usize,
    /// Gauge: unauthenticated connections, if the loop distinguishes them.
    pub unauthenticated: usize,
    /// Gauge: bytes buffered in and out for all connections.
    pub buffered_bytes: usize,
}
