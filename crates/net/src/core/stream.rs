//! Bytes of a connection: read and delivered, corked and sent.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use super::connection::{ConnId, Flags, Phase};
use super::context::Context;
use super::driver::Driver;
use super::error::{CloseReason, WriteError};
use super::handler::Handler;
use super::upper::Spoken;

/// Maximum number of corked connections in a turn; beyond it their output is sent at once. Bounds the buffers borrowed
/// for connections whose sockets are not full.
const CORKED_MAX: usize = 64;
/// Maximum corked bytes of one connection; beyond it they are sent at once.
const CORK_BYTES_MAX: usize = 64 << 10;
/// Maximum number of slices in one system call (`IOV_MAX`).
const SLICES_MAX: usize = 1024;

/// Flags for writes to sockets: no SIGPIPE, non-blocking.
pub(crate) const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Result of one call of `recv`.
enum Received {
    Bytes {
        /// Bytes from the socket, including TLS overhead.
        received: usize,
        /// Decrypted bytes in the shared buffer.
        plain: usize,
        /// The peer has sent a TLS `close_notify`.
        closed: bool,
    },
    /// The peer has sent its FIN.
    End,
    /// Nothing for now, or the connection has ended.
    Nothing,
    /// Interrupted.
    Again,
}

impl<D: Default> Context<D> {
    /// Sends bytes at the end of this turn, together with all other output of the connection in this turn. Bytes that
    /// the socket does not take are buffered, up to [`output_bytes_max`](crate::Limits::output_bytes_max), and sent
    /// later.
    ///
    /// # Errors
    ///
    /// [`WriteError::Stale`], [`WriteError::Full`] (nothing was accepted; `on_writable` follows), or
    /// [`WriteError::OutOfTurn`] after [`Context::shutdown_write`].
    pub fn write(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), WriteError> {
        self.write_with(conn, bytes.len(), |out| out.extend_from_slice(bytes))
    }

