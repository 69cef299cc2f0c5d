//! A thread of the generator: many connections on one reactor, with one read buffer.
//!
//! A turn costs one `epoll_wait` for all connections, and for each ready connection one `recv` for all answers that
//! arrived and one `send` for all requests that replace them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dunlin_wire::backoff::Backoff;

use super::connection::{CloseCause, Connection, Core};
use super::options::Depth;
use super::plan::{Plan, Reporter, Shared};
use crate::Error;
use crate::reactor::{ENDS, EVENTS_MAX, Events, Flags, Reactor, STREAM, sleep_exactly};
use crate::transport::{Broken, Transport};

const READ_BYTES: usize = 256 << 10;
/// Interval between checks for timeouts, in nanoseconds, and how much it grows with each connection.
const SWEEP_NS: u64 = 10_000_000;
const SWEEP_NS_PER_CONNECTION: u64 = 1_000;
/// Delay before a retry of a failed connect.
const RETRY: Backoff = Backoff { min_ms: 20, max_ms: 1_000 };
/// The run is given up after this long without an open connection.
const HOPELESS_NS: u64 = 10_000_000_000;
/// Time limit for the answers in flight once sending has stopped.
const DRAIN_NS: u64 = 5_000_000_000;
/// Time limit for opening all connections before the run begins.
const OPENING_NS: u64 = 10_000_000_000;

pub(super) struct Worker {
    reactor: Reactor,
    slots: Vec<Slot>,
    core: Core,
    shared: Arc<Shared>,
    reporter: Reporter,
    thread: usize,
    input: Vec<u8>,
    /// Whether all connections are read before any sends; see [`Worker::refill`].
    together: bool,
    /// Connections that were read in this turn and may have room for requests.
    answered: Vec<usize>,
    phase: Phase,
    /// Connections that are open.
    open: usize,
    /// Slots that have been open, or have failed, at least once.
    tried: usize,
    open_seen_ns: u64,
    swept_ns: u64,
    span: u64,
    /// The slot to offer the next due request to.
    cursor: usize,
}

/// A slot for a connection. The generation distinguishes its events from those of its predecessors.
#[derive(Default)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
    /// Do not reconnect before this time.
    retry_ns: u64,
    failures: u32,
    tried: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Connections open; nothing is sent yet.
    Opening,
    /// Sending without counting until this time.
    WarmUp {
        until_ns: u64,
    },
    /// Sending, until this time if there is a limit.
    Sending {
        until_ns: Option<u64>,
    },
    /// Waiting for the answers in flight.
    Draining {
        until_ns: u64,
    },
    Over,
}

impl Worker {
    pub(super) fn new(
        plan: Arc<Plan>,
        thread: u32,
        shared: Arc<Shared>,
        reporter: Reporter,
    ) -> Result<Self, Error> {
        sleep_exactly()?;
        let plan_depth = plan.depth;
        let mine =
            plan.connections / plan.threads + u32::from(thread < plan.connections % plan.threads);
        Ok(Self {
            reactor: Reactor::new()?,
            slots: (0..mine).map(|_| Slot::default()).collect(),
            core: Core::new(plan, thread),
            shared,
            reporter,
            thread: thread as usize,
            input: vec![0; READ_BYTES],
            together: matches!(plan_depth, Depth::Fixed(2..=64)),
            answered: Vec::new(),
            phase: Phase::Opening,
            open: 0,
            tried: 0,
            open_seen_ns: 0,
            swept_ns: 0,
            span: 0,
            cursor: 0,
        })
    }

