//! What travels on the bus: between workers, and from the control thread to them.

use dunlin_hub::SessionId;

/// One message on the bus.
pub(crate) enum Parcel {
    /// Between the hubs of two workers.
    Hub(dunlin_hub::Message),
    /// What a client posted to `/emulation` at a worker that does not own its session.
    Emulation {
        /// Whose commands these are; the token was verified by the sender.
        session: SessionId,
        /// The commands, newline-delimited.
        frame: Box<[u8]>,
    },
    /// Stop accepting, ask clients to reconnect, spread over the configured time.
    Drain,
    /// Leave the event loop.
    Stop,
    /// Panic, to see what is left standing.
    #[cfg(test)]
    Panic,
}
