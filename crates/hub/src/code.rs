//! Codes of the Centrifugal protocol that end a subscription or a connection.

/// Unsubscribed by the server API: do not subscribe again.
pub const UNSUBSCRIBE_SERVER: u32 = 2000;
/// The stream has a gap: subscribe again and recover.
pub const UNSUBSCRIBE_INSUFFICIENT_STATE: u32 = 2500;

/// The process shuts down: reconnect.
pub const DISCONNECT_SHUTDOWN: u32 = 3001;
/// The client does not read fast enough: reconnect.
pub const DISCONNECT_SLOW: u32 = 3008;
/// The client must reconnect.
pub const DISCONNECT_FORCE_RECONNECT: u32 = 3011;
/// Disconnected by the server API: do not come back.
pub const DISCONNECT_FORCE_NO_RECONNECT: u32 = 3503;

/// True when a client should come back after this disconnect code: 3000–3499, 4000–4499 and from
/// 5000.
pub const fn reconnects(code: u32) -> bool {
    matches!(code, 3000..=3499 | 4000..=4499 | 5000..)
}
