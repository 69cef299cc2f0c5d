//! Ends of connections: orderly, by a protocol error, a timeout or an error of the kernel; and their cleanup.

use std::io;

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::connection::{Conn, ConnId, End, Flags, Phase};
use super::context::{Context, Ending};
use super::driver::Driver;
use super::error::CloseReason;
use super::handler::Handler;
use super::upper::{Protocol, Spoken, Upper, UpperLayer};
use super::wheel::NEVER;

impl<D: Default> Context<D> {
    pub(crate) fn peer_finished<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        record.flags.set(Flags::PEER_FINISHED);
        record.flags.clear(Flags::READ_READY);
        let protocol = record.protocol;
        H::Protocols::peer_finished(handler, self, conn, protocol);
    }

    pub(crate) fn drain_for_peer(&mut self, conn: ConnId) {
        if let Some(record) = self.slab.get_mut(conn)
            && record.phase == Phase::Open
        {
            record.end = record.end.max(End::Peer);
            self.begin_drain(conn);
        }
    }

    /// Stops reading and accepting writes. The connection ends when its output has been sent.
    pub(crate) fn begin_drain(&mut self, conn: ConnId) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        match record.phase {
            Phase::Connecting
            | Phase::Securing
            | Phase::Upgrading
            | Phase::Announcing
            | Phase::Accepting => {
                self.finish(conn, CloseReason::Local);
            }
            Phase::Open => {
                self.tls_goodbye(conn);
                self.slab.at_mut(conn.index()).phase = Phase::Draining;
                self.schedule_own(conn, self.config.linger());
                self.cork(conn);
            }
            _ => {}
        }
    }

    /// Ends a connection; `on_close` follows.
    pub(crate) fn finish(&mut self, conn: ConnId, reason: CloseReason) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        if matches!(record.phase, Phase::Free | Phase::Closed | Phase::Lingering) {
            return;
        }
        let ending = match record.phase {
            Phase::Connecting | Phase::Securing => {
                Ending::ConnectFailed(io::ErrorKind::ConnectionAborted.into())
            }
            Phase::Announcing => Ending::ProxyFailed,
            Phase::Accepting => Ending::OpenFailed(io::ErrorKind::ConnectionAborted.into()),
            _ => Ending::Closed(reason),
        };
        self.end_with(conn, ending);
    }

    /// Ends a connection whose connect, or TLS handshake before it is open, has failed.
    pub(crate) fn fail_connect(&mut self, conn: ConnId, error: io::Error) {
        match self.slab.get(conn).map(|record| record.phase) {
            Some(Phase::Connecting | Phase::Securing) => {
                self.end_with(conn, Ending::ConnectFailed(error));
            }
            Some(Phase::Announcing) => self.end_with(conn, Ending::ProxyFailed),
            Some(Phase::Accepting) => self.end_with(conn, Ending::OpenFailed(error)),
            Some(Phase::Upgrading) => self.end_with(conn, Ending::TlsFailed(error)),
            _ => {}
        }
    }

    /// Ends an open connection whose TLS has failed: its records can no longer be trusted.
    pub(crate) fn fail_tls(&mut self, conn: ConnId, error: io::Error) {
        let phase = self.slab.get(conn).map(|record| record.phase);
        if matches!(phase, Some(Phase::Open | Phase::Draining)) {
            self.end_with(conn, Ending::TlsFailed(error));
        }
    }

    fn end_with(&mut self, conn: ConnId, ending: Ending) {
        let record = self.slab.at_mut(conn.index());
        record.phase = Phase::Closed;
        if record.fd.is_none() {
            self.cancel_dial(conn);
        }
        self.ended.push_back((conn, ending));
    }

    /// Stops reading from a peer whose message boundaries are lost.
    pub(crate) fn distrust(&mut self, conn: ConnId) {
        let Some(record) = self.slab.get_mut(conn) else { return };
        record.end = record.end.max(End::ProtocolError);
        record.flags.set(Flags::READ_PAUSED);
        record.flags.set(Flags::READ_READY);
    }

    /// Reports ended connections to the handler and frees their records.
    pub(crate) fn reap_closed<H: Handler<Data = D>>(&mut self, handler: &mut H) {
        while let Some((conn, ending)) = self.ended.pop_front() {
            let record = self.slab.at_mut(conn.index());
            let data = std::mem::take(&mut record.data);
            if let Some(mut spill) = record.spill.take() {
                self.stats.buffered_bytes -= spill.bytes();
                Upper::release(&mut spill.upper, &mut self.upper);
                self.pool.give_back(spill);
            }
            match ending {
                Ending::Closed(reason) => {
                    self.stats.closed += 1;
                    self.stats.timed_out += u64::from(reason == CloseReason::TimedOut);
                    self.stats.protocol_errors += u64::from(reason == CloseReason::ProtocolError);
                    handler.on_close(self, conn, data, reason);
                    let record = self.slab.at(conn.index());
                    let sent_all = match reason {
                        CloseReason::Local | CloseReason::ProtocolError | CloseReason::Peer => true,
                        CloseReason::TimedOut => record.end == End::TimedOut,
                        _ => false,
                    };
                    // Nothing is unread and nothing more will arrive: close sends FIN, not RST.
                    let silent = record.flags.has(Flags::PEER_FINISHED)
                        || record.flags.has(Flags::CLOSE_AT_ONCE)
                            && !record.flags.has(Flags::READ_READY);
                    if sent_all && !silent {
                        self.linger(conn);
                        continue;
                    }
                }
                Ending::TlsFailed(error) => {
                    let reason = match error.kind() {
                        io::ErrorKind::TimedOut => CloseReason::TimedOut,
                        kind => CloseReason::Io(kind),
                    };
                    self.stats.closed += 1;
                    self.stats.timed_out += u64::from(reason == CloseReason::TimedOut);
                    handler.on_tls_failed(self, conn, &error);
                    handler.on_close(self, conn, data, reason);
                }
                Ending::ProxyFailed => self.stats.proxy_failed += 1,
                Ending::OpenFailed(error) => {
                    self.stats.handshakes_failed += 1;
                    handler.on_open_failed(self, data, &error);
                }
                Ending::ConnectFailed(error) => {
                    self.stats.connect_failed += 1;
                    handler.on_connect_failed(self, conn, data, &error);
                }
            }
            self.release(conn);
        }
    }

    fn linger(&mut self, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        record.phase = Phase::Lingering;
        if !record.flags.has(Flags::WRITE_FINISHED)
            && rustix::net::shutdown(record.fd(), Shutdown::Write).is_err()
        {
            return self.release(conn);
        }
        let unread = record.flags.has(Flags::READ_READY);
        self.schedule_own(conn, self.config.linger());
        if unread {
            self.queue_read(conn);
        }
    }

    /// Drops further input of a lingering connection. Frees the connection at the peer's FIN.
    pub(crate) fn discard(&mut self, conn: ConnId) {
        let room = self.config.receive_bytes;
        if self.receive.len() < room {
            self.receive.resize(room, 0);
        }
        let mut budget = self.read_budget(conn);
        loop {
            let record = self.slab.at_mut(conn.index());
            match rustix::net::recv(record.fd(), &mut self.receive[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return self.release(conn),
                Ok((received, _)) => {
                    self.count_read_last(received);
                    budget = budget.saturating_sub(received);
                    if budget == 0 {
                        return self.queue_read(conn);
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => return self.release(conn),
            }
        }
    }

    /// Closes the descriptor and makes the id stale.
    pub(crate) fn release(&mut self, conn: ConnId) {
        self.mark_authenticated(conn);
        self.wheel.cancel(&mut self.slab, conn.index());
        self.slab.release(conn.index());
        self.listeners.retry();
    }

    /// Handles the deadline of a connection, which has passed.
    pub(crate) fn expire<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        let record = self.slab.at_mut(conn.index());
        if !record.flags.take(Flags::OWN_DEADLINE) {
            if record.phase == Phase::Open {
                handler.on_deadline(self, conn);
            }
            return;
        }
        match record.phase {
            Phase::Connecting
            | Phase::Securing
            | Phase::Upgrading
            | Phase::Announcing
            | Phase::Accepting => {
                self.fail_connect(conn, io::ErrorKind::TimedOut.into());
            }
            Phase::Lingering => self.release(conn),
            Phase::Draining => self.finish(conn, CloseReason::TimedOut),
            Phase::Open => {
                let protocol = record.protocol;
                H::Protocols::timed_out(handler, self, conn, protocol);
            }
            Phase::Closed | Phase::Free => {}
        }
    }

    /// Restarts the timeout of a connection whose peer reads slowly but makes progress.
    pub(crate) fn prolong(&mut self, conn: ConnId) {
        let record = self.slab.at(conn.index());
        if record.link.deadline() == NEVER {
            return;
        }
        let timeout_ms = match (record.phase, record.protocol) {
            (Phase::Draining, _) => self.config.linger(),
            (_, protocol) => match protocol.progress_timeout_ms(self.limits(record.profile)) {
                Some(timeout_ms) => timeout_ms,
                None => return,
            },
        };
        self.schedule_own(conn, timeout_ms);
    }

    /// Starts the loop's own timeout for a connection that has just opened.
    pub(crate) fn start_clock(&mut self, conn: ConnId) {
        let &Conn { profile, protocol, .. } = self.slab.at(conn.index());
        if protocol == Protocol::RAW {
            return self.schedule_idle(conn, self.limits(profile).idle_timeout_ms);
        }
        let timeout_ms = protocol.input_timeout_ms(self.limits(profile));
        if timeout_ms.is_some() {
            self.schedule_own(conn, timeout_ms);
        }
    }
}
