//! One thread's seat in the mesh.

use std::{cell::Cell, fmt, marker::PhantomData};

use crate::{
    counter::Counter,
    mesh::{MeshConfig, Shared},
    port::{EndpointState, Wake},
    ring::{Consumer, Counters, Producer},
    send_error::{BroadcastOutcome, SendError},
    stats::EdgeStats,
    sync::{Arc, Ordering, fence},
};

/// One thread's seat in the mesh: sends to every endpoint, receives from every endpoint.
///
/// It belongs to one thread at a time; it may move to another between calls. The order of calls
/// in a loop that blocks:
///
/// ```text
/// loop {
///     epoll_wait(if endpoint.prepare_sleep() { -1 } else { 0 });
///     endpoint.wake();
///     endpoint.drain(max, |from, message| …);
///     …everything else, with endpoint.send(…)…
///     while let Some(to) = endpoint.poll_room() { …send what `to` had refused… }
///     endpoint.flush();
/// }
/// ```
///
/// # Panics of its user
///
/// No method is left half-done when a closure it calls, or the drop of a message, panics: a
/// message is out of its ring before the closure sees it, and what was sent stays sent. So an
/// endpoint may be kept outside `catch_unwind` (its user asserts unwind safety) and handed to the
/// worker's next life, which begins with [`wake`](Endpoint::wake): it will find every message
/// not yet received, and its first [`flush`](Endpoint::flush) rings for what the last life sent.
// Aligned so that endpoints side by side in a `Vec` do not share a line.
#[repr(align(128))]
pub struct Endpoint<T> {
    shared: Arc<Shared<T>>,
    index: usize,
    /// By sender; made when its first message arrives.
    inbound: Box<[Option<Consumer<T>>]>,
    /// By receiver; made with the first message to it.
    outbound: Box<[Option<Producer<T>>]>,
    /// Endpoints sent to since the last flush.
    dirty: u128,
    /// Endpoints found to be closed.
    gone: u128,
    /// Endpoints told since the last flush that there is room for them.
    owed: u128,
    /// Endpoints that have told us the same, not yet polled.
    room: u128,
    /// The edge being read, and how many messages it may still give before the next one's turn.
    cursor: usize,
    burst_left: usize,
    burst: usize,
    /// Messages an edge from here holds before it refuses one.
    ring_slots: usize,
    /// `Send` but not `Sync`.
    _one_thread: PhantomData<Cell<()>>,
}

impl<T> Endpoint<T> {
    pub(crate) fn new(shared: Arc<Shared<T>>, index: usize, config: &MeshConfig) -> Endpoint<T> {
        let endpoints = shared.ports.len();
        Endpoint {
            shared,
            index,
            inbound: (0..endpoints).map(|_| None).collect(),
            outbound: (0..endpoints).map(|_| None).collect(),
            dirty: 0,
            gone: 0,
            owed: 0,
            room: 0,
            cursor: 0,
            burst_left: 0,
            burst: config.burst.max(1),
            ring_slots: config.ring_slots,
            _one_thread: PhantomData,
        }
    }

    /// This endpoint's number, `0..len()`.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many endpoints the mesh has, this one included.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a mesh with an endpoint is not empty")]
    pub fn len(&self) -> usize {
        self.shared.ports.len()
    }

    /// Queues `value` for endpoint `to`, which may be this one.
    ///
    /// An awake receiver may take it at once; one that sleeps is woken by the next
    /// [`flush`](Endpoint::flush) or [`prepare_sleep`](Endpoint::prepare_sleep). No system call.
    ///
    /// # Errors
    /// The value comes back: [`SendError::Full`] if the edge holds `ring_slots` messages
    /// ([`poll_room`](Endpoint::poll_room) will tell when there is room), [`SendError::Closed`] if
    /// the receiver is gone for good (noticed by the next flush, or when its edge is full), [`SendError::Unknown`] if there is no such endpoint.
    #[inline]
    pub fn send(&mut self, to: usize, value: T) -> Result<(), SendError<T>> {
        let Some(port) = self.shared.ports.get(to) else {
            return Err(SendError::Unknown { to, value });
        };
        // Nothing before the push looks at the receiver's lines: that would cost the hop a
        // transfer. `ring_sleepers` looks, and remembers who is gone.
        if self.gone & 1 << to != 0 {
            return Err(SendError::Closed { to, value });
        }
        let producer = match &mut self.outbound[to] {
            Some(producer) => producer,
            unused => unused.insert(self.shared.open_edge(self.index, to, self.ring_slots)),
        };
        if let Err(value) = producer.push(value) {
            if port.state() == EndpointState::Closed {
                self.gone |= 1 << to;
                return Err(SendError::Closed { to, value });
            }
            producer.counters().refused.increment();
            return Err(SendError::Full { to, value });
        }
        // A set bit may be on its way to be cleared; `flush` makes certain.
        if !port.is_ready(self.index) {
            port.set_ready(self.index);
        }
        self.dirty |= 1 << to;
        Ok(())
    }

