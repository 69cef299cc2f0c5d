//! A connection: its id, and its record. An idle connection costs its record alone.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::CloseReason;
use super::spill::Spill;
use super::upper::{Protocol, Spoken};
use super::wheel::TimerLink;

/// Identifies a connection for as long as it lives; afterwards the id is recognised as stale.
///
/// Records are reused. The generation distinguishes the connections that have used one record, so that an id kept too
/// long reaches no connection instead of another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    pub(crate) const fn new(index: u32, generation: u32) -> ConnId {
        ConnId { index, generation }
    }

    /// The index of the record: small, dense and reused, so that it can index a table of the application's.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Which of the connections that have used this record it is.
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// The id as one number: the generation in the upper bits, the index in the lower.
    pub const fn to_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The inverse of [`ConnId::to_u64`]. Any number is an id; most are stale.
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

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Free,
    /// `connect` is under way, or the name is being resolved.
    Connecting,
    /// Connected, and the TLS handshake is under way.
    Securing,
    /// Accepted from a proxy, whose header is awaited: the handler does not know of it.
    Announcing,
    /// Accepted, and the TLS handshake is under way: the handler does not know its id yet.
    Accepting,
    /// It was open, and its TLS handshake is under way (`begin_tls`): what is written meanwhile waits for it.
    Upgrading,
    Open,
    /// The handler closed it; what is buffered still leaves. Nothing is read or handed out any more.
    Draining,
    /// In the list of those whose `on_close` is due.
    Closed,
    /// `on_close` has been called and FIN sent; what the peer still sends is dropped until its FIN, lest
    /// the kernel answer it with RST and the peer lose our last bytes.
    Lingering,
}

impl Phase {
    /// Whether the handler knows the id of this connection.
    pub(crate) fn is_known(self) -> bool {
        !matches!(self, Phase::Announcing | Phase::Accepting | Phase::Closed | Phase::Lingering)
    }

    /// Not open yet, or not open again: what is written waits.
    pub(crate) fn is_opening(self) -> bool {
        matches!(self, Phase::Connecting | Phase::Securing | Phase::Upgrading)
    }
}

/// Why a connection that is being closed ends: the last that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The handler closed it.
    #[default]
    Local,
    /// The peer began to end it.
    Peer,
    /// The peer broke the protocol.
    ProtocolError,
    /// A request did not arrive in time, and the peer is sent status 408.
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

/// State of a connection's stream, a bit each; none of it belongs to a protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

flags! {
    /// The socket took less than it was given: a writable event is on its way.
    SOCKET_FULL = 0;
    /// The handler is owed an `on_writable`.
    WANT_WRITE = 1;
    /// In the list of those with corked output.
    CORKED = 2;
    /// Bytes may wait in the socket although no event will say so again.
    READ_READY = 3;
    /// In the list of those to be read from in the next turn.
    READ_QUEUED = 4;
    /// No more input is taken for now.
    READ_PAUSED = 5;
    /// The peer has sent its FIN.
    PEER_FINISHED = 6;
    /// The handler asked for a FIN once the output has left.
    SHUTDOWN_WRITE = 7;
    /// FIN has been sent.
    WRITE_FINISHED = 8;
    /// The deadline in the link is the loop's own, not the handler's.
    OWN_DEADLINE = 9;
    /// The deadline in the link is moved on by every read.
    IDLE_DEADLINE = 10;
    /// In the list of those whose buffered input is to be looked at again.
    RESUME_QUEUED = 11;
    /// FIN can be followed by close: nothing more is to come from the peer that matters.
    CLOSE_AT_ONCE = 12;
    /// What is read and written are TLS records.
    TLS = 13;
    /// In the list of those refused for what the loop buffers for others.
    MEMORY_BLOCKED = 14;
    /// Accepted, and nobody has vouched for it yet.
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

    /// Clears the flag and says whether it was set.
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

/// The record of a connection. No buffer, no closure: what an idle connection does not need lives in the
/// loop, or in a [`Spill`] borrowed from its pool.
#[derive(Debug)]
pub(crate) struct Conn<D> {
    /// Its deadline and its place in the wheel.
    pub(crate) link: TimerLink,
    /// Bytes cut short and bytes not yet sent; `None` while there are none.
    pub(crate) spill: Option<Box<Spill>>,
    pub(crate) generation: u32,
    pub(crate) flags: Flags,
    /// `None` while the record is free, or its name is being resolved and its addresses tried.
    pub(crate) fd: Option<OwnedFd>,
    /// Index of the limits and time-outs it was opened with.
    pub(crate) profile: u16,
    pub(crate) protocol: Protocol,
    pub(crate) phase: Phase,
    pub(crate) end: End,
    pub(crate) data: D,
}

/// Most bytes of the record beside the handler's own data. Each connection costs as many.
pub(crate) const CONN_BYTES: usize = 40;
const _: () = assert!(size_of::<Conn<()>>() <= CONN_BYTES);
const _: () = assert!(size_of::<Protocol>() == 2);
const _: () = assert!(size_of::<Conn<[u64; 3]>>() <= CONN_BYTES + 24);

impl<D: Default> Conn<D> {
    pub(crate) fn free() -> Conn<D> {
        Conn {
            link: TimerLink::default(),
            spill: None,
            generation: 1,
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

    /// Whether input of this connection waits: for the answer outstanding, or for the socket to take those
    /// given before. A peer that asks without reading is answered no further, and later not read from.
    pub(crate) fn holds_input(&self) -> bool {
        let is_blocked = self.flags.has(Flags::SOCKET_FULL) && self.output_bytes() > 0;
        self.protocol.holds_input(is_blocked)
    }

    /// Bytes buffered for sending.
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
