//! The record of a session.

use crate::node_numbers::NODE_NUMBERS_MAX;
use crate::outbox::Outbox;
use crate::shares::Owner;
use crate::slots::NONE;

/// One client, as plain data in a chunked table: one cache line.
pub(crate) struct Session {
    pub(crate) outbox: Outbox,
    /// The caller's tag.
    pub(crate) tag: u64,
    /// First of its list of subscriptions.
    pub(crate) subscription: u32,
    pub(crate) outbox_bytes_max: u32,
    /// Index of its user, `NONE` for anonymous, and links of that user's list of sessions.
    pub(crate) user: u32,
    pub(crate) user_next: u32,
    pub(crate) user_prev: u32,
    /// Whose the streams are that it brings into being.
    pub(crate) owner: Owner,
    /// Length of its list of subscriptions.
    pub(crate) subscriptions: u16,
    pub(crate) flags: u16,
    /// Outlives the session: the next one in this slot gets another.
    pub(crate) generation: u8,
    pub(crate) encoding: u8,
    /// When it was opened, in minutes of the hub's time; it comes round after 45 days.
    pub(crate) opened_min: u16,
}

const _: () = assert!(size_of::<Session>() <= 64);

/// In use.
pub(crate) const OPEN: u16 = 1;
/// In the queue of sessions to flush.
pub(crate) const DIRTY: u16 = 1 << 1;
/// Its socket is full.
pub(crate) const BLOCKED: u16 = 1 << 2;
/// Not flushed until released.
pub(crate) const HELD: u16 = 1 << 3;
/// A long-poll.
pub(crate) const POLL: u16 = 1 << 4;
/// Disconnected by the hub.
pub(crate) const CLOSING: u16 = 1 << 5;
/// In the list of slow sessions.
pub(crate) const SLOW: u16 = 1 << 6;
/// In the queue of a broadcast without rates of its own.
pub(crate) const BULK: u16 = 1 << 7;
/// In the queue of a broadcast whose namespace has rates. Separate from [`BULK`], so that rates of
/// one namespace do not delay other broadcasts.
pub(crate) const LIMITED: u16 = 1 << 8;
/// Position of the three bits that index [`NodeNumbers`](crate::node_numbers::NodeNumbers).
const NODE_SHIFT: u32 = 9;
const NODE: u16 = (NODE_NUMBERS_MAX as u16 - 1) << NODE_SHIFT;
const _: () = assert!(NODE_NUMBERS_MAX == 8);

impl Session {
    pub(crate) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The flags of a session opened under this node number.
    pub(crate) fn opened_under(at: u8) -> u16 {
        u16::from(at) << NODE_SHIFT & NODE
    }

    /// The index of its node number.
    pub(crate) fn node(&self) -> u8 {
        ((self.flags & NODE) >> NODE_SHIFT) as u8
    }

    pub(crate) fn is_live(&self) -> bool {
        self.flags & (OPEN | CLOSING) == OPEN
    }
}

impl Default for Session {
    fn default() -> Self {
        Self {
            outbox: Outbox::default(),
            tag: 0,
            subscription: NONE,
            outbox_bytes_max: 0,
            user: NONE,
            user_next: NONE,
            user_prev: NONE,
            owner: Owner::NONE,
            subscriptions: 0,
            flags: 0,
            generation: 0,
            encoding: 0,
            opened_min: 0,
        }
    }
}