    pub(super) fn run(mut self) -> Result<(), Error> {
        let clock = self.core.plan.clock;
        let began_ns = clock.now_ns();
        self.open_seen_ns = began_ns;
        for index in 0..self.slots.len() {
            self.open_slot(index, began_ns);
        }
        let mut said_ready = false;
        let mut events = Events::with_capacity(EVENTS_MAX);
        while self.phase != Phase::Over {
            let now_ns = clock.now_ns();
            let wait_ns = self.wait_ns(now_ns)?;
            self.reactor.wait(Some(wait_ns), &mut events)?;
            for (token, flags) in events.iter() {
                let (index, generation) = ((token & 0xffff_ffff) as usize, (token >> 32) as u32);
                // The timer's token belongs to no slot.
                if self.slots.get(index).is_some_and(|slot| slot.generation == generation) {
                    self.handle_event(index, flags);
                }
            }
            self.refill();
            let now_ns = clock.now_ns();
            if self.core.schedule.is_open_model()
                && matches!(
                    self.phase,
                    Phase::WarmUp { .. } | Phase::Sending { .. } | Phase::Draining { .. }
                )
            {
                self.send_due(now_ns);
            }
            self.sweep(now_ns);
            if !said_ready && (self.tried == self.slots.len() || now_ns - began_ns > OPENING_NS) {
                said_ready = true;
                self.shared.ready(now_ns);
            }
            self.advance(now_ns);
            self.publish();
            if let Some(ledger) = &mut self.core.ledger {
                ledger.flush_if(256 << 10)?;
            }
        }
        for slot in &mut self.slots {
            if let Some(connection) = slot.connection.take() {
                connection.abandon(&mut self.core);
            }
        }
        self.core.give_up_rest();
        if let Some(ledger) = &mut self.core.ledger {
            ledger.flush_if(0)?;
        }
        self.reporter.report(Some(self.span), &mut self.core.tally);
        self.publish();
        Ok(())
    }

    /// Returns how long to wait for an event; the timer wakes the thread for requests that are due before.
    fn wait_ns(&mut self, now_ns: u64) -> Result<u64, Error> {
        if self.core.schedule.is_open_model()
            && self.phase != Phase::Opening
            && self.core.schedule.available(now_ns, 1) == 0
            && let Some(due_ns) = self.core.schedule.next_due_ns()
        {
            if due_ns <= now_ns {
                return Ok(0);
            }
            self.reactor.wake_at(due_ns, now_ns)?;
        }
        Ok(SWEEP_NS)
    }

    /// Advances the phase by time and by the work that is left.
    fn advance(&mut self, now_ns: u64) {
        let plan = &self.core.plan;
        let stop = self.shared.stop.load(Ordering::Relaxed);
        match self.phase {
            Phase::Opening => {
                let Some(start_ns) = self.shared.start_ns() else { return };
                self.core.schedule.start(start_ns);
                self.phase = Phase::WarmUp { until_ns: start_ns + plan.warm_up_ns };
                if plan.warm_up_ns == 0 {
                    self.begin_to_count(start_ns);
                }
                self.fill_all(now_ns);
            }
            Phase::WarmUp { until_ns } => {
                if now_ns >= until_ns || stop {
                    self.reporter.report(None, &mut self.core.tally);
                    self.begin_to_count(until_ns);
                }
            }
            Phase::Sending { until_ns } => {
                self.report_span(now_ns);
                let over = until_ns.is_some_and(|until_ns| now_ns >= until_ns) || stop;
                if over {
                    self.core.schedule.stop(until_ns.unwrap_or(now_ns).min(now_ns));
                }
                if over || self.is_done() {
                    self.phase = Phase::Draining { until_ns: now_ns + DRAIN_NS };
                    if self.is_done() {
                        self.phase = Phase::Over;
                    }
                } else if self.is_hopeless(now_ns) {
                    self.phase = Phase::Over;
                }
            }
            Phase::Draining { until_ns } => {
                self.report_span(now_ns);
                if self.is_done() || now_ns >= until_ns || self.is_hopeless(now_ns) {
                    self.phase = Phase::Over;
                }
            }
            Phase::Over => {}
        }
    }

    fn begin_to_count(&mut self, at_ns: u64) {
        self.core.begin_to_count();
        let duration_ns = self.core.plan.duration_ns;
        self.phase = Phase::Sending { until_ns: duration_ns.map(|ns| at_ns + ns) };
    }

    fn report_span(&mut self, now_ns: u64) {
        let Some(start_ns) = self.shared.start_ns() else { return };
        let plan = &self.core.plan;
        let span = now_ns.saturating_sub(start_ns + plan.warm_up_ns) / plan.span_ns;
        if span > self.span {
            self.reporter.report(Some(self.span), &mut self.core.tally);
            self.span = span;
        }
    }

    /// Returns whether everything that was to be sent has been sent and has ended.
    fn is_done(&self) -> bool {
        !self.core.has_work()
            && self.slots.iter().all(|slot| {
                slot.connection
                    .as_ref()
                    .is_none_or(|connection| connection.pipeline.in_flight() == 0)
            })
    }

