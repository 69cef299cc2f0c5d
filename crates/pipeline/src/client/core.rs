//! The state of a client without its caller: hosts, requests and connections.

use std::io;
use std::sync::Arc;

use dunlin_net::{ConnId, Context, ResolveError, TimerId, UrlError};
use dunlin_wire::backoff::Backoff;
use dunlin_wire::fair_queue::FairQueue;

use super::config::{ClientConfig, HostConfig};
use super::host::{Host, HostId};
use super::host_connection::HostConnection;
use super::outcome::{Effect, ErrorKind, RequestError};
use super::request::{Prepared, Record, Records, Request, RequestId, SendError};

/// Interval in milliseconds at which a client checks timeouts of requests and due dials.
pub(crate) const WATCH_MS: u64 = 50;
/// Milliseconds until a name that did not resolve is tried again.
const UNRESOLVED_MS: u64 = 1000;
/// Delay after a failed dial.
const DIAL_BACKOFF: Backoff = Backoff { min_ms: 100, max_ms: 1_600 };

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: ClientConfig,
    pub(crate) hosts: Vec<Host>,
    /// Slots of removed hosts, for reuse.
    pub(crate) vacant: Vec<u32>,
    pub(crate) records: Records,
    /// By the index of the connection.
    pub(crate) entries: Vec<Entry>,
    /// Hosts with requests to send or connections to open.
    pub(crate) dirty: Vec<HostId>,
    /// Requests that ended without an answer and are not reported yet.
    pub(crate) ended: Vec<(u32, RequestError)>,
    pub(crate) next_id: u64,
    pub(crate) now_ns: u64,
    pub(crate) closing: bool,
    /// Runs while requests wait.
    pub(crate) watch_timer: Option<TimerId>,
    /// The buffer in which a batch is assembled.
    pub(crate) scratch: Vec<u8>,
    pub(crate) batch: Vec<u32>,
}

/// The role of a connection of the loop.
#[derive(Debug)]
pub(crate) enum Entry {
    Free,
    Dialing(HostId),
    Open(Box<HostConnection>),
}

impl Core {
    pub(crate) fn new(config: ClientConfig) -> Core {
        Core {
            config,
            hosts: Vec::new(),
            vacant: Vec::new(),
            records: Records::default(),
            entries: Vec::new(),
            dirty: Vec::new(),
            ended: Vec::new(),
            next_id: 0,
            now_ns: 0,
            closing: false,
            watch_timer: None,
            scratch: Vec::new(),
            batch: Vec::new(),
        }
    }

    pub(crate) fn mark(&mut self, host_id: HostId) {
        let host = &mut self.hosts[host_id.0 as usize];
        if !host.dirty {
            host.dirty = true;
            self.dirty.push(host_id);
        }
    }

    /// Appends a request to the queue of its host.
    fn enqueue(
        &mut self,
        host_id: HostId,
        prepared: Prepared,
        (flow, tag): (u64, u64),
    ) -> Result<RequestId, SendError> {
        if self.closing {
            return Err(SendError::Closing);
        }
        let host = self.hosts.get_mut(host_id.0 as usize).ok_or(SendError::UnknownHost)?;
        if host.removed {
            return Err(SendError::Closing);
        }
        let bytes = prepared.bytes.len();
        let full = host.queue.len() >= host.config.queue_max
            || (!host.queue.is_empty() && host.queue_bytes + bytes > host.config.queue_bytes_max);
        if full {
            host.refused = true;
            return Err(SendError::Full);
        }
        // A flow may have as many as there is room for others: one alone gets half of the queue, two get a third each.
        let room = host.config.queue_max - host.queue.len();
        if flow != Request::NO_FLOW && host.queue.len_of(flow) >= room {
            return Err(SendError::FlowFull);
        }
        self.next_id += 1;
        let id = RequestId(self.next_id);
        let place = self.records.insert(Record {
            prepared,
            id,
            tag,
            flow,
            queued_ns: self.now_ns,
            replays: 0,
            sent: false,
            begun: false,
        });
        host.queue.push_back(flow, 1, place);
        host.queue_bytes += bytes;
        self.mark(host_id);
        Ok(id)
    }

    /// Puts requests back at the front of the queue, in the given order.
    pub(crate) fn requeue(&mut self, host_id: HostId, places: &[u32]) {
        if places.is_empty() {
            return;
        }
        let host = &mut self.hosts[host_id.0 as usize];
        for &place in places.iter().rev() {
            if let Some(record) = self.records.get(place) {
                host.queue_bytes += record.prepared.bytes.len();
                host.queue.push_front(record.flow, 1, place);
            }
        }
        if host.removed {
            self.end_queue(host_id, &ErrorKind::Removed);
        }
        self.mark(host_id);
    }

