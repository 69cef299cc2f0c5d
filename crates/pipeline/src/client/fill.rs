//! Moves requests from the queue to connections with room.

use std::io::IoSlice;
use std::num::NonZeroU64;

use dunlin_net::{ConnId, Context};

use super::core::{Core, Entry};
use super::dial::put;
use super::host::HostId;
use super::host_connection::HostConnection;
use super::outcome::{Effect, ErrorKind};

/// Most bytes of a batch. More would only wait in the socket.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// Batches up to this size are copied into one buffer and sent with `send`; larger ones are sent with `writev`.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Most requests of a batch: the number of slices that the kernel accepts.
const BATCH_MAX: u32 = 1024;
/// Milliseconds that a server has to close after the last request of its budget.
const SPENT_MS: u64 = 500;

impl Core {
    /// Sends the queued requests of a host on connections with room, and opens more connections if necessary.
    pub(crate) fn fill_host<D: Default>(&mut self, cx: &mut Context<D>, host_id: HostId) {
        if self.hosts[host_id.0 as usize].removed {
            return self.clear_out(cx, host_id);
        }
        let links = std::mem::take(&mut self.hosts[host_id.0 as usize].links);
        for &conn in &links {
            if self.hosts[host_id.0 as usize].queue.is_empty() {
                break;
            }
            if self.link(conn).is_some_and(|link| link.room() > 0)
                && let Some(mut link) = self.take_link(conn)
            {
                self.fill(cx, &mut link);
                self.watch(cx, &mut link);
                put(&mut self.entries, conn, Entry::Open(link));
            }
        }
        self.hosts[host_id.0 as usize].links = links;
        if !self.hosts[host_id.0 as usize].queue.is_empty() {
            self.open_more(cx, host_id);
        }
    }

    /// Closes the connections of a removed host that have no outstanding answers. Frees the host's slot with the last
    /// one.
    fn clear_out<D: Default>(&mut self, cx: &mut Context<D>, host_id: HostId) {
        let links = std::mem::take(&mut self.hosts[host_id.0 as usize].links);
        let (busy, idle): (Vec<ConnId>, Vec<ConnId>) = links
            .into_iter()
            .partition(|&conn| self.link(conn).is_some_and(|link| link.connection.in_flight() > 0));
        for conn in idle {
            self.take_link(conn);
            cx.close(conn);
        }
        let host = &mut self.hosts[host_id.0 as usize];
        host.links = busy;
        if host.links.is_empty() && host.dials == 0 && !self.vacant.contains(&host_id.0) {
            self.vacant.push(host_id.0);
        }
    }

    /// Sends as many requests on a connection as it has room for, in as few writes as possible.
    pub(crate) fn fill<D: Default>(&mut self, cx: &mut Context<D>, link: &mut HostConnection) {
        loop {
            let room = link.room().min(BATCH_MAX);
            if room == 0 || !self.gather_batch(link, room) {
                return;
            }
            if !self.send_batch(cx, link) {
                return;
            }
        }
    }

    /// Takes requests from the queue into the batch. Returns `false` if there are none for this connection.
    fn gather_batch(&mut self, link: &mut HostConnection, room: u32) -> bool {
        let host = &mut self.hosts[link.host.0 as usize];
        self.batch.clear();
        self.scratch.clear();
        let mut bytes = 0;
        while (self.batch.len() as u32) < room
            && bytes < BATCH_BYTES_MAX
            && let Some((_, &place)) = host.queue.front()
        {
            let Some(record) = self.records.get_mut(place) else {
                host.queue.pop_front();
                continue;
            };
            if !record.prepared.shares {
                if link.connection.in_flight() > 0 || !self.batch.is_empty() {
                    break;
                }
                link.exclusive = true;
            }
            host.queue.pop_front();
            host.queue_bytes -= record.prepared.bytes.len();
            bytes += record.prepared.bytes.len();
            if bytes <= COPIED_BYTES_MAX {
                self.scratch.extend_from_slice(&record.prepared.bytes);
            }
            self.batch.push(place);
            if link.exclusive {
                break;
            }
        }
        if bytes > COPIED_BYTES_MAX {
            self.scratch.clear();
        }
        if host.refused {
            // The queue may have room to report.
            self.mark(link.host);
        }
        !self.batch.is_empty()
    }

