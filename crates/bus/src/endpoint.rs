//! One thread's end of the mesh.

use std::{cell::Cell, fmt, marker::PhantomData};

use crate::{
    counter::Counter,
    mesh::{MeshConfig, MeshState},
    port::{EndpointState, Wake},
    ring::{Consumer, Counters, Producer},
    send_error::{BroadcastOutcome, SendError},
    stats::EdgeStats,
    sync::{Arc, Ordering, fence},
};

/// One thread's end of the mesh: sends to every endpoint, receives from every endpoint.
///
/// It belongs to one thread at a time and may move to another between calls. A loop that blocks
/// calls it in this order:
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
/// # Panics in callers' code
///
/// Every method stays consistent when a closure it calls, or the drop of a message, panics: a
/// message leaves its ring before the closure receives it, and sent messages stay sent. An endpoint
/// may therefore be kept outside `catch_unwind` (its user asserts unwind safety) and passed to the
/// worker's next incarnation, which begins with [`wake`](Endpoint::wake). It receives every message
/// not yet received, and its first [`flush`](Endpoint::flush) rings for what the former incarnation
/// sent.
// Aligned so that endpoints side by side in a `Vec` do not share a line.
#[repr(align(128))]
pub struct Endpoint<T> {
    shared: Arc<MeshState<T>>,
    index: usize,
    /// By sender; created when its first message arrives.
    inbound: Box<[Option<Consumer<T>>]>,
    /// By receiver; created for the first message to it.
    outbound: Box<[Option<Producer<T>>]>,
    /// Endpoints sent to since the last flush.
    dirty: u128,
    /// Endpoints found to be closed.
    closed: u128,
    /// Endpoints notified of room since the last flush.
    room_notified: u128,
    /// Endpoints that have notified this one of room, not yet polled.
    room: u128,
    /// The edge being read, and how many messages it may still deliver in this turn.
    cursor: usize,
    burst_left: usize,
    burst: usize,
    /// Maximum number of messages on an outgoing edge.
    ring_slots: usize,
    /// Makes the type `Send` but not `Sync`.
    _one_thread: PhantomData<Cell<()>>,
}

impl<T> Endpoint<T> {
    pub(crate) fn new(shared: Arc<MeshState<T>>, index: usize, config: &MeshConfig) -> Endpoint<T> {
        let endpoints = shared.ports.len();
        Endpoint {
            shared,
            index,
            inbound: (0..endpoints).map(|_| None).collect(),
            outbound: (0..endpoints).map(|_| None).collect(),
            dirty: 0,
            closed: 0,
            room_notified: 0,
            room: 0,
            cursor: 0,
            burst_left: 0,
            burst: config.burst.max(1),
            ring_slots: config.ring_slots,
            _one_thread: PhantomData,
        }
    }

    /// Returns this endpoint's number, `0..len()`.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns how many endpoints the mesh has, including this one.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a mesh with an endpoint is not empty")]
    pub fn len(&self) -> usize {
        self.shared.ports.len()
    }

    /// Queues `value` for endpoint `to`, which may be this one.
    ///
    /// An awake receiver may take it at once; a sleeping one is woken by the next
    /// [`flush`](Endpoint::flush) or [`prepare_sleep`](Endpoint::prepare_sleep). No system call.
    ///
    /// # Errors
    /// Returns the value. [`SendError::Full`]: the edge has `ring_slots` messages
    /// ([`poll_room`](Endpoint::poll_room) reports when there is room). [`SendError::Closed`]: the
    /// receiver was dropped (detected by the next flush, or when its edge is full).
    /// [`SendError::Unknown`]: there is no such endpoint.
    #[inline]
    pub fn send(&mut self, to: usize, value: T) -> Result<(), SendError<T>> {
        let Some(port) = self.shared.ports.get(to) else {
            return Err(SendError::Unknown { to, value });
        };
        // Nothing before the push reads the receiver's cache lines, which would add a transfer to
        // the hop. `ring_sleepers` reads them and remembers closed endpoints.
        if self.closed & 1 << to != 0 {
            return Err(SendError::Closed { to, value });
        }
        let producer = match &mut self.outbound[to] {
            Some(producer) => producer,
            unused => unused.insert(self.shared.open_edge(self.index, to, self.ring_slots)),
        };
        if let Err(value) = producer.push(value) {
            if port.state() == EndpointState::Closed {
                self.closed |= 1 << to;
                return Err(SendError::Closed { to, value });
            }
            producer.counters().refused.increment();
            return Err(SendError::Full { to, value });
        }
        // A set bit may be about to be cleared; `flush` checks again.
        if !port.is_ready(self.index) {
            port.set_ready(self.index);
        }
        self.dirty |= 1 << to;
        Ok(())
    }