    /// Ends a request without an answer. It is reported later in the turn.
    pub(crate) fn end(&mut self, host_id: HostId, place: u32, effect: Effect, kind: ErrorKind) {
        let Some(record) = self.records.get(place) else { return };
        let host = Arc::clone(&self.hosts[host_id.0 as usize].name);
        self.ended.push((place, RequestError { host, request: record.id, kind, effect }));
    }

    /// Ends all queued requests of a host.
    pub(crate) fn end_queue(&mut self, host_id: HostId, kind: &ErrorKind) {
        let host = &mut self.hosts[host_id.0 as usize];
        host.queue_bytes = 0;
        let mut queue = std::mem::replace(&mut host.queue, FairQueue::new(1));
        while let Some((_, place)) = queue.pop_front() {
            // A request that was sent before was not processed then, or is idempotent.
            let replayed = self.records.get(place).is_some_and(|record| record.replays > 0);
            let effect = if replayed { Effect::Possible } else { Effect::None };
            self.end(host_id, place, effect, kind.clone());
        }
    }

    /// Handles a failed attempt to open a connection.
    pub(crate) fn dial_failed<D: Default>(
        &mut self,
        cx: &mut Context<D>,
        host_id: HostId,
        error: &io::Error,
    ) {
        let unresolved = ResolveError::of(error);
        let host = &mut self.hosts[host_id.0 as usize];
        host.dials -= 1;
        host.failures += 1;
        let backoff_ms = DIAL_BACKOFF.delay_ms(host.failures);
        // Limits the rate of requests to the resolver.
        let pause_ms = if unresolved.is_some() { UNRESOLVED_MS } else { backoff_ms };
        host.dial_after_ms = cx.now_ms() + pause_ms;
        // `net` reports TLS failures with this kind.
        let tls = error.kind() == io::ErrorKind::InvalidData;
        let last = tls || unresolved.is_some() || host.failures >= host.config.connect_attempts;
        if last && host.links.is_empty() && host.dials == 0 {
            host.failures = 0;
            let kind = match unresolved {
                Some(error) => ErrorKind::Name(error.message.as_str().into()),
                None if tls => ErrorKind::Tls(Arc::new(copy_error(error))),
                None => ErrorKind::Connect(Arc::new(copy_error(error))),
            };
            self.end_queue(host_id, &kind);
        }
        self.mark(host_id);
    }

    /// Opens as many connections as the queued requests can fill.
    pub(crate) fn open_more<D: Default>(&mut self, cx: &mut Context<D>, host_id: HostId) {
        let host = &self.hosts[host_id.0 as usize];
        let alive = host.links.iter().filter(|&&link| {
            matches!(&self.entries.get(link.index() as usize), Some(Entry::Open(link)) if link.connection.is_open())
        });
        let present = alive.count() as u32 + host.dials;
        // Connections that the server is about to close still hold descriptors.
        let held = host.links.len() as u32 + host.dials;
        let config = &host.config;
        let allowed = config.connections.saturating_sub(present);
        let allowed = allowed.min(config.connections.saturating_mul(2).saturating_sub(held));
        let being_opened = u64::from(host.dials) * u64::from(host.depth());
        let waiting = (host.queue.len() as u64).saturating_sub(being_opened);
        let wanted = waiting.div_ceil(u64::from(host.depth()));
        if wanted == 0 || allowed == 0 || host.dial_after_ms > cx.now_ms() {
            return;
        }
        for _ in 0..wanted.min(u64::from(allowed)) {
            self.dial(cx, host_id);
            if self.hosts[host_id.0 as usize].dial_after_ms > cx.now_ms() {
                return;
            }
        }
    }

    pub(crate) fn link(&mut self, conn: ConnId) -> Option<&mut HostConnection> {
        match self.entries.get_mut(conn.index() as usize) {
            Some(Entry::Open(link)) if link.id == conn => Some(link),
            _ => None,
        }
    }

    /// Returns whether this is an open connection of the client. One that is being opened is not known by its id yet.
    pub(crate) fn owns(&self, conn: ConnId) -> bool {
        match self.entries.get(conn.index() as usize) {
            Some(Entry::Open(link)) => link.id == conn,
            _ => false,
        }
    }

