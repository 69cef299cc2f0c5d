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

/// Corked connections a turn may gather before their output leaves: so many buffers at most are borrowed
/// for connections whose sockets are not full.
const CORKED_MAX: usize = 64;
/// Corked bytes of one connection that leave without waiting for the end of the turn.
const CORK_BYTES_MAX: usize = 64 << 10;
/// Slices the kernel takes in one call (`IOV_MAX`).
const SLICES_MAX: usize = 1024;

/// How the sockets are written to: SIGPIPE is not wanted, nor is waiting.
pub(crate) const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// What one call of `recv` has led to.
enum Received {
    Bytes {
        /// Bytes of the socket, TLS records included.
        received: usize,
        /// Bytes of the protocol in the shared buffer.
        plain: usize,
        /// The peer has said in TLS that nothing follows.
        closed: bool,
    },
    /// The peer has sent its FIN.
    End,
    /// Nothing more for now, or the connection has ended.
    Nothing,
    /// Interrupted.
    Again,
}

impl<D: Default> Context<D> {
    /// Sends bytes at the end of this turn, together with everything else that is written to the connection in it. Bytes that the
    /// socket does not take are buffered, up to [`output_bytes_max`](crate::Limits::output_bytes_max), and sent later.
    ///
    /// # Errors
    ///
    /// [`WriteError::Stale`], [`WriteError::Full`] (nothing was taken; `on_writable` follows), or
    /// [`WriteError::OutOfTurn`] after [`Context::shutdown_write`].
    pub fn write(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), WriteError> {
        self.write_with(conn, bytes.len(), |out| out.extend_from_slice(bytes))
    }

    /// Sends slices at once, as many bytes as the socket takes, with one system call and no copy: `send` for one slice, `sendmsg`
    /// for several. Returns the number of bytes taken. If it is less than all, `on_writable` follows. While earlier bytes are
    /// buffered it is 0, without a system call.
    ///
    /// # Errors
    ///
    /// [`WriteError::Stale`], also when the write itself finds the connection broken; `on_close` follows.
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

    /// As [`Context::try_write_slices`] behind TLS: all is taken while the socket takes the records.
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
                // The loop's buffers are full. What they took of this leaves, and must not be offered again.
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

    /// As [`Context::write`], without a copy: `write` appends to the connection's output, about `bytes` bytes. It is not called
    /// when the write is refused.
    ///
    /// # Errors
    ///
    /// As [`Context::write`].
    pub fn write_with(
        &mut self,
        conn: ConnId,
        bytes: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), WriteError> {
        let profile = self.slab.get(conn).ok_or(WriteError::Stale)?.profile;
        self.write_within(conn, bytes, self.limits(profile).output_bytes_max, write)
    }

    /// As [`Context::write_with`], with a bound on the buffered bytes that the caller sets.
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
            // What is corked may be all that stands in the way.
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
                // Its socket has room, so no event of it will come: others stand in its way.
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

    /// Has the output of a connection leave at the end of the turn.
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

    /// Sends what this turn has gathered.
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

    /// Sends what is buffered, as far as the socket takes it, and takes the steps that wait for the last of
    /// it. Does nothing for a record that ended.
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
                        // Less than all is how the kernel says it is full; an event follows when it is not.
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
            // ENOTCONN: the peer has reset it, which reading reports.
            let _ = rustix::net::shutdown(record.fd(), Shutdown::Write);
        }
        if record.phase == Phase::Draining {
            let reason = record.end.into();
            self.finish(conn, reason);
        }
    }

    /// The socket has room again.
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

    /// Whether those who were refused because of what the loop buffers for others may try again: it is half of what it
    /// may be, and less than when they last tried.
    pub(crate) fn has_room_again(&self) -> bool {
        let buffered = self.stats.buffered_bytes;
        !self.memory_blocked.is_empty()
            && buffered <= self.config.buffered_bytes_max / 2
            && buffered < self.memory_blocked_bytes
    }

    /// Notifies them.
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

    /// Reads what the socket has, within the budget, and hands it out. `finished` says that an event
    /// announced the peer's FIN, so that a short read is not the last.
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
                    // A short read has drained the socket: more will be announced. FIN behind it has been.
                    if received < self.config.receive_bytes && !finished {
                        return;
                    }
                }
            }
        }
    }

    /// Bytes to be read of a connection before the others get their turn.
    pub(crate) fn read_budget(&self, conn: ConnId) -> usize {
        if self.is_read_last(conn) {
            self.config.receive_bytes
        } else {
            self.config.read_budget_bytes
        }
    }

    /// Whether a connection is to be read from now. If so: whether its input is held, and how much is kept of what came
    /// before.
    fn expect_input(&mut self, conn: ConnId, budget: usize) -> Option<(bool, usize)> {
        let record = self.slab.get_mut(conn)?;
        match record.phase {
            Phase::Lingering => {
                self.discard(conn);
                return None;
            }
            Phase::Open if record.flags.has(Flags::PEER_FINISHED) => return None,
            Phase::Open => {}
            // Whoever ends the connection reads the rest, if anybody.
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
        // Input behind a request whose answer is outstanding is kept, not parsed.
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

    /// Receives once into the shared buffer from `front` on, and opens the TLS records if it is that.
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

    /// Gives what was received to the connection's protocol, behind what is kept of what came before; or keeps it.
    fn give_input<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        held: bool,
        carried: usize,
        received: usize,
    ) {
        // The buffer belongs to the loop, the loop to the handler: lend it out of the way.
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
        // One huge head must not make the shared buffer huge for good.
        let room = self.config.receive_bytes;
        if self.receive.len() > room * 4 {
            self.receive.truncate(room);
            self.receive.shrink_to_fit();
        }
    }

    /// Keeps input that could not be consumed yet for when more arrives.
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

    /// Looks again at the input kept for a connection: what held it up is out of the way.
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

    /// Looks at input kept or left in the socket once this turn's answers have left.
    pub(crate) fn queue_resume(&mut self, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        let kept = record.spill.as_ref().is_some_and(|spill| !spill.input.is_empty());
        if (kept || record.flags.has(Flags::READ_READY)) && !record.flags.has(Flags::RESUME_QUEUED)
        {
            record.flags.set(Flags::RESUME_QUEUED);
            self.resumed.push(conn);
        }
    }

    /// Reads from a connection in the next turn, event or not.
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