    fn is_hopeless(&self, now_ns: u64) -> bool {
        let timeout_ns = HOPELESS_NS.max(2 * self.core.plan.connect_timeout_ns);
        self.open == 0
            && (now_ns.saturating_sub(self.open_seen_ns) > timeout_ns
                || self.slots.iter().all(|slot| slot.failures >= 8))
    }

    fn publish(&mut self) {
        // There is a single writer, so a relaxed store is enough. The observer adds up the threads.
        let live = &self.shared.live[self.thread];
        let ends = &self.core.tally.ends;
        live.answered.store(ends.answered, Ordering::Relaxed);
        live.bad.store(ends.wrong + ends.failed + ends.uncertain, Ordering::Relaxed);
        live.open.store(self.open as u64, Ordering::Relaxed);
    }

    fn open_slot(&mut self, index: usize, now_ns: u64) {
        let plan = &self.core.plan;
        let slot = &mut self.slots[index];
        let at = plan.resolved.of_attempt(slot.failures);
        let opened = Transport::connect(at, plan.tls.as_ref()).and_then(|transport| {
            let token = u64::from(slot.generation) << 32 | index as u64;
            self.reactor.watch(&transport.socket, token, STREAM)?;
            Ok(transport)
        });
        match opened {
            Ok(transport) => {
                slot.connection = Some(Box::new(Connection::new(transport, &self.core, now_ns)));
            }
            Err(error) => {
                self.core.connect_failed(&error);
                self.failed_to_open(index, now_ns);
            }
        }
    }

    fn failed_to_open(&mut self, index: usize, now_ns: u64) {
        let slot = &mut self.slots[index];
        slot.failures += 1;
        slot.retry_ns = now_ns + RETRY.delay_ms(slot.failures) * 1_000_000;
        self.tried += usize::from(!std::mem::replace(&mut slot.tried, true));
    }

    fn handle_event(&mut self, index: usize, flags: Flags) {
        let clock = self.core.plan.clock;
        let Some(connection) = &mut self.slots[index].connection else { return };
        if !connection.opened {
            let now_ns = clock.now_ns();
            if let Err(error) = connection.transport.connected() {
                return self.end(index, &CloseCause::Broken(Broken::Io(error)), now_ns);
            }
            if !flags.intersects(Flags::OUT | Flags::IN) {
                return;
            }
            if !connection.transport.is_open() {
                // A handshake moves on by reading and writing.
                if let Err(broken) = connection.transport.flush() {
                    return self.end(index, &CloseCause::Broken(broken), now_ns);
                }
                match connection.transport.read(&mut self.input) {
                    Ok(None) => {}
                    Ok(Some(_)) => {
                        let end =
                            CloseCause::Violation(dunlin_pipeline::ProtocolError::Unsolicited);
                        return self.end(index, &end, now_ns);
                    }
                    Err(broken) => return self.end(index, &CloseCause::Broken(broken), now_ns),
                }
                if !connection.transport.is_open() {
                    return;
                }
            }
            connection.opened = true;
            connection.since_ns = now_ns;
            self.open += 1;
            self.core.tally.events.opened += 1;
            let slot = &mut self.slots[index];
            self.tried += usize::from(!std::mem::replace(&mut slot.tried, true));
            if !matches!(self.phase, Phase::Opening | Phase::Over) {
                self.fill(index, now_ns);
            }
            return;
        }
        if flags.contains(Flags::OUT) && connection.transport.has_unsent() {
            let now_ns = clock.now_ns();
            if let Err(broken) = connection.transport.flush() {
                return self.end(index, &CloseCause::Broken(broken), now_ns);
            }
            self.fill(index, now_ns);
        }
        if flags.intersects(Flags::IN | Flags::HUP | Flags::ERR) {
            self.read(index, flags.intersects(ENDS));
        }
    }