    /// Takes a link out of the table; the caller puts it back or drops it.
    pub(crate) fn take_link(&mut self, conn: ConnId) -> Option<Box<HostConnection>> {
        let entry = self.entries.get_mut(conn.index() as usize)?;
        match std::mem::replace(entry, Entry::Free) {
            Entry::Open(link) if link.id == conn => Some(link),
            other => {
                *entry = other;
                None
            }
        }
    }
}

/// Adds hosts and sends requests, from any method of the caller. A [`HostId`] of another client has no queue and no
/// budget, and sending to it fails; preparing a request for it panics.
#[derive(Debug)]
pub struct Requests<'a> {
    pub(crate) core: &'a mut Core,
}

impl Requests<'_> {
    /// Adds a host by URL: `http://`, `https://`, or `unix:` and the path of a socket. The path of an HTTP URL is
    /// ignored. Does not connect yet.
    ///
    /// # Errors
    ///
    /// Returns [`UrlError`] if the URL is invalid.
    pub fn host(&mut self, url: &str, config: HostConfig) -> Result<HostId, UrlError> {
        let host = Host::new(url.parse()?, config);
        if let Some(place) = self.core.vacant.pop() {
            self.core.hosts[place as usize] = host;
            return Ok(HostId(place));
        }
        let id = HostId(self.core.hosts.len() as u32);
        self.core.hosts.push(host);
        Ok(id)
    }

    /// Removes a host. Its queued requests end with [`ErrorKind::Removed`], requests in flight end as usual, and its
    /// connections close after their last answer. The id becomes invalid and may be reused for another host.
    pub fn remove(&mut self, host: HostId) {
        let Some(known) = self.core.hosts.get_mut(host.0 as usize) else { return };
        if !std::mem::replace(&mut known.removed, true) {
            self.core.end_queue(host, &ErrorKind::Removed);
            self.core.mark(host);
        }
    }

    /// Renders a request for a host. It can be sent any number of times.
    ///
    /// # Panics
    ///
    /// Panics if the client has no such host.
    pub fn prepare(&self, host: HostId, request: &Request<'_>) -> Prepared {
        Prepared::new(&self.host_of(host).expect(HostId::FOREIGN).url.authority, request)
    }

    /// Renders a prepared request for another host.
    ///
    /// # Panics
    ///
    /// Panics if the client has no such host.
    pub fn prepare_again(&self, host: HostId, request: &Prepared) -> Prepared {
        request.for_authority(&self.host_of(host).expect(HostId::FOREIGN).url.authority)
    }

    fn host_of(&self, host: HostId) -> Option<&Host> {
        self.core.hosts.get(host.0 as usize)
    }

    /// Sends a request at the end of this turn, or when a connection has room. The outcome is reported with `tag`.
    ///
    /// # Errors
    ///
    /// [`SendError::Full`] if the queue of the host is full, [`SendError::Closing`] after
    /// [`Client::shutdown`](crate::Client::shutdown), [`SendError::UnknownHost`] if the client has no such host.
    pub fn send(
        &mut self,
        host: HostId,
        request: &Prepared,
        tag: u64,
    ) -> Result<RequestId, SendError> {
        self.core.enqueue(host, request.clone(), (Request::NO_FLOW, tag))
    }

    /// Sends a request for a flow: a user, or whoever else shares the host with others. Queued requests of flows take turns, and a
    /// flow has at most as many of them as the queue has room for others. [`Request::NO_FLOW`] has no such bound.
    ///
    /// # Errors
    ///
    /// Those of [`send`](Requests::send), and [`SendError::FlowFull`] if the flow's share of the queue is full.
    pub fn send_of(
        &mut self,
        flow: u64,
        host: HostId,
        request: &Prepared,
        tag: u64,
    ) -> Result<RequestId, SendError> {
        self.core.enqueue(host, request.clone(), (flow, tag))
    }

    /// Converts a send error to an outcome.
    pub(crate) fn send_error(&self, host: HostId, error: SendError) -> RequestError {
        let host = self.host_of(host).map_or_else(Arc::default, |host| Arc::clone(&host.name));
        RequestError { host, request: RequestId(0), kind: error.into(), effect: Effect::None }
    }

    /// Returns the number of accepted requests that have not ended.
    pub fn outstanding(&self) -> usize {
        self.core.records.len()
    }

    /// Returns the number of queued requests of a host.
    pub fn queued(&self, host: HostId) -> usize {
        self.host_of(host).map_or(0, |host| host.queue.len())
    }

    /// Returns the number of requests the host accepts on one connection, if it is known.
    pub fn budget(&self, host: HostId) -> Option<u64> {
        self.host_of(host)?.budget.limit()
    }
}

/// Copies an error: `io::Error` cannot be cloned.
pub(crate) fn copy_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