    /// Gives the edges from here another bound than [`MeshConfig::ring_slots`]; at least 1. What is queued stays and
    /// keeps its order: an edge that holds more than a lower bound refuses until it holds less, one with a higher
    /// bound takes the next message at once.
    pub fn set_ring_slots(&mut self, ring_slots: usize) {
        self.ring_slots = ring_slots;
        for producer in self.outbound.iter_mut().flatten() {
            producer.set_slots_max(ring_slots);
        }
    }

    /// Sends what `make(to)` gives to every other endpoint: one `Arc` cloned for each, say.
    ///
    /// Endpoints known to be gone are skipped before `make` is called; a full edge refuses its own
    /// message only.
    pub fn broadcast(&mut self, mut make: impl FnMut(usize) -> T) -> BroadcastOutcome<T> {
        let mut outcome = BroadcastOutcome { sent: 0, refused: Vec::new() };
        for to in 0..self.len() {
            if to == self.index || self.gone & 1 << to != 0 {
                continue;
            }
            match self.send(to, make(to)) {
                Ok(()) => outcome.sent += 1,
                Err(refused) => outcome.refused.push(refused),
            }
        }
        outcome
    }

    /// Wakes the endpoints written to since the last flush that sleep, with one `write` to each
    /// doorbell; gives the number of wakes. Call it once a loop turn, after the last `send`.
    ///
    /// Nothing is lost by calling it late, and an endpoint that has taken all it was sent before
    /// it fell asleep is left alone.
    #[inline]
    pub fn flush(&mut self) -> usize {
        if self.dirty | self.owed == 0 { 0 } else { self.ring_sleepers() }
    }

    fn ring_sleepers(&mut self) -> usize {
        let dirty = std::mem::take(&mut self.dirty);
        let owed = std::mem::take(&mut self.owed);
        let mut wakes = 0;
        // Between what was sent and the looks at the ready bits and states; the other half is in
        // `clear_ready` and `announce_sleep`.
        fence(Ordering::SeqCst);
        for to in bits(dirty | owed) {
            let port = &self.shared.ports[to];
            let producer = self.outbound[to].as_ref();
            if port.state() == EndpointState::Closed {
                self.gone |= 1 << to;
                continue;
            }
            if dirty & 1 << to != 0 && !port.is_ready(self.index) {
                if producer.is_none_or(Producer::is_drained) {
                    if owed & 1 << to == 0 {
                        count(producer, |counters| &counters.wakes_suppressed);
                        continue;
                    }
                } else {
                    // `send` saw the bit set when the receiver was about to clear it.
                    port.set_ready(self.index);
                    fence(Ordering::SeqCst);
                }
            }
            match port.notify() {
                Wake::Suppressed => count(producer, |counters| &counters.wakes_suppressed),
                Wake::Sent => {
                    wakes += 1;
                    count(producer, |counters| &counters.wakes_sent);
                }
                Wake::Failed => {
                    count(producer, |counters| &counters.wakes_failed);
                    self.dirty |= dirty & 1 << to;
                    self.owed |= owed & 1 << to;
                }
            }
        }
        wakes
    }

    /// The next message and who sent it. Messages of one sender arrive in the order they were
    /// sent; senders take turns, each for at most [`MeshConfig::burst`] messages.
    ///
    /// With nothing waiting it costs a load or two, however many endpoints there are.
    #[inline]
    pub fn recv(&mut self) -> Option<(usize, T)> {
        if self.burst_left > 0
            && let Some(value) = self.pop(self.cursor)
        {
            self.burst_left -= 1;
            return Some((self.cursor, value));
        }
        self.recv_from_next()
    }

