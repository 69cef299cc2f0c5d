//! One edge of the mesh: a bounded queue with one producer and one consumer.
//!
//! Positions count messages since the edge began and never wrap (`u64`); a position's slot is
//! `position & mask` of the segment that contains it. An edge begins with a small segment. A
//! producer that finds its segment full, while fewer than `slots_max` messages are queued, links a
//! segment of twice the size and continues there. The consumer follows when it has emptied the old
//! one, and frees it. Memory therefore follows the deepest queue of an edge, not the limit;
//! [`trim`] frees it after a burst.
//!
//! Either side compares its own position with a cached limit and touches the other's cache line
//! only when it has reached that limit: one compare, one copy and one store per message.
//!
//! [`trim`]: Producer::trim

use std::{mem::MaybeUninit, ptr::NonNull};

use crate::{
    counter::Counter,
    sync::{Arc, AtomicBool, AtomicPtr, AtomicU64, Ordering, Padded, UnsafeCell, fence},
};

/// The shared part of an edge.
pub(crate) struct Ring<T> {
    slots_min: usize,
    /// One past the last message written. Stored only by the producer.
    tail: Padded<AtomicU64>,
    /// Stored only by the consumer.
    consumed: Padded<Consumed<T>>,
    pub(crate) counters: Padded<Counters>,
}

struct Consumed<T> {
    /// The next message to read.
    head: AtomicU64,
    /// The segment that the consumer reads; all segments linked after it are alive.
    segment: UnsafeCell<NonNull<Segment<T>>>,
    /// The producer was rejected and waits for room. The only field of this line that the producer
    /// writes, and only when the ring is full.
    blocked: AtomicBool,
}

/// Written by the producer, read by monitors. Not on the cache lines that carry messages.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) refused: Counter,
    pub(crate) wakes_sent: Counter,
    pub(crate) wakes_suppressed: Counter,
    pub(crate) wakes_failed: Counter,
    /// Slots of the current segment.
    pub(crate) slots: Counter,
}

struct Segment<T> {
    /// Position of the first message in this segment, which is one past the last of the previous
    /// segment.
    base: u64,
    mask: u64,
    next: AtomicPtr<Segment<T>>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is written by the one `Producer` before the release store of `tail`, read by the
// one `Consumer` after the acquire load of it, and written again only after the acquire load of a
// `head` past it. Values cross threads, hence `T: Send`; no `&T` is ever shared.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Segment<T> {
    fn allocate(base: u64, slots: usize) -> NonNull<Segment<T>> {
        debug_assert!(slots.is_power_of_two(), "a position is masked, not divided");
        let segment = Segment {
            base,
            mask: slots as u64 - 1,
            next: AtomicPtr::new(std::ptr::null_mut()),
            slots: (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        };
        NonNull::from(Box::leak(Box::new(segment)))
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[(position & self.mask) as usize]
    }
}

impl<T> Ring<T> {
    /// Creates a ring with memory for `slots_min` messages (rounded up to a power of two). Its
    /// producer has the limit of its growth.
    ///
    /// The caller creates exactly one [`Producer`] and one [`Consumer`] of it.
    pub(crate) fn new(slots_min: usize) -> Ring<T> {
        let slots_min = slots_min.max(1).next_power_of_two();
        let counters = Counters::default();
        counters.slots.set(slots_min as u64);
        Ring {
            slots_min,
            tail: Padded(AtomicU64::new(0)),
            consumed: Padded(Consumed {
                head: AtomicU64::new(0),
                segment: UnsafeCell::new(Segment::allocate(0, slots_min)),
                blocked: AtomicBool::new(false),
            }),
            counters: Padded(counters),
        }
    }

