//! The timers of a worker's loop.

/// What a timer is for; the loop carries its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Timer {
    /// Requests to backends that have waited too long, connections of engines to be made again; the number is the clients'.
    Backends,
    /// The clock, the gauges, requests past their deadline.
    Second,
    /// The next slice of clients is asked to reconnect.
    Drain,
    /// The accept rate has tokens again.
    Accept,
    /// The rate of TLS handshakes has.
    Handshake,
    /// Broadcasts that were held back may go on.
    Fanout,
    /// Commands that were held back may go on.
    Backlog,
    /// Calls of the server API that are held may go on.
    Calls,
    /// Timers of programs' connections.
    Programs,
}

impl Timer {
    pub(super) fn from_u64(number: u64) -> Option<Timer> {
        const ALL: [Timer; 9] = [
            Timer::Backends,
            Timer::Second,
            Timer::Drain,
            Timer::Accept,
            Timer::Handshake,
            Timer::Fanout,
            Timer::Backlog,
            Timer::Calls,
            Timer::Programs,
        ];
        ALL.into_iter().find(|timer| *timer as u64 == number)
    }
}
