//! Requests that wait for a reply.

use std::{
    fmt,
    num::{NonZeroU32, NonZeroU64},
};

/// Identifies a request in its message and in the reply: a slot of the table and its generation. A
/// reply after the deadline is recognised and never matches another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(NonZeroU64);

impl RequestId {
    /// Returns the numeric form, for protocols that carry integers.
    pub fn to_u64(self) -> u64 {
        self.0.get()
    }

    /// Converts the result of [`to_u64`](RequestId::to_u64) back; `None` for zero, which is not an
    /// id.
    pub fn from_u64(id: u64) -> Option<RequestId> {
        NonZeroU64::new(id).map(RequestId)
    }

    fn new(index: u32, generation: NonZeroU32) -> RequestId {
        RequestId(NonZeroU64::from(generation) | u64::from(index) << 32)
    }

    fn index(self) -> usize {
        (self.0.get() >> 32) as usize
    }

    fn generation(self) -> u32 {
        self.0.get() as u32
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

/// The table is full. Returns the context.
#[derive(Clone, PartialEq, Eq)]
pub struct TableFull<C>(pub C);

impl<C> fmt::Debug for TableFull<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableFull")
    }
}

impl<C> fmt::Display for TableFull<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pending_max requests await their reply; wait for one, or raise pending_max")
    }
}

impl<C> std::error::Error for TableFull<C> {}

/// Requests that await a reply, each with a deadline and the caller's context (`C`).
///
/// It belongs to one thread and reads no clock: a deadline is a number of the caller's clock, in
/// any unit. Every request is removed exactly once: by [`take`](RequestTable::take) when its reply
/// arrives, or by [`expire`](RequestTable::expire).
///
/// ```
/// # use dunlin_bus::RequestTable;
/// let mut requests = RequestTable::new(1000);
/// let id = requests.insert(50, "what to do with the answer").unwrap();
/// // … the id travels with the request and comes back with the reply:
/// assert_eq!(requests.take(id), Some("what to do with the answer"));
/// assert_eq!(requests.take(id), None, "a second reply finds nothing");
/// ```
#[derive(Debug)]
pub struct RequestTable<C> {
    slots: Vec<Slot<C>>,
    /// First slot of the list of vacant slots, or `NONE`.
    vacant: u32,
    /// A heap by deadline. Each slot has its position here, so a reply removes its entry and the
    /// heap contains only pending requests.
    deadlines: Vec<Deadline>,
    pending_max: usize,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<C> {
    generation: NonZeroU32,
    /// Position in `deadlines`; in a vacant slot the index of the next vacant slot.
    link: u32,
    context: Option<C>,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: u64,
    slot: u32,
}

impl<C> RequestTable<C> {
    /// Creates an empty table for at most `pending_max` requests. Allocates on first use.
    pub fn new(pending_max: usize) -> RequestTable<C> {
        let pending_max = pending_max.min(NONE as usize - 1);
        RequestTable { slots: Vec::new(), vacant: NONE, deadlines: Vec::new(), pending_max }
    }

    /// Returns the number of pending requests.
    pub fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// Returns whether no request is pending.
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }

    /// Adds a request with a deadline.
    ///
    /// # Errors
    /// [`TableFull`] with the context, if `pending_max` requests are pending.
    pub fn insert(&mut self, deadline: u64, context: C) -> Result<RequestId, TableFull<C>> {
        if self.deadlines.len() >= self.pending_max {
            return Err(TableFull(context));
        }
        let position = self.deadlines.len() as u32;
        let index = if self.vacant == NONE {
            let slot = Slot { generation: NonZeroU32::MIN, link: position, context: Some(context) };
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        } else {
            let index = self.vacant;
            let slot = &mut self.slots[index as usize];
            self.vacant = slot.link;
            slot.context = Some(context);
            slot.link = position;
            index
        };
        self.deadlines.push(Deadline { at: deadline, slot: index });
        self.sift_up(position as usize);
        Ok(RequestId::new(index, self.slots[index as usize].generation))
    }

    /// Removes a request whose reply has arrived. `None`: it already had a reply, or its deadline
    /// has passed.
    pub fn take(&mut self, id: RequestId) -> Option<C> {
        self.get(id)?;
        let position = self.slots[id.index()].link as usize;
        self.remove(position).map(|(_, context)| context)
    }

    /// Returns the context of a pending request, for a reply in several parts.
    pub fn get(&self, id: RequestId) -> Option<&C> {
        let slot = self.slots.get(id.index())?;
        if slot.generation.get() != id.generation() {
            return None;
        }
        slot.context.as_ref()
    }

    /// Returns the context of a pending request as mutable.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut C> {
        let slot = self.slots.get_mut(id.index())?;
        if slot.generation.get() != id.generation() {
            return None;
        }
        slot.context.as_mut()
    }

    /// Returns the earliest deadline, for a timer.
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|deadline| deadline.at)
    }

    /// Removes the requests whose deadline is `now` or earlier, earliest first. Requests that the
    /// iterator does not yield stay in the table.
    pub fn expire(&mut self, now: u64) -> impl Iterator<Item = (RequestId, C)> + '_ {
        std::iter::from_fn(move || {
            if self.next_deadline()? > now {
                return None;
            }
            self.remove(0)
        })
    }

    fn remove(&mut self, position: usize) -> Option<(RequestId, C)> {
        let index = self.deadlines[position].slot;
        self.deadlines.swap_remove(position);
        if let Some(moved) = self.deadlines.get(position) {
            self.slots[moved.slot as usize].link = position as u32;
            self.sift_down(position);
            self.sift_up(position);
        }
        let slot = &mut self.slots[index as usize];
        let id = RequestId::new(index, slot.generation);
        slot.generation = slot.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        slot.link = self.vacant;
        self.vacant = index;
        slot.context.take().map(|context| (id, context))
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.deadlines[parent].at <= self.deadlines[position].at {
                break;
            }
            self.swap(parent, position);
            position = parent;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            let Some(first) = self.deadlines.get(left) else {
                break;
            };
            let child = match self.deadlines.get(left + 1) {
                Some(second) if second.at < first.at => left + 1,
                _ => left,
            };
            if self.deadlines[position].at <= self.deadlines[child].at {
                break;
            }
            self.swap(position, child);
            position = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.deadlines.swap(a, b);
        self.slots[self.deadlines[a].slot as usize].link = a as u32;
        self.slots[self.deadlines[b].slot as usize].link = b as u32;
    }
}