    fn recv_from_next(&mut self) -> Option<(usize, T)> {
        loop {
            let ready = self.shared.ports[self.index].ready();
            let polled = u128::from(self.inbound[self.cursor].is_some()) << self.cursor;
            let others = ready & !polled;
            if others == 0 {
                return self.recv_from_same();
            }
            let from = next_bit(others, self.cursor);
            self.cursor = from;
            self.burst_left = self.burst;
            self.join(from);
            if let Some(value) = self.pop(from).or_else(|| self.retire(from)) {
                self.burst_left -= 1;
                return Some((from, value));
            }
        }
    }

    /// The edge read last, polled by its tail while no other is ready. Its bit stays set though
    /// it be empty: its sender then need not set it, and a hop is one line less. The bit goes
    /// when another edge has its turn, or before sleep.
    fn recv_from_same(&mut self) -> Option<(usize, T)> {
        let from = self.cursor;
        let value = if self.burst_left == 0 { self.pop(from) } else { None };
        self.burst_left = self.burst;
        if value.is_some() {
            self.burst_left -= 1;
        } else {
            self.tell_if_starved(from);
        }
        value.map(|value| (from, value))
    }

    /// Receives up to `max` messages; gives how many there were. Fewer than `max` means that
    /// nothing was left.
    pub fn drain(&mut self, max: usize, mut each: impl FnMut(usize, T)) -> usize {
        for count in 0..max {
            let Some((from, value)) = self.recv() else {
                return count;
            };
            each(from, value);
        }
        max
    }

    /// An endpoint that has refused a message of ours as [`Full`](SendError::Full) and has room
    /// again. Told once for any number of refusals; it wakes a sleeper like a message does.
    ///
    /// Whoever has no use for it need not call it.
    #[inline]
    pub fn poll_room(&mut self) -> Option<usize> {
        self.room |= self.shared.ports[self.index].take_room();
        if self.room == 0 {
            return None;
        }
        let to = self.room.trailing_zeros() as usize;
        self.room &= self.room - 1;
        Some(to)
    }

    /// Flushes, announces sleep, and looks at everything once more: true means that from now on
    /// every message for this endpoint rings the [`doorbell`](Endpoint::doorbell), so the caller
    /// may block in `epoll_wait(-1)`. False means there is work: do not block.
    ///
    /// Call [`wake`](Endpoint::wake) after blocking. Between the two nothing may be sent or
    /// received by this endpoint.
    pub fn prepare_sleep(&mut self) -> bool {
        self.flush();
        self.shared.ports[self.index].announce_sleep();
        let work = self.has_work();
        // Emptying edges can have shown that a sender waits for room.
        self.flush();
        if work {
            self.shared.ports[self.index].announce_run();
        }
        !work
    }

    /// Back to running: from here on senders do not ring. Harmless if the endpoint did not sleep.
    pub fn wake(&mut self) {
        self.shared.ports[self.index].announce_run();
    }

