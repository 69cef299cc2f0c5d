//! Codes of errors and closes, and what clients do at them.

/// Why a connection is closed, or a message was refused.
///
/// At 4000–4099 clients do not come back; at 4100–4199 after a second or more; at 4200–4299 at once. An error from 4300 on
/// closes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PusherCode {
    /// No app has this key, or it was taken away.
    NoApp = 4001,
    /// The path names no app's key.
    BadPath = 4005,
    /// The protocol's version is no number.
    BadVersion = 4006,
    /// See [`VERSIONS`](super::VERSIONS).
    UnsupportedVersion = 4007,
    /// The request names no version of the protocol.
    NoVersion = 4008,
    /// The connection is not authorized, or its user was sent away.
    Unauthorized = 4009,
    /// There is no room now.
    OverCapacity = 4100,
    /// Come back at once.
    Reconnect = 4200,
    /// A ping was not answered.
    NoPong = 4201,
    /// A client event was refused, for there were too many, or it may not be sent there.
    ClientEventRefused = 4301,
}

impl PusherCode {
    /// The number.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// What the disconnect code of another protocol is for a client of this one. Codes that are this protocol's stay.
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
