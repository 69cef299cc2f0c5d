//! Which replies are awaited, until when, and by whom.

use std::{
    fmt,
    num::{NonZeroU32, NonZeroU64},
};

/// Names a request in its message and in the reply: the place in the table and its generation,
/// so that a reply that comes after the deadline is recognised and never mistaken for another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(NonZeroU64);

impl RequestId {
    /// For a wire that carries integers.
    pub fn to_u64(self) -> u64 {
        self.0.get()
    }

    /// What [`to_u64`](RequestId::to_u64) gave; `None` for zero, which names no request.
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

/// The table is full: the context comes back.
#[derive(Clone, PartialEq, Eq)]
pub struct TableFull<C>(pub C);

impl<C> fmt::Debug for TableFull<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableFull")
    }
}

impl<C> fmt::Display for TableFull<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as many requests as allowed await their reply")
    }
}

impl<C> std::error::Error for TableFull<C> {}

/// Requests that await a reply, each with a deadline and what to do then (`C`).
///
/// It belongs to one thread and reads no clock: a deadline is a number of the caller's clock, in
/// any unit. Every request leaves exactly once: by [`take`](RequestTable::take) when its reply comes,
/// or by [`expire`](RequestTable::expire).
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
    places: Vec<Place<C>>,
    /// First of the list of vacant places, or `NONE`.
    vacant: u32,
    /// A heap by deadline; the place holds its position in here, so a reply removes it exactly
    /// and the heap never holds more than what is awaited.
    deadlines: Vec<Deadline>,
    pending_max: usize,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Place<C> {
    generation: NonZeroU32,
    /// Position in `deadlines`; in a vacant place the next vacant one.
    link: u32,
    context: Option<C>,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: u64,
    place: u32,
}

impl<C> RequestTable<C> {
    /// An empty table that refuses more than `pending_max` requests at a time. Takes no memory
    /// until it is used.
    pub fn new(pending_max: usize) -> RequestTable<C> {
        let pending_max = pending_max.min(NONE as usize - 1);
        RequestTable { places: Vec::new(), vacant: NONE, deadlines: Vec::new(), pending_max }
    }

    /// How many replies are awaited.
    pub fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }

    /// Awaits a reply until `deadline`.
    ///
    /// # Errors
    /// [`TableFull`] with the context, if `pending_max` are awaited already.
    pub fn insert(&mut self, deadline: u64, context: C) -> Result<RequestId, TableFull<C>> {
        if self.deadlines.len() >= self.pending_max {
            return Err(TableFull(context));
        }
        let position = self.deadlines.len() as u32;
        let index = if self.vacant == NONE {
            let place =
                Place { generation: NonZeroU32::MIN, link: position, context: Some(context) };
            self.places.push(place);
            self.places.len() as u32 - 1
        } else {
            let index = self.vacant;
            let place = &mut self.places[index as usize];
            self.vacant = place.link;
            place.context = Some(context);
            place.link = position;
            index
        };
        self.deadlines.push(Deadline { at: deadline, place: index });
        self.rise(position as usize);
        Ok(RequestId::new(index, self.places[index as usize].generation))
    }

    /// The context of a request whose reply has come. `None`: it was answered before, or its
    /// deadline has passed.
    pub fn take(&mut self, id: RequestId) -> Option<C> {
        self.get(id)?;
        let position = self.places[id.index()].link as usize;
        self.remove(position).map(|(_, context)| context)
    }

    /// The context of a request that is awaited still, for a reply that comes in several parts.
    pub fn get(&self, id: RequestId) -> Option<&C> {
        let place = self.places.get(id.index())?;
        if place.generation.get() != id.generation() {
            return None;
        }
        place.context.as_ref()
    }

    /// Like [`get`](RequestTable::get), to change it.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut C> {
        let place = self.places.get_mut(id.index())?;
        if place.generation.get() != id.generation() {
            return None;
        }
        place.context.as_mut()
    }

    /// The earliest deadline, to set a timer by.
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|deadline| deadline.at)
    }

    /// Removes the requests whose deadline is `now` or earlier, earliest first. What the iterator
    /// is not asked for stays in the table.
    pub fn expire(&mut self, now: u64) -> impl Iterator<Item = (RequestId, C)> + '_ {
        std::iter::from_fn(move || {
            if self.next_deadline()? > now {
                return None;
            }
            self.remove(0)
        })
    }

    /// Removes the requests of which `is_lost` says so, when the one that was to answer them is
    /// gone, and gives them to `each`. Looks at every request.
    pub fn remove_lost(
        &mut self,
        mut is_lost: impl FnMut(&C) -> bool,
        mut each: impl FnMut(RequestId, C),
    ) {
        for index in 0..self.places.len() {
            let place = &self.places[index];
            if place.context.as_ref().is_some_and(&mut is_lost)
                && let Some((id, context)) = self.remove(place.link as usize)
            {
                each(id, context);
            }
        }
    }

    fn remove(&mut self, position: usize) -> Option<(RequestId, C)> {
        let index = self.deadlines[position].place;
        self.deadlines.swap_remove(position);
        if let Some(moved) = self.deadlines.get(position) {
            self.places[moved.place as usize].link = position as u32;
            self.sink(position);
            self.rise(position);
        }
        let place = &mut self.places[index as usize];
        let id = RequestId::new(index, place.generation);
        place.generation = place.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        place.link = self.vacant;
        self.vacant = index;
        place.context.take().map(|context| (id, context))
    }

    fn rise(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.deadlines[parent].at <= self.deadlines[position].at {
                break;
            }
            self.swap(parent, position);
            position = parent;
        }
    }

    fn sink(&mut self, mut position: usize) {
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
        self.places[self.deadlines[a].place as usize].link = a as u32;
        self.places[self.deadlines[b].place as usize].link = b as u32;
    }
}