    /// The descriptor that becomes readable when this endpoint is woken: an eventfd, opened when
    /// the mesh was made.
    ///
    /// Register it **edge-triggered** (epoll with `EPOLLET`, mio; for tokio see
    /// `async_doorbell`) and never read it: every wake is an edge of its own. Level-triggered, it
    /// would report for ever.
    #[cfg(not(loom))]
    pub fn doorbell(&self) -> std::os::fd::BorrowedFd<'_> {
        self.shared.ports[self.index].doorbell.fd()
    }

    /// The [`doorbell`](Endpoint::doorbell) for the tokio runtime this is called in.
    ///
    /// # Errors
    /// `EMFILE` if the process has no descriptor left for a duplicate, or what registering it
    /// with the runtime gives.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    #[cfg(all(feature = "tokio", not(loom)))]
    pub fn async_doorbell(&self) -> std::io::Result<crate::AsyncDoorbell> {
        crate::AsyncDoorbell::new(self.doorbell().try_clone_to_owned()?)
    }

    #[cfg(all(test, loom))]
    pub(crate) fn wait_for_doorbell(&self) {
        self.shared.ports[self.index].doorbell.wait();
    }

    /// Gives back memory that a burst has made the rings take: on outgoing edges that were quiet
    /// since the last call, and on incoming ones whose sender has done so. For a timer, every ten
    /// seconds or so; costs a look at every edge in use.
    pub fn trim(&mut self) {
        for producer in self.outbound.iter_mut().flatten() {
            producer.trim();
        }
        for consumer in self.inbound.iter_mut().flatten() {
            consumer.trim();
        }
    }

    /// Counters of the edges from here that were ever used.
    pub fn stats(&self) -> impl Iterator<Item = EdgeStats> + '_ {
        (0..self.len()).filter_map(|to| self.shared.edge_stats(self.index, to))
    }

    /// A view of the whole mesh's counters for another thread, such as the one that serves
    /// metrics. It keeps the mesh's memory and doorbells alive.
    #[cfg(not(loom))]
    pub fn monitor(&self) -> crate::Monitor
    where
        T: Send + 'static,
    {
        crate::Monitor::new(Arc::clone(&self.shared) as _)
    }

    #[inline]
    fn pop(&mut self, from: usize) -> Option<T> {
        let consumer = self.inbound[from].as_mut()?;
        let value = consumer.pop()?;
        if consumer.at_limit() {
            self.tell_if_starved(from);
        }
        Some(value)
    }

    /// Takes the receiving end of an edge whose bit is set, if that is yet to be done.
    fn join(&mut self, from: usize) {
        if self.inbound[from].is_none() {
            self.inbound[from] = self.shared.join_edge(from, self.index);
        }
    }

    /// Clears the bit of an edge found empty, and looks again.
    fn retire(&mut self, from: usize) -> Option<T> {
        self.shared.ports[self.index].clear_ready(from);
        self.tell_if_starved(from);
        let value = self.pop(from)?;
        // The bit goes with messages in the ring, and there may be more.
        self.shared.ports[self.index].set_ready(from);
        Some(value)
    }

    #[inline]
    fn tell_if_starved(&mut self, from: usize) {
        if self.inbound[from].as_ref().is_some_and(Consumer::take_starved) {
            self.tell_room(from);
        }
    }

    #[cold]
    fn tell_room(&mut self, from: usize) {
        self.shared.ports[from].set_room(self.index);
        self.owed |= 1 << from;
    }

    /// Whether anything waits to be received, or someone has told us of room since the last look.
    /// Clears the bits of empty edges, for a sender takes a set bit to mean that we will look.
    fn has_work(&mut self) -> bool {
        let room = self.shared.ports[self.index].take_room();
        self.room |= room;
        let mut work = room != 0;
        for from in bits(self.shared.ports[self.index].ready()) {
            if self.is_quiet(from) {
                self.shared.ports[self.index].clear_ready(from);
                self.tell_if_starved(from);
                if self.is_quiet(from) {
                    continue;
                }
                self.shared.ports[self.index].set_ready(from);
            }
            work = true;
            break;
        }
        work
    }

    fn is_quiet(&self, from: usize) -> bool {
        // Without a consumer the first message has not been received yet.
        self.inbound[from].as_ref().is_some_and(Consumer::is_empty)
    }
}

impl<T> Drop for Endpoint<T> {
    /// Closes the endpoint: senders are refused as soon as they notice, and what it has not
    /// received is dropped. What it has sent will still be received.
    fn drop(&mut self) {
        self.shared.ports[self.index].close();
        fence(Ordering::SeqCst);
        let ready = self.shared.ports[self.index].ready();
        for from in 0..self.len() {
            // What a sender has not marked yet is dropped with its ring.
            if ready & 1 << from != 0 {
                self.join(from);
            }
            while self.pop(from).is_some() {}
            self.tell_if_starved(from);
        }
        self.flush();
    }
}

impl<T> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("index", &self.index)
            .field("len", &self.len())
            .field("state", &self.shared.ports[self.index].state())
            .finish_non_exhaustive()
    }
}

fn count<T>(producer: Option<&Producer<T>>, counter: impl FnOnce(&Counters) -> &Counter) {
    if let Some(producer) = producer {
        counter(producer.counters()).increment();
    }
}

/// The first set bit behind `cursor`, going round. `word` is not zero.
#[inline]
fn next_bit(word: u128, cursor: usize) -> usize {
    let behind = word & (!0 << cursor << 1);
    (if behind == 0 { word } else { behind }).trailing_zeros() as usize
}

fn bits(mut word: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}