    /// Returns the numbers of messages ever sent and ever received, read one after the other.
    pub(crate) fn positions(&self) -> (u64, u64) {
        let head = self.consumed.head.load(Ordering::Acquire);
        (self.tail.load(Ordering::Relaxed).max(head), head)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let mut position = self.consumed.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        let mut current = self.consumed.segment.with(|segment| {
            // SAFETY: both ends are dropped, so there is no other access to the field.
            unsafe { *segment }.as_ptr()
        });
        while !current.is_null() {
            // SAFETY: every segment was leaked from a box and is linked once; those before the
            // consumer's were freed by it, the rest is freed here.
            let segment = unsafe { Box::from_raw(current) };
            current = segment.next.load(Ordering::Relaxed);
            let end = if current.is_null() {
                tail
            } else {
                // SAFETY: a linked segment is alive until this loop frees it.
                unsafe { (*current).base }
            };
            while position < end {
                segment.slot(position).with_mut(|slot| {
                    // SAFETY: positions from head to tail hold values that were not taken.
                    unsafe { (*slot).assume_init_drop() };
                });
                position += 1;
            }
        }
    }
}

/// The writing end.
pub(crate) struct Producer<T> {
    ring: Arc<Ring<T>>,
    segment: NonNull<Segment<T>>,
    tail: u64,
    /// Positions below this are known to be free.
    limit: u64,
    /// Maximum number of queued messages. Only the producer knows it, so changing it needs no
    /// message to the consumer: segments of any size may follow each other.
    slots_max: u64,
    /// `tail` at the last call of [`Producer::trim`].
    trimmed_at: u64,
}

// SAFETY: only the producer uses its `segment` for writing, on any thread; access to what it shares
// with the consumer is ordered as described at `Ring`.
unsafe impl<T: Send> Send for Producer<T> {}

impl<T> Producer<T> {
    /// # Safety
    /// The ring is new, and no other producer is created for it.
    pub(crate) unsafe fn new(ring: Arc<Ring<T>>, slots_max: usize) -> Producer<T> {
        let slots_max = slots_max.max(1) as u64;
        let segment = ring.consumed.segment.with(|segment| {
            // SAFETY: the ring is new, so no consumer has advanced; the first segment exists.
            unsafe { *segment }
        });
        Producer { ring, segment, tail: 0, limit: 0, slots_max, trimmed_at: 0 }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.ring.counters
    }

    /// Appends a message, or returns it when `slots_max` are queued.
    ///
    /// After a rejection the consumer finds the ring [blocked](Consumer::take_blocked) once it has
    /// made room.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if self.tail == self.limit && !self.find_room() {
            return Err(value);
        }
        // SAFETY: the producer's segment is freed only once a later one is linked, and the
        // producer leaves it when it links that.
        let segment = unsafe { self.segment.as_ref() };
        segment.slot(self.tail).with_mut(|slot| {
            // SAFETY: `tail < limit`: the slot was never used or its value has been taken.
            unsafe { (*slot).write(value) };
        });
        self.tail += 1;
        self.ring.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Changes the limit. Messages beyond a lowered limit stay; further ones are rejected until
    /// there are fewer.
    pub(crate) fn set_slots_max(&mut self, slots: usize) {
        self.slots_max = slots.max(1) as u64;
        let head = self.ring.consumed.head.load(Ordering::Acquire);
        // More slots than that may be known to be free.
        self.limit = self.limit.min(head + self.slots_max).max(self.tail);
    }

    /// Returns the number of sent messages that the consumer has not taken.
    #[cfg(all(test, loom))]
    pub(crate) fn depth(&self) -> u64 {
        self.tail - self.ring.consumed.head.load(Ordering::Acquire)
    }

    /// Returns whether the consumer has taken everything sent so far.
    pub(crate) fn is_drained(&self) -> bool {
        self.ring.consumed.head.load(Ordering::Acquire) == self.tail
    }

    /// Returns to a small segment if nothing was sent since the last call and no message waits. The
    /// consumer frees the large one. Returns true if it did.
    pub(crate) fn trim(&mut self) -> bool {
        let quiet = self.trimmed_at == self.tail;
        self.trimmed_at = self.tail;
        // SAFETY: as in `push`.
        let slots = unsafe { self.segment.as_ref() }.slots.len();
        if !quiet || slots <= self.ring.slots_min || !self.is_drained() {
            return false;
        }
        self.link(self.ring.slots_min);
        self.limit = self.tail + (self.ring.slots_min as u64).min(self.slots_max);
        true
    }

    #[cold]
    fn find_room(&mut self) -> bool {
        if self.advance_limit() {
            return true;
        }
        self.ring.consumed.blocked.store(true, Ordering::Relaxed);
        // Either the consumer sees `blocked` after its last store of `head`, or we see that `head`
        // here.
        fence(Ordering::SeqCst);
        let found = self.advance_limit();
        if found {
            self.ring.consumed.blocked.store(false, Ordering::Relaxed);
        }
        found
    }

