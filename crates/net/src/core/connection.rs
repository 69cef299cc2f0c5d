//! The id and the record of a connection. An idle connection uses no other memory.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::CloseReason;
use super::spill::Spill;
use super::upper::{Protocol, Spoken};
use super::wheel::TimerLink;

/// Identifies a connection of one loop. Once the connection has ended, its id is recognised as stale; so it is in any other
/// loop.
///
/// Records are reused. The generation distinguishes the successive connections of a record, so that a stale id never
/// refers to a newer connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    pub(crate) const fn new(index: u32, generation: u32) -> ConnId {
        ConnId { index, generation }
    }

    /// Returns the index of the record. It is small, dense and reused, so an application can use it as a table index.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the generation, which distinguishes the successive connections of the record.
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// Returns the id as one number: the generation in the upper bits, the index in the lower.
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// Converts the result of [`ConnId::to_u64`] back. Any number is an id; most are stale.
    pub const fn from_u64(id: u64) -> ConnId {
        ConnId { index: id as u32, generation: (id >> 32) as u32 }
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Free,
    /// `connect` is in progress, or the name is being resolved.
    Connecting,
    /// Connected; the TLS handshake is in progress.
    Securing,
    /// Accepted from a proxy, whose header has not arrived: the handler does not know the connection.
    Announcing,
    /// Accepted; the TLS handshake is in progress: the handler does not know the id yet.
    Accepting,
    /// Was open; a TLS handshake is in progress (`begin_tls`). Output waits for its end.
    Upgrading,
    Open,
    /// Closed by the handler; buffered output is still sent. Input is neither read nor delivered.
    Draining,
    /// In the list of connections whose `on_close` is due.
    Closed,
    /// `on_close` was called and FIN sent. Further input is dropped until the peer's FIN: the kernel would respond to
    /// it with RST, and the peer would lose our last bytes.
    Lingering,
}

impl Phase {
    /// Returns whether the handler knows the id of this connection.
    pub(crate) fn is_known(self) -> bool {
        !matches!(self, Phase::Announcing | Phase::Accepting | Phase::Closed | Phase::Lingering)
    }

    /// Returns whether the connection is not open yet, or not open again: output waits.
    pub(crate) fn is_opening(self) -> bool {
        matches!(self, Phase::Connecting | Phase::Securing | Phase::Upgrading)
    }
}

/// Why a closing connection ends; the greatest reason applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The handler closed it.
    #[default]
    Local,
    /// The peer closed it.
    Peer,
    /// The peer violated the protocol.
    ProtocolError,
    /// A request did not arrive in time; the peer gets status 408.
    TimedOut,
}

