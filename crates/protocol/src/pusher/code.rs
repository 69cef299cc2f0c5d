//! Codes of errors and closes, and the reaction of clients.

/// Why a connection is closed, or a message was rejected.
///
/// Clients do not reconnect after 4000–4099; they reconnect after at least a second after 4100–4199, and at once after
/// 4200–4299. Errors from 4300 on do not close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PusherCode {
    /// No app has this key, or the app was removed.
    NoApp = 4001,
    /// The path has no app key.
    BadPath = 4005,
    /// The protocol version is not a number.
    BadVersion = 4006,
    /// See [`VERSIONS`](super::VERSIONS).
    UnsupportedVersion = 4007,
    /// The request has no protocol version.
    NoVersion = 4008,
    /// The connection is not authorized, or its user was disconnected.
    Unauthorized = 4009,
    /// The server is over capacity.
    OverCapacity = 4100,
    /// The client should reconnect at once.
    Reconnect = 4200,
    /// A ping was not answered.
    NoPong = 4201,
    /// A client event was rejected: the rate is exceeded, or the channel does not permit it.
    ClientEventRefused = 4301,
}

impl PusherCode {
    /// Returns the number.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Returns the code for a disconnect code of another protocol. Codes of this protocol are unchanged.
    pub const fn of_disconnect(code: u32, reconnect: bool) -> u16 {
        match code {
            4000..=4299 => code as u16,
            // No pong, too many requests, connection limit.
            3012 => PusherCode::NoPong.code(),
            3013 | 3504 => PusherCode::OverCapacity.code(),
            _ if reconnect => PusherCode::Reconnect.code(),
            _ => PusherCode::Unauthorized.code(),
        }
    }
}