    fn advance_limit(&mut self) -> bool {
        let head = self.ring.consumed.head.load(Ordering::Acquire);
        let bound = head + self.slots_max;
        // `tail` may be beyond it if the limit was lowered.
        if self.tail >= bound {
            return false;
        }
        // SAFETY: as in `push`.
        let segment = unsafe { self.segment.as_ref() };
        let slots = segment.slots.len() as u64;
        // Slots of this segment are used from its base on, or from `head` once that is in it.
        let mut free_until = head.max(segment.base) + slots;
        if self.tail == free_until {
            let doubled = (slots * 2).min(self.slots_max.next_power_of_two());
            self.link(doubled as usize);
            free_until = self.tail + doubled;
        }
        self.limit = free_until.min(bound);
        true
    }

    fn link(&mut self, slots: usize) {
        let next = Segment::allocate(self.tail, slots);
        // SAFETY: as in `push`. Past this store the consumer may free the old segment, and this
        // is the last use of it.
        unsafe { self.segment.as_ref() }.next.store(next.as_ptr(), Ordering::Release);
        self.segment = next;
        self.ring.counters.slots.set(slots as u64);
    }
}

/// The reading end.
pub(crate) struct Consumer<T> {
    ring: Arc<Ring<T>>,
    segment: NonNull<Segment<T>>,
    head: u64,
    /// Positions below this are known to contain messages of `segment`.
    limit: u64,
}

// SAFETY: as for the producer.
unsafe impl<T: Send> Send for Consumer<T> {}

impl<T> Consumer<T> {
    /// # Safety
    /// No other consumer is created for the ring.
    pub(crate) unsafe fn new(ring: Arc<Ring<T>>) -> Consumer<T> {
        let segment = ring.consumed.segment.with(|segment| {
            // SAFETY: only the consumer writes the field.
            unsafe { *segment }
        });
        Consumer { ring, segment, head: 0, limit: 0 }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.head == self.limit && !self.find_messages() {
            return None;
        }
        // SAFETY: the consumer frees a segment only when it leaves it.
        let segment = unsafe { self.segment.as_ref() };
        let value = segment.slot(self.head).with(|slot| {
            // SAFETY: `head < limit`: the producer has published the value, and storing `head`
            // below keeps it from being read twice.
            unsafe { (*slot).assume_init_read() }
        });
        self.head += 1;
        self.ring.consumed.head.store(self.head, Ordering::Release);
        Some(value)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.ring.tail.load(Ordering::Acquire)
    }

    /// Returns whether the producer was rejected since the last call and must be notified of room.
    /// Definitive after a `SeqCst` fence after the last `pop`.
    #[inline]
    pub(crate) fn take_blocked(&self) -> bool {
        let blocked = &self.ring.consumed.blocked;
        // A plain load first: almost always false, and this thread keeps the cache line.
        blocked.load(Ordering::Relaxed) && blocked.swap(false, Ordering::Relaxed)
    }

    /// Returns whether all messages known so far were taken; the caller then checks for a blocked
    /// producer.
    #[inline]
    pub(crate) fn at_limit(&self) -> bool {
        self.head == self.limit
    }

    /// Frees the segment that the producer has left, if it is empty.
    pub(crate) fn trim(&mut self) {
        if self.at_limit() {
            self.leave_emptied_segments();
        }
    }

    fn find_messages(&mut self) -> bool {
        // A polling receiver would see the changed tail and only then load the slot: prefetch it.
        // SAFETY: as in `pop`.
        prefetch(unsafe { self.segment.as_ref() }.slot(self.head));
        let tail = self.ring.tail.load(Ordering::Acquire);
        if tail == self.head {
            return false;
        }
        self.limit = match self.leave_emptied_segments() {
            Some(next_base) => next_base.min(tail),
            None => tail,
        };
        true
    }

    /// Moves to the segment that contains `head`. Returns the base of the next one.
    fn leave_emptied_segments(&mut self) -> Option<u64> {
        loop {
            // SAFETY: as in `pop`.
            let next = unsafe { self.segment.as_ref() }.next.load(Ordering::Acquire);
            let next = NonNull::new(next)?;
            // SAFETY: a linked segment is freed when the consumer leaves it, not before.
            let base = unsafe { next.as_ref() }.base;
            if self.head < base {
                return Some(base);
            }
            let emptied = std::mem::replace(&mut self.segment, next);
            self.ring.consumed.segment.with_mut(|segment| {
                // SAFETY: only the consumer reads or writes the field while both ends live.
                unsafe { *segment = next };
            });
            // SAFETY: leaked from a box, emptied, and no longer used by the producer, which left it
            // when it linked `next`. Its slots contain no values, so dropping it drops none.
            drop(unsafe { Box::from_raw(emptied.as_ptr()) });
        }
    }
}

#[inline(always)]
fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: only a hint, which reads nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
    let _ = place;
}