impl From<End> for CloseReason {
    fn from(end: End) -> CloseReason {
        match end {
            End::Local => CloseReason::Local,
            End::Peer => CloseReason::Peer,
            End::ProtocolError => CloseReason::ProtocolError,
            End::TimedOut => CloseReason::TimedOut,
        }
    }
}

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:expr;)*) => {
        impl Flags {
            $($(#[$doc])* pub(crate) const $name: Flags = Flags(1 << $bit);)*
        }
    };
}

/// State of a connection's stream as bits, independent of its protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

flags! {
    /// The socket took less than offered: a writable event will follow.
    SOCKET_FULL = 0;
    /// The handler must be notified by `on_writable`.
    WANT_WRITE = 1;
    /// In the list of connections with corked output.
    CORKED = 2;
    /// The socket may have unread bytes that no event will report.
    READ_READY = 3;
    /// In the list of connections to read in the next turn.
    READ_QUEUED = 4;
    /// Input is not read for now.
    READ_PAUSED = 5;
    /// The peer has sent its FIN.
    PEER_FINISHED = 6;
    /// The handler requested a FIN after the output.
    SHUTDOWN_WRITE = 7;
    /// FIN was sent.
    WRITE_FINISHED = 8;
    /// The deadline in the link belongs to the loop, not to the handler.
    OWN_DEADLINE = 9;
    /// Each read restarts the deadline in the link.
    IDLE_DEADLINE = 10;
    /// In the list of connections whose buffered input is to be processed again.
    RESUME_QUEUED = 11;
    /// The descriptor can be closed right after FIN: no more relevant input is expected.
    CLOSE_AT_ONCE = 12;
    /// Input and output are TLS records.
    TLS = 13;
    /// In the list of connections with a write rejected by the loop's memory limit.
    MEMORY_BLOCKED = 14;
    /// Accepted and not yet authenticated.
    UNAUTHENTICATED = 15;
}

impl Flags {
    pub(crate) fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Flags) {
        self.0 |= flag.0;
    }

    pub(crate) fn clear(&mut self, flag: Flags) {
        self.0 &= !flag.0;
    }

    pub(crate) fn put(&mut self, flag: Flags, on: bool) {
        if on { self.set(flag) } else { self.clear(flag) }
    }

    /// Clears the flag and returns whether it was set.
    pub(crate) fn take(&mut self, flag: Flags) -> bool {
        let was = self.has(flag);
        self.clear(flag);
        was
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// The record of a connection. It has no buffers and no closures: what an idle connection does not need is in the loop,
/// or in a [`Spill`] borrowed from its pool.
#[derive(Debug)]
pub(crate) struct Conn<D> {
    /// The deadline and the place in the wheel.
    pub(crate) link: TimerLink,
    /// Incomplete input and unsent output; `None` while there is neither.
    pub(crate) spill: Option<Box<Spill>>,
    pub(crate) generation: u32,
    pub(crate) flags: Flags,
    /// `None` while the record is free, or while the name is resolved and its addresses are tried.
    pub(crate) fd: Option<OwnedFd>,
    /// Index of the connection's limits and timeouts.
    pub(crate) profile: u16,
    pub(crate) protocol: Protocol,
    pub(crate) phase: Phase,
    pub(crate) end: End,
    pub(crate) data: D,
}

/// Size of a record in bytes, without the handler's data.
pub(crate) const CONN_BYTES: usize = 40;
const _: () = assert!(size_of::<Conn<()>>() <= CONN_BYTES);
const _: () = assert!(size_of::<Protocol>() == 2);
const _: () = assert!(size_of::<Conn<[u64; 3]>>() <= CONN_BYTES + 24);

impl<D: Default> Conn<D> {
    pub(crate) fn free(generation: u32) -> Conn<D> {
        Conn {
            link: TimerLink::default(),
            spill: None,
            generation,
            flags: Flags::default(),
            fd: None,
            profile: 0,
            protocol: Protocol::RAW,
            phase: Phase::Free,
            end: End::Local,
            data: D::default(),
        }
    }

    pub(crate) fn open(
        &mut self,
        fd: Option<OwnedFd>,
        protocol: Protocol,
        profile: u16,
        phase: Phase,
    ) {
        debug_assert!(self.fd.is_none() && self.spill.is_none() && self.phase == Phase::Free);
        self.fd = fd;
        (self.flags, self.end) = (Flags::default(), End::Local);
        (self.protocol, self.profile, self.phase) = (protocol, profile, phase);
    }

    /// Closes the descriptor, and makes the id of this connection stale.
    pub(crate) fn vacate(&mut self) {
        debug_assert!(self.spill.is_none(), "buffers go back to the pool first");
        self.fd = None;
        self.phase = Phase::Free;
        self.generation = self.generation.wrapping_add(1).max(1);
        self.data = D::default();
    }
}

impl<D> Conn<D> {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("only a record in use is asked for its descriptor").as_fd()
    }

    /// Returns whether input must wait: until the current request has a response, or until the socket takes earlier
    /// responses. A peer that sends requests but does not read gets no further responses, and is finally not read from.
    pub(crate) fn holds_input(&self) -> bool {
        let is_blocked = self.flags.has(Flags::SOCKET_FULL) && self.output_bytes() > 0;
        self.protocol.holds_input(is_blocked)
    }

    /// Returns the number of bytes buffered for sending.
    pub(crate) fn output_bytes(&self) -> usize {
        self.spill.as_ref().map_or(0, |spill| spill.output.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_costs_forty_bytes_and_its_data() {
        assert_eq!(size_of::<Conn<()>>(), CONN_BYTES);
        assert_eq!(size_of::<Conn<[u64; 4]>>(), CONN_BYTES + 32);
    }

    #[test]
    fn an_id_survives_the_round_trip_through_a_number() {
        let id = ConnId::new(7, 0xdead_beef);
        assert_eq!(ConnId::from_u64(id.to_u64()), id);
        assert_eq!(id.to_string(), "7.3735928559");
    }
}