    /// Sends slices at once, as many bytes as the socket takes, with one system call and no copy: `send` for one slice,
    /// `sendmsg` for several. Returns the number of bytes taken. If that is not all, `on_writable` follows. While
    /// earlier bytes are buffered, it returns 0.
    ///
    /// # Errors
    ///
    /// [`WriteError::Stale`], also when this write finds the connection broken; `on_close` then follows.
    /// [`WriteError::OutOfTurn`] after [`Context::shutdown_write`].
    pub fn try_write_slices(
        &mut self,
        conn: ConnId,
        slices: &[IoSlice<'_>],
    ) -> Result<usize, WriteError> {
        let record = self.slab.get_mut(conn).ok_or(WriteError::Stale)?;
        match record.phase {
            Phase::Open => {}
            Phase::Connecting | Phase::Securing | Phase::Upgrading => {
                record.flags.set(Flags::WANT_WRITE);
                return Ok(0);
            }
            _ => return Err(WriteError::Stale),
        }
        if record.flags.has(Flags::SOCKET_FULL | Flags::SHUTDOWN_WRITE) || record.spill.is_some() {
            if record.flags.has(Flags::SHUTDOWN_WRITE) {
                return Err(WriteError::OutOfTurn);
            }
            if record.output_bytes() > 0 {
                self.flush(conn);
            }
            let record = self.slab.at_mut(conn.index());
            if record.phase != Phase::Open {
                return Err(WriteError::Stale);
            }
            if record.flags.has(Flags::SOCKET_FULL) {
                record.flags.set(Flags::WANT_WRITE);
                return Ok(0);
            }
        }
        if self.slab.at(conn.index()).flags.has(Flags::TLS) {
            return self.try_write_records(conn, slices);
        }
        let slices = &slices[..slices.len().min(SLICES_MAX)];
        let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
        let record = self.slab.at_mut(conn.index());
        match send(record.fd(), slices) {
            Ok(taken) => {
                self.stats.writes += 1;
                self.stats.bytes_out += taken as u64;
                if taken < wanted {
                    record.flags.set(Flags::SOCKET_FULL);
                    record.flags.set(Flags::WANT_WRITE);
                }
                Ok(taken)
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                self.stats.writes += 1;
                record.flags.set(Flags::SOCKET_FULL);
                record.flags.set(Flags::WANT_WRITE);
                Ok(0)
            }
            Err(errno) => {
                self.finish(conn, CloseReason::Io(io::Error::from(errno).kind()));
                Err(WriteError::Stale)
            }
        }
    }

    /// As [`Context::try_write_slices`] on TLS: records are buffered, so all bytes are taken up to the loop's memory
    /// limit.
    fn try_write_records(
        &mut self,
        conn: ConnId,
        slices: &[IoSlice<'_>],
    ) -> Result<usize, WriteError> {
        let (mut taken, mut whole) = (0, true);
        for slice in slices {
            let append = |out: &mut Vec<u8>| out.extend_from_slice(slice);
            match self.write_within(conn, slice.len(), usize::MAX, append) {
                Ok(()) => taken += slice.len(),
                // The loop's buffers are full. The bytes taken so far will be sent and must not be offered again.
                Err(WriteError::Full) => {
                    whole = false;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.flush(conn);
        let record = self.slab.at_mut(conn.index());
        if record.phase != Phase::Open {
            return Err(WriteError::Stale);
        }
        if record.flags.has(Flags::SOCKET_FULL) || !whole {
            record.flags.set(Flags::WANT_WRITE);
        }
        Ok(taken)
    }

    /// As [`Context::write`], without a copy: `write` appends to the connection's output, about `bytes` bytes. It is
    /// not called if the write fails.
    ///
    /// # Errors
    ///
    /// Those of [`Context::write`].
    pub fn write_with(
        &mut self,
        conn: ConnId,
        bytes: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), WriteError> {
        let profile = self.slab.get(conn).ok_or(WriteError::Stale)?.profile;
        self.write_within(conn, bytes, self.limits(profile).output_bytes_max, write)
    }

    /// As [`Context::write_with`], with the caller's limit on buffered bytes.
    pub(crate) fn write_within(
        &mut self,
        conn: ConnId,
        bytes: usize,
        bytes_max: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), WriteError> {
        let record = self.slab.get_mut(conn).ok_or(WriteError::Stale)?;
        if record.phase != Phase::Open && !record.phase.is_opening() {
            return Err(WriteError::Stale);
        }
        if record.flags.has(Flags::SHUTDOWN_WRITE) {
            return Err(WriteError::OutOfTurn);
        }
        let buffered = record.output_bytes();
        let fits =
            |buffered: usize, max: usize| buffered == 0 || buffered.saturating_add(bytes) <= max;
        if !fits(buffered, bytes_max)
            || !fits(self.stats.buffered_bytes, self.config.buffered_bytes_max)
        {
            // Sending corked output may make room.
            self.flush(conn);
            let record = self.slab.at(conn.index());
            let buffered = record.output_bytes();
            if record.phase == Phase::Closed {
                return Err(WriteError::Stale);
            }
            if !fits(buffered, bytes_max)
                || !fits(self.stats.buffered_bytes, self.config.buffered_bytes_max)
            {
                self.stats.refused_writes += 1;
                let flags = &mut self.slab.at_mut(conn.index()).flags;
                flags.set(Flags::WANT_WRITE);
                // The socket has room, so no event will follow: the bytes buffered for others are too many.
                if !flags.has(Flags::SOCKET_FULL) && !flags.has(Flags::MEMORY_BLOCKED) {
                    flags.set(Flags::MEMORY_BLOCKED);
                    self.memory_blocked.push(conn);
                    self.memory_blocked_bytes = self.stats.buffered_bytes;
                }
                return Err(WriteError::Full);
            }
        }
        let record = self.slab.at_mut(conn.index());
        let encrypted = record.flags.has(Flags::TLS) && record.phase == Phase::Open;
        let spill = record.spill.get_or_insert_with(|| self.pool.borrow());
        let output = &mut spill.output;
        let before = output.len();
        let sent = match spill.tls.as_mut().filter(|_| encrypted) {
            None => {
                write(output.tail());
                Ok(())
            }
            Some(session) => {
                let mut plain = std::mem::take(&mut self.decrypted);
                plain.clear();
                write(&mut plain);
                let sent = session.send(&plain, output.tail());
                self.decrypted = plain;
                sent
            }
        };
        let after = output.len();
        self.stats.buffered_bytes += after - before;
        if let Err(error) = sent {
            self.finish(conn, CloseReason::Io(error.kind()));
            return Err(WriteError::Stale);
        }
        if after >= CORK_BYTES_MAX {
            self.flush(conn);
        } else {
            self.cork(conn);
        }
        Ok(())
    }

    /// Schedules the output of a connection to be sent at the end of the turn.
    pub(crate) fn cork(&mut self, conn: ConnId) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        if record.flags.has(Flags::CORKED) {
            return;
        }
        record.flags.set(Flags::CORKED);
        self.corked.push(conn);
        if self.corked.len() >= CORKED_MAX {
            self.uncork();
        }
    }

    /// Sends all corked output.
    pub(crate) fn uncork(&mut self) {
        let mut corked = std::mem::take(&mut self.corked);
        for conn in corked.drain(..) {
            if let Some(record) = self.slab.get_mut(conn) {
                record.flags.clear(Flags::CORKED);
                self.flush(conn);
            }
        }
        // Flushing corks nothing; keep the allocation.
        self.corked = corked;
    }

    /// Sends buffered output while the socket takes it. After the last byte, does what waits for it: FIN, or the end of
    /// the connection. Does nothing if the record has ended.
    pub(crate) fn flush(&mut self, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        if !matches!(record.phase, Phase::Open | Phase::Draining) {
            return;
        }
        if let Some(spill) = &mut record.spill
            && !spill.output.is_empty()
        {
            let fd = record.fd.as_ref().expect("an open connection has a descriptor");
            let before = spill.output.len();
            while !record.flags.has(Flags::SOCKET_FULL) && !spill.output.is_empty() {
                self.stats.writes += 1;
                match rustix::net::send(fd, spill.output.as_slice(), SEND) {
                    Ok(taken) => {
                        self.stats.bytes_out += taken as u64;
                        self.stats.buffered_bytes -= taken;
                        // A short write means that the socket is full; an event follows when it has room.
                        record.flags.put(Flags::SOCKET_FULL, taken < spill.output.len());
                        spill.output.advance(taken);
                    }
                    Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                        record.flags.set(Flags::SOCKET_FULL);
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => {
                        self.finish(conn, CloseReason::Io(io::Error::from(errno).kind()));
                        return;
                    }
                }
            }
            if !spill.output.is_empty() {
                if spill.output.len() < before && record.flags.has(Flags::OWN_DEADLINE) {
                    self.prolong(conn);
                }
                return;
            }
            self.pool.settle(&mut record.spill);
        }
        if record.flags.has(Flags::SHUTDOWN_WRITE) && !record.flags.has(Flags::WRITE_FINISHED) {
            record.flags.set(Flags::WRITE_FINISHED);
            // ENOTCONN: the peer has sent RST, which reading reports.
            let _ = rustix::net::shutdown(record.fd(), Shutdown::Write);
        }
        if record.phase == Phase::Draining {
            let reason = record.end.into();
            self.finish(conn, reason);
        }
    }

    /// Handles a socket that has room again.
    pub(crate) fn writable<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        if !record.flags.take(Flags::SOCKET_FULL) {
            return;
        }
        if record.output_bytes() > 0 || record.phase == Phase::Draining {
            self.flush(conn);
        }
        let record = self.slab.at_mut(conn.index());
        if record.phase != Phase::Open || record.flags.has(Flags::SOCKET_FULL) {
            return;
        }
        let wanted = record.flags.take(Flags::WANT_WRITE);
        if record.protocol.holds_input(true) {
            self.queue_resume(conn);
        }
        if wanted {
            handler.on_writable(self, conn);
        }
    }

    /// Returns whether connections with a write rejected by the loop's memory limit may retry: at most half of the
    /// limit is used, and less than at the last rejection.
    pub(crate) fn has_room_again(&self) -> bool {
        let buffered = self.stats.buffered_bytes;
        !self.memory_blocked.is_empty()
            && buffered <= self.config.buffered_bytes_max / 2
            && buffered < self.memory_blocked_bytes
    }

    /// Calls `on_writable` for these connections.
    pub(crate) fn report_room<H: Handler<Data = D>>(&mut self, handler: &mut H) {
        if !self.has_room_again() {
            return;
        }
        for conn in std::mem::take(&mut self.memory_blocked) {
            let Some(record) = self.slab.get_mut(conn) else { continue };
            record.flags.clear(Flags::MEMORY_BLOCKED);
            let free = record.phase == Phase::Open && !record.flags.has(Flags::SOCKET_FULL);
            if free && record.flags.take(Flags::WANT_WRITE) {
                handler.on_writable(self, conn);
            }
        }
    }

    /// Reads from the socket within the budget, and delivers the input. `finished`: an event reported the peer's FIN,
    /// so a short read is not the last one.
    pub(crate) fn read<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        finished: bool,
    ) {
        let mut budget = self.read_budget(conn);
        while let Some((held, carried)) = self.expect_input(conn, budget) {
            let front = if held { 0 } else { carried };
            match self.receive(conn, front) {
                Received::Again => {}
                Received::Nothing => return,
                Received::End => return self.peer_finished(handler, conn),
                Received::Bytes { received, plain, closed } => {
                    budget = budget.saturating_sub(received);
                    if self.is_read_last(conn) {
                        self.count_read_last(received);
                    }
                    if plain > 0 {
                        self.give_input(handler, conn, held, carried, plain);
                    }
                    if closed {
                        if self.slab.get(conn).is_some_and(|record| record.phase == Phase::Open) {
                            self.peer_finished(handler, conn);
                        }
                        return;
                    }
                    // A short read has emptied the socket, and an event reports further input. An event has already
                    // reported a FIN.
                    if received < self.config.receive_bytes && !finished {
                        return;
                    }
                }
            }
        }
    }

    /// Returns how many bytes to read from a connection before it is the turn of the others.
    pub(crate) fn read_budget(&self, conn: ConnId) -> usize {
        if self.is_read_last(conn) {
            self.config.receive_bytes
        } else {
            self.config.read_budget_bytes
        }
    }

    /// Returns whether to read from a connection now: `Some` with whether its input is held, and the number of bytes
    /// kept from before.
    fn expect_input(&mut self, conn: ConnId, budget: usize) -> Option<(bool, usize)> {
        let record = self.slab.get_mut(conn)?;
        match record.phase {
            Phase::Lingering => {
                self.discard(conn);
                return None;
            }
            Phase::Open if record.flags.has(Flags::PEER_FINISHED) => return None,
            Phase::Open => {}
            // The rest is read, if at all, when the connection has ended.
            Phase::Draining | Phase::Closed => {
                record.flags.set(Flags::READ_READY);
                return None;
            }
            Phase::Connecting
            | Phase::Securing
            | Phase::Upgrading
            | Phase::Announcing
            | Phase::Accepting
            | Phase::Free => return None,
        }
        // Input after a request without a response is kept, not parsed.
        let held = record.holds_input();
        let carried = record.spill.as_ref().map_or(0, |spill| spill.input.len());
        let profile = record.profile;
        if record.flags.has(Flags::READ_PAUSED)
            || (held && carried >= self.limits(profile).pipelined_bytes_max)
        {
            self.slab.at_mut(conn.index()).flags.set(Flags::READ_READY);
            return None;
        }
        if budget == 0 {
            self.queue_read(conn);
            return None;
        }
        Some((held, carried))
    }

    /// Receives once into the shared buffer from `front` on, and decrypts TLS records.
    fn receive(&mut self, conn: ConnId, front: usize) -> Received {
        let room = self.config.receive_bytes;
        if self.receive.len() < front + room {
            self.receive.resize(front + room, 0);
        }
        let record = self.slab.at_mut(conn.index());
        let fd = record.fd.as_ref().expect("an open connection has a descriptor");
        let is_tls = record.flags.has(Flags::TLS);
        self.stats.reads += 1;
        let flags = RecvFlags::DONTWAIT;
        let received = match rustix::net::recv(fd, &mut self.receive[front..front + room], flags) {
            Ok((0, _)) if is_tls => {
                self.tls_cut(conn);
                return Received::Nothing;
            }
            Ok((0, _)) => return Received::End,
            Ok((received, _)) => received,
            Err(Errno::AGAIN) => {
                record.flags.clear(Flags::READ_READY);
                return Received::Nothing;
            }
            Err(Errno::INTR) => return Received::Again,
            Err(errno) => {
                self.finish(conn, CloseReason::Io(io::Error::from(errno).kind()));
                return Received::Nothing;
            }
        };
        record.flags.clear(Flags::READ_READY);
        self.stats.bytes_in += received as u64;
        if !is_tls {
            return Received::Bytes { received, plain: received, closed: false };
        }
        match self.decrypt(conn, front, received) {
            Ok((plain, closed)) => Received::Bytes { received, plain, closed },
            Err(error) => {
                self.fail_tls(conn, error);
                Received::Nothing
            }
        }
    }

    /// Passes received bytes to the connection's protocol, after the bytes kept from before; or keeps them.
    fn give_input<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        held: bool,
        carried: usize,
        received: usize,
    ) {
        // The buffer belongs to the loop, which the handler borrows: take it out during the call.
        let mut receive = std::mem::take(&mut self.receive);
        if held {
            self.keep_input(conn, &receive[..received]);
        } else {
            let record = self.slab.at_mut(conn.index());
            let profile = record.profile;
            if let Some(spill) = record.spill.as_mut().filter(|_| carried > 0) {
                receive[..carried].copy_from_slice(&spill.input);
                spill.input.clear();
                self.stats.buffered_bytes -= carried;
                self.pool.settle(&mut record.spill);
            }
            if record.flags.has(Flags::IDLE_DEADLINE) {
                let idle = self.limits(profile).idle_timeout_ms;
                self.schedule(conn, idle.map(|idle_ms| self.now_ms() + idle_ms.get()));
            }
            let filled = &mut receive[..carried + received];
            let consumed = H::Protocols::input(handler, self, conn, filled, carried);
            self.keep_input(conn, &receive[consumed..carried + received]);
        }
        self.receive = receive;
        // A huge head must not leave the shared buffer huge.
        let room = self.config.receive_bytes;
        if self.receive.len() > room * 4 {
            self.receive.truncate(room);
            self.receive.shrink_to_fit();
        }
    }

    /// Keeps input that could not be consumed until more arrives.
    pub(crate) fn keep_input(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some(record) = self.slab.get_mut(conn).filter(|record| record.phase == Phase::Open)
        else {
            return;
        };
        if bytes.is_empty() {
            return self.pool.settle(&mut record.spill);
        }
        if self.stats.buffered_bytes + bytes.len() > self.config.buffered_bytes_max {
            return self.finish(conn, CloseReason::OutOfMemory);
        }
        self.stats.buffered_bytes += bytes.len();
        let spill = record.spill.get_or_insert_with(|| self.pool.borrow());
        spill.input.extend_from_slice(bytes);
    }

    /// Processes the kept input of a connection again, after its obstacle is gone.
    pub(crate) fn resume<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        record.flags.clear(Flags::RESUME_QUEUED);
        if record.phase != Phase::Open || record.flags.has(Flags::READ_PAUSED) {
            return;
        }
        if let Some(spill) = &mut record.spill
            && !spill.input.is_empty()
        {
            let mut input = std::mem::take(&mut spill.input);
            self.stats.buffered_bytes -= input.len();
            let consumed = H::Protocols::input(handler, self, conn, &mut input, 0);
            if let Some(record) = self.slab.get_mut(conn).filter(|r| r.phase == Phase::Open) {
                input.drain(..consumed);
                self.stats.buffered_bytes += input.len();
                record.spill.get_or_insert_with(|| self.pool.borrow()).input = input;
                self.pool.settle(&mut record.spill);
            }
        }
        if let Some(record) = self.slab.get(conn)
            && record.flags.has(Flags::READ_READY)
        {
            self.queue_read(conn);
        }
    }