    /// Changes the limit of all outgoing edges; at least 1. Queued messages stay in order. An edge
    /// with more messages than a lowered limit rejects messages until it has fewer; an edge with a
    /// raised limit accepts the next message at once.
    pub fn set_ring_slots(&mut self, ring_slots: usize) {
        self.ring_slots = ring_slots;
        for producer in self.outbound.iter_mut().flatten() {
            producer.set_slots_max(ring_slots);
        }
    }

    /// Sends `make(to)` to every other endpoint, for example a clone of one `Arc`.
    ///
    /// Endpoints known to be closed are skipped before `make` is called. A full edge returns only
    /// its own message.
    pub fn broadcast(&mut self, mut make: impl FnMut(usize) -> T) -> BroadcastOutcome<T> {
        let mut outcome = BroadcastOutcome { sent: 0, refused: Vec::new() };
        for to in 0..self.len() {
            if to == self.index || self.closed & 1 << to != 0 {
                continue;
            }
            match self.send(to, make(to)) {
                Ok(()) => outcome.sent += 1,
                Err(refused) => outcome.refused.push(refused),
            }
        }
        outcome
    }

    /// Wakes the sleeping endpoints that were sent to since the last flush, with one `write` to
    /// each doorbell. Returns the number of wakes. Call it once a loop turn, after the last `send`.
    /// A late call loses nothing. An endpoint that has received everything before it fell asleep is
    /// not woken.
    /// woken.
    #[inline]
    pub fn flush(&mut self) -> usize {
        if self.dirty | self.room_notified == 0 { 0 } else { self.ring_sleepers() }
    }

    fn ring_sleepers(&mut self) -> usize {
        let dirty = std::mem::take(&mut self.dirty);
        let room_notified = std::mem::take(&mut self.room_notified);
        let mut wakes = 0;
        // Orders the sends before the reads of ready bits and states; the other half is in
        // `clear_ready` and `announce_sleep`.
        fence(Ordering::SeqCst);
        for to in bits(dirty | room_notified) {
            let port = &self.shared.ports[to];
            let producer = self.outbound[to].as_ref();
            if port.state() == EndpointState::Closed {
                self.closed |= 1 << to;
                continue;
            }
            if dirty & 1 << to != 0 && !port.is_ready(self.index) {
                if producer.is_none_or(Producer::is_drained) {
                    if room_notified & 1 << to == 0 {
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
                    self.room_notified |= room_notified & 1 << to;
                }
            }
        }
        wakes
    }

    /// Returns the next message and its sender. Messages of one sender arrive in order; senders
    /// take turns, each for at most [`MeshConfig::burst`] messages.
    ///
    /// Without messages it costs one or two loads, however many endpoints there are.
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

    /// Receives from the last edge again, polling its tail while no other edge is ready. Its bit
    /// stays set even when it is empty: its sender then need not set it, and a hop touches one
    /// cache line less. The bit is cleared when another edge has its turn, or before sleep.
    fn recv_from_same(&mut self) -> Option<(usize, T)> {
        let from = self.cursor;
        let value = if self.burst_left == 0 { self.pop(from) } else { None };
        self.burst_left = self.burst;
        if value.is_some() {
            self.burst_left -= 1;
        } else {
            self.notify_if_blocked(from);
        }
        value.map(|value| (from, value))
    }

    /// Receives up to `max` messages and returns their number. If it is less than `max`, none was
    /// left.
    pub fn drain(&mut self, max: usize, mut each: impl FnMut(usize, T)) -> usize {
        for count in 0..max {
            let Some((from, value)) = self.recv() else {
                return count;
            };
            each(from, value);
        }
        max
    }

    /// Returns an endpoint whose edge was [`Full`](SendError::Full) and has room again. Reported
    /// once for any number of rejected messages; it wakes a sleeper as a message does. Calling it
    /// is optional.
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

    /// Flushes, announces sleep and checks once more for work. True: every later message for this
    /// endpoint rings the [`doorbell`](Endpoint::doorbell), so the caller may block in
    /// `epoll_wait(-1)`. False: there is work, do not block.
    ///
    /// Call [`wake`](Endpoint::wake) after blocking. In between, this endpoint must neither send
    /// nor receive.
    pub fn prepare_sleep(&mut self) -> bool {
        self.flush();
        self.shared.ports[self.index].announce_sleep();
        let work = self.has_work();
        // Emptying edges may have unblocked a sender.
        self.flush();
        if work {
            self.shared.ports[self.index].announce_run();
        }
        !work
    }

    /// Announces that the endpoint runs: senders no longer ring. Harmless if it did not sleep.
    pub fn wake(&mut self) {
        self.shared.ports[self.index].announce_run();
    }

    /// Returns the descriptor that becomes readable when this endpoint is woken: an eventfd, opened
    /// by [`mesh`](crate::mesh).
    ///
    /// Register it **edge-triggered** (epoll with `EPOLLET`, mio; for tokio see `async_doorbell`)
    /// and never read it: every wake is a separate edge. Level-triggered, it would stay readable
    /// for ever.
    #[cfg(not(loom))]
    pub fn doorbell(&self) -> std::os::fd::BorrowedFd<'_> {
        self.shared.ports[self.index].doorbell.fd()
    }