    #[inline]
    fn read(&mut self, index: usize, to_the_end: bool) {
        let clock = self.core.plan.clock;
        loop {
            let Some(connection) = &mut self.slots[index].connection else { return };
            match connection.transport.read(&mut self.input) {
                Ok(None) => return,
                Ok(Some((length, more))) => {
                    let now_ns = clock.now_ns();
                    if let Err(end) = connection.take(&mut self.core, &self.input[..length], now_ns)
                    {
                        return self.end(index, &end, now_ns);
                    }
                    if self.together {
                        if self.answered.last() != Some(&index) {
                            self.answered.push(index);
                        }
                    } else if !self.core.schedule.is_open_model()
                        && let Err(broken) = connection.fill(&mut self.core, now_ns, u32::MAX)
                    {
                        return self.end(index, &CloseCause::Broken(broken), now_ns);
                    }
                    if !more && !to_the_end {
                        return;
                    }
                }
                Err(broken) => return self.end(index, &CloseCause::Broken(broken), clock.now_ns()),
            }
        }
    }

    /// Sends on all connections that this turn has read. The first send wakes the server, and the following ones find
    /// it awake, which makes them cheaper than sends that alternate with reads. At depth 16 this gives a fifth more
    /// requests per CPU second; at depths 1 and 100 it gives fewer, because the data has left the cache by then.
    fn refill(&mut self) {
        let clock = self.core.plan.clock;
        let mut answered = std::mem::take(&mut self.answered);
        if !self.core.schedule.is_open_model() {
            for &index in &answered {
                self.fill(index, clock.now_ns());
            }
        }
        answered.clear();
        self.answered = answered;
    }

    fn fill(&mut self, index: usize, now_ns: u64) {
        if self.core.schedule.is_open_model() {
            return self.send_due(now_ns);
        }
        let Some(connection) = &mut self.slots[index].connection else { return };
        if let Err(broken) = connection.fill(&mut self.core, now_ns, u32::MAX) {
            self.end(index, &CloseCause::Broken(broken), now_ns);
        }
    }

    fn fill_all(&mut self, now_ns: u64) {
        for index in 0..self.slots.len() {
            self.fill(index, now_ns);
        }
    }

    /// Sends the requests that are due, in turn over the connections that have room.
    fn send_due(&mut self, now_ns: u64) {
        let mut without_room = 0;
        while without_room < self.slots.len() {
            let due = self.core.schedule.available(now_ns, u64::from(u32::MAX)) as usize
                + self.core.waiting_again();
            if due == 0 {
                return;
            }
            let index = self.cursor % self.slots.len();
            self.cursor = index + 1;
            // An equal share for each connection: single requests at low rates, batches at high ones.
            let share = due.div_ceil(self.open.max(1)) as u32;
            let sent = match &mut self.slots[index].connection {
                Some(connection) => connection.fill(&mut self.core, now_ns, share),
                None => Ok(0),
            };
            match sent {
                Ok(0) => without_room += 1,
                Ok(_) => without_room = 0,
                Err(broken) => {
                    self.end(index, &CloseCause::Broken(broken), now_ns);
                    without_room += 1;
                }
            }
        }
    }

    fn sweep(&mut self, now_ns: u64) {
        if self.open > 0 {
            self.open_seen_ns = now_ns;
        }
        let every_ns = SWEEP_NS + SWEEP_NS_PER_CONNECTION * self.slots.len() as u64;
        if now_ns.saturating_sub(self.swept_ns) < every_ns {
            return;
        }
        self.swept_ns = now_ns;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            match &mut slot.connection {
                Some(connection) => {
                    if let Err(end) = connection.sweep(&mut self.core, now_ns) {
                        self.end(index, &end, now_ns);
                    } else if !matches!(self.phase, Phase::Opening | Phase::Over) {
                        // Requests to be sent again may find room on connections that have nothing to read.
                        self.fill(index, now_ns);
                    }
                }
                None if slot.retry_ns <= now_ns && self.core.has_work() => {
                    self.open_slot(index, now_ns);
                }
                None => {}
            }
        }
    }

    fn end(&mut self, index: usize, end: &CloseCause, now_ns: u64) {
        let slot = &mut self.slots[index];
        let Some(connection) = slot.connection.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        let was_open = connection.opened;
        self.open -= usize::from(was_open);
        let useful = connection.end(&mut self.core, end, now_ns);
        if useful {
            slot.failures = 0;
            if self.core.has_work() && self.phase != Phase::Opening {
                self.open_slot(index, now_ns);
            }
        } else {
            self.failed_to_open(index, now_ns);
        }
    }
}