    /// Schedules kept or unread input to be processed again, after this turn's responses.
    pub(crate) fn queue_resume(&mut self, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        let kept = record.spill.as_ref().is_some_and(|spill| !spill.input.is_empty());
        if (kept || record.flags.has(Flags::READ_READY)) && !record.flags.has(Flags::RESUME_QUEUED)
        {
            record.flags.set(Flags::RESUME_QUEUED);
            self.resumed.push(conn);
        }
    }

    /// Schedules a read in the next turn, without waiting for an event.
    pub(crate) fn queue_read(&mut self, conn: ConnId) {
        let flags = &mut self.slab.at_mut(conn.index()).flags;
        flags.set(Flags::READ_READY);
        if !flags.has(Flags::READ_QUEUED) {
            flags.set(Flags::READ_QUEUED);
            if self.is_read_last(conn) {
                self.wait_to_be_read(conn);
            } else {
                self.unread.push(conn);
            }
        }
    }
}

fn send(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    loop {
        let sent = match slices {
            [slice] => rustix::net::send(fd, slice, SEND),
            slices => {
                let mut control = SendAncillaryBuffer::default();
                rustix::net::sendmsg(fd, slices, &mut control, SEND)
            }
        };
        if sent != Err(Errno::INTR) {
            return sent;
        }
    }
}