    /// Writes the batch. Requests that the socket did not begin to accept return to the queue. Returns `false` if the
    /// socket is full.
    fn send_batch<D: Default>(&mut self, cx: &mut Context<D>, link: &mut HostConnection) -> bool {
        let batch = std::mem::take(&mut self.batch);
        let lengths = |core: &Core, place: u32| {
            core.records.get(place).map_or(0, |record| record.prepared.bytes.len())
        };
        let written = if self.scratch.is_empty() {
            let slices: Vec<IoSlice<'_>> = batch
                .iter()
                .filter_map(|&place| self.records.get(place))
                .map(|record| IoSlice::new(&record.prepared.bytes))
                .collect();
            cx.try_write_slices(link.id, &slices)
        } else {
            cx.try_write_slices(link.id, &[IoSlice::new(&self.scratch)])
        };
        let taken = written.unwrap_or(0);
        let (mut end, mut begun) = (0, 0);
        let was_idle = link.connection.in_flight() == 0;
        for &place in &batch {
            if end >= taken {
                break;
            }
            end += lengths(self, place);
            begun += 1;
            if let Some(record) = self.records.get_mut(place) {
                let kind = record.prepared.kind;
                let kind = if record.sent { kind.replayed() } else { kind };
                record.sent = true;
                link.connection.handle_sent(u64::from(place), 1, kind, self.now_ns);
            }
        }
        if end > taken
            && let Some(last) = self.records.get(batch[begun - 1])
        {
            // The rest of a partially written request must follow.
            let bytes = &last.prepared.bytes;
            let _ = cx.write(link.id, &bytes[bytes.len() - (end - taken)..]);
        }
        if was_idle && begun > 0 {
            link.oldest_since_ms = cx.now_ms();
        }
        let whole = begun == batch.len() && end == taken;
        if begun < batch.len() {
            link.exclusive &= link.connection.in_flight() > 0;
            self.requeue(link.host, &batch[begun..]);
        }
        // An error is followed by `on_close`, a short write by `on_writable`.
        link.blocked = !whole;
        self.batch = batch;
        whole
    }

    /// Sets the deadline of a connection: that of its oldest request, or its idle timeout.
    pub(crate) fn watch<D: Default>(&mut self, cx: &mut Context<D>, link: &mut HostConnection) {
        let config = &self.hosts[link.host.0 as usize].config;
        let connection = &link.connection;
        let (from_ms, timeout_ms) = if connection.in_flight() > 0 {
            (link.oldest_since_ms, config.answer_timeout_ms)
        } else if !connection.is_open() {
            link.spent = true;
            (cx.now_ms(), NonZeroU64::new(SPENT_MS))
        } else {
            (cx.now_ms(), config.idle_timeout_ms)
        };
        cx.set_deadline(link.id, timeout_ms.map(|timeout_ms| from_ms + timeout_ms.get()));
    }

    /// Ends requests whose queue timeout has expired.
    pub(crate) fn expire_queues(&mut self) {
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            let Some(timeout_ms) = host.config.queue_timeout_ms else { continue };
            let timeout_ns = timeout_ms.get().saturating_mul(1_000_000);
            let (records, ended, now_ns) = (&self.records, &mut self.ended, self.now_ns);
            let is_over = |place: &u32| {
                records.get(*place).is_none_or(|record| record.queued_ns + timeout_ns < now_ns)
            };
            host.queue.pop_while(is_over, |place| {
                let Some(record) = records.get(place) else { return };
                host.queue_bytes -= record.prepared.bytes.len();
                let effect = if record.replays > 0 { Effect::Possible } else { Effect::None };
                let error = super::RequestError {
                    host: host.name.clone(),
                    request: record.id,
                    kind: ErrorKind::QueueTimeout,
                    effect,
                };
                ended.push((place, error));
            });
        }
    }
}