    /// Returns the [`doorbell`](Endpoint::doorbell) for the current tokio runtime.
    ///
    /// # Errors
    /// `EMFILE` if no descriptor is left for a duplicate, or an error of its registration with the
    /// runtime.
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

    /// Frees memory of rings after a burst: of outgoing edges without messages since the last call,
    /// and of incoming ones whose sender has done so. Call it from a timer, about every ten
    /// seconds; it examines every edge in use.
    pub fn trim(&mut self) {
        for producer in self.outbound.iter_mut().flatten() {
            producer.trim();
        }
        for consumer in self.inbound.iter_mut().flatten() {
            consumer.trim();
        }
    }

    /// Returns the counters of outgoing edges that were ever used.
    pub fn stats(&self) -> impl Iterator<Item = EdgeStats> + '_ {
        (0..self.len()).filter_map(|to| self.shared.edge_stats(self.index, to))
    }

    /// Returns a view of the counters of the whole mesh for another thread, such as one that serves
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
            self.notify_if_blocked(from);
        }
        Some(value)
    }

    /// Takes the receiving end of an edge whose bit is set, unless already taken.
    fn join(&mut self, from: usize) {
        if self.inbound[from].is_none() {
            self.inbound[from] = self.shared.join_edge(from, self.index);
        }
    }

    /// Clears the bit of an empty edge, and checks it again.
    fn retire(&mut self, from: usize) -> Option<T> {
        self.shared.ports[self.index].clear_ready(from);
        self.notify_if_blocked(from);
        let value = self.pop(from)?;
        // A ring with messages has its bit set, and there may be more.
        self.shared.ports[self.index].set_ready(from);
        Some(value)
    }

    #[inline]
    fn notify_if_blocked(&mut self, from: usize) {
        if self.inbound[from].as_ref().is_some_and(Consumer::take_blocked) {
            self.notify_room(from);
        }
    }

    #[cold]
    fn notify_room(&mut self, from: usize) {
        self.shared.ports[from].set_room(self.index);
        self.room_notified |= 1 << from;
    }

    /// Returns whether a message waits, or an endpoint has reported room since the last check.
    /// Clears the bits of empty edges: a sender that sees its bit set relies on the receiver to
    /// check the edge.
    fn has_work(&mut self) -> bool {
        let room = self.shared.ports[self.index].take_room();
        self.room |= room;
        let mut work = room != 0;
        for from in bits(self.shared.ports[self.index].ready()) {
            if self.is_quiet(from) {
                self.shared.ports[self.index].clear_ready(from);
                self.notify_if_blocked(from);
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
        // Without a consumer, the first message was not received.
        self.inbound[from].as_ref().is_some_and(Consumer::is_empty)
    }
}

impl<T> Drop for Endpoint<T> {
    /// Closes the endpoint. Senders get an error once they detect it; messages not received are
    /// dropped; messages that it has sent will be received.
    fn drop(&mut self) {
        self.shared.ports[self.index].close();
        fence(Ordering::SeqCst);
        let ready = self.shared.ports[self.index].ready();
        for from in 0..self.len() {
            // A message whose sender has not set the bit yet is dropped with its ring.
            if ready & 1 << from != 0 {
                self.join(from);
            }
            while self.pop(from).is_some() {}
            self.notify_if_blocked(from);
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

/// Returns the first set bit after `cursor`, cyclically. `word` is not zero.
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
