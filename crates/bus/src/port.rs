//! The shared part of an endpoint: its ready bits, its state and its doorbell.

use std::io;

use crate::{
    ENDPOINTS_MAX,
    doorbell::Doorbell,
    sync::{AtomicU8, AtomicU64, Ordering, fence},
};

const WORDS: usize = ENDPOINTS_MAX / 64;

/// Aligned to its own cache lines. State and ready bits share one: a sender that sets a bit then
/// reads the state.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Port {
    /// Bit *i*: the edge from endpoint *i* may hold messages. Set by *i* after it has sent,
    /// cleared by the owner when it finds the edge empty.
    ready: Bits,
    state: AtomicU8,
    pub(crate) doorbell: Doorbell,
    /// Bit *i*: endpoint *i* has made room on the edge towards it after rejecting a message.
    room: Bits,
}

/// Whether an endpoint's owner runs its loop, sleeps, or was rung since it fell asleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EndpointState {
    /// Awake: it checks its ready bits before it sleeps, so ringing is unnecessary.
    Run = 0,
    /// Asleep or about to block: the next message rings the doorbell.
    Sleep = 1,
    /// Rung since it fell asleep: ringing again is unnecessary.
    Notified = 2,
    /// Its [`Endpoint`](crate::Endpoint) was dropped; messages to it are rejected.
    Closed = 3,
}

/// Result of an attempt to wake an endpoint.
pub(crate) enum Wake {
    /// It is awake or was already rung.
    Suppressed,
    Sent,
    /// Writing to the doorbell failed; the endpoint still counts as asleep.
    Failed,
}

impl Port {
    pub(crate) fn new(endpoints: usize) -> io::Result<Port> {
        Ok(Port {
            ready: Bits::new(endpoints),
            state: AtomicU8::new(EndpointState::Run as u8),
            doorbell: Doorbell::new()?,
            room: Bits::new(endpoints),
        })
    }

    #[inline]
    pub(crate) fn state(&self) -> EndpointState {
        match self.state.load(Ordering::Relaxed) {
            0 => EndpointState::Run,
            1 => EndpointState::Sleep,
            2 => EndpointState::Notified,
            _ => EndpointState::Closed,
        }
    }

    /// Returns all bits.
    #[inline]
    pub(crate) fn ready(&self) -> u128 {
        self.ready.load()
    }

    #[inline]
    pub(crate) fn is_ready(&self, from: usize) -> bool {
        self.ready.contains(from)
    }

    /// Sets `from`'s bit.
    #[inline]
    pub(crate) fn set_ready(&self, from: usize) {
        self.ready.insert(from);
    }

    /// Clears `from`'s bit. The caller then checks the edge again: a message sent before its sender
    /// could see the cleared bit is visible after this fence.
    pub(crate) fn clear_ready(&self, from: usize) {
        self.ready.remove(from);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn set_room(&self, from: usize) {
        self.room.insert(from);
    }

    pub(crate) fn take_room(&self) -> u128 {
        self.room.take()
    }

    /// Announces that the owner is about to block. It then checks its bits again: either it sees
    /// the sender's bit, or the sender sees the state.
    pub(crate) fn announce_sleep(&self) {
        self.state.store(EndpointState::Sleep as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn announce_run(&self) {
        self.state.swap(EndpointState::Run as u8, Ordering::AcqRel);
    }

    pub(crate) fn close(&self) {
        self.state.swap(EndpointState::Closed as u8, Ordering::AcqRel);
    }

    /// Rings if the owner sleeps and was not rung. The caller must execute a `SeqCst` fence between
    /// setting the bit and this call.
    #[inline]
    pub(crate) fn notify(&self) -> Wake {
        const SLEEP: u8 = EndpointState::Sleep as u8;
        const NOTIFIED: u8 = EndpointState::Notified as u8;
        if self.state.load(Ordering::Relaxed) != SLEEP
            || self
                .state
                .compare_exchange(SLEEP, NOTIFIED, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            return Wake::Suppressed;
        }
        if self.doorbell.ring().is_ok() {
            return Wake::Sent;
        }
        // The next sender tries again, unless the owner wakes by itself.
        let _ = self.state.compare_exchange(NOTIFIED, SLEEP, Ordering::AcqRel, Ordering::Relaxed);
        Wake::Failed
    }
}

/// One bit per endpoint. A mesh of up to 64 endpoints uses only one word.
#[derive(Debug)]
struct Bits {
    words: [AtomicU64; WORDS],
    two_words: bool,
}

impl Bits {
    fn new(endpoints: usize) -> Bits {
        Bits { words: std::array::from_fn(|_| AtomicU64::new(0)), two_words: endpoints > 64 }
    }

    #[inline]
    fn load(&self) -> u128 {
        let low = self.words[0].load(Ordering::Acquire);
        if !self.two_words {
            return u128::from(low);
        }
        u128::from(self.words[1].load(Ordering::Acquire)) << 64 | u128::from(low)
    }

    #[inline]
    fn contains(&self, index: usize) -> bool {
        self.words[index / 64].load(Ordering::Relaxed) & 1 << (index % 64) != 0
    }

    #[inline]
    fn insert(&self, index: usize) {
        self.words[index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
    }

    #[inline]
    fn remove(&self, index: usize) {
        self.words[index / 64].fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
    }

    fn take(&self) -> u128 {
        let take = |word: &AtomicU64| {
            // A plain load first: the word is almost always zero, and is read at every sleep.
            let bits = word.load(Ordering::Relaxed);
            u128::from(if bits == 0 { 0 } else { word.swap(0, Ordering::AcqRel) })
        };
        let low = take(&self.words[0]);
        if self.two_words { take(&self.words[1]) << 64 | low } else { low }
    }
}
