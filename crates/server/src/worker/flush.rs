//! From outboxes to sockets, at the end of a turn: what arrived together leaves together.

use std::io::IoSlice;

use dunlin_hub::SessionId;
use dunlin_net::ConnId;
use dunlin_protocol::Encoding;

use super::clients::Clients;
use super::link::Role;
use super::turn::Turn;
use crate::metrics::Metric;

/// Pieces of one outbox handed to the kernel at once. A burst of one channel is one piece, since frames that
/// follow each other in the worker's log are one range.
const SLICES: usize = 16;

impl Clients {
    /// Writes every outbox that has something, once.
    pub(super) fn flush_outboxes(&mut self, turn: &mut Turn<'_, '_>) {
        while let Some(flush) = turn.core.hub.poll_flush() {
            let conn = ConnId::from_u64(flush.tag);
            if flush.poll {
                self.answer_poll(turn, flush.session);
            } else {
                self.flush_session(turn, flush.session, conn);
            }
        }
    }

    /// Writes one outbox until it is empty or the socket is full.
    pub(super) fn flush_session(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        conn: ConnId,
    ) {
        if turn.cx.data(conn).and_then(|link| link.encoding()) == Some(Encoding::Program) {
            // The program takes what is there as it gets to it.
            turn.core.hub.set_blocked(session, true);
            return self.wake_program_conn(turn, conn);
        }
        loop {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let pieces = turn.core.hub.outbox(session, &mut slices);
            if pieces == 0 {
                break;
            }
            let offered: usize = slices[..pieces].iter().map(|slice| slice.len()).sum();
            let Ok(written) = turn.cx.try_write_slices(conn, &slices[..pieces]) else {
                // The connection is gone; its on_close closes the session.
                return;
            };
            let counters = &turn.core.state.counters[turn.core.index];
            counters.count(Metric::Writes);
            counters.add(Metric::BytesOut, written as u64);
            turn.core.hub.advance(session, written);
            turn.core.delivered(session, written);
            if written < offered {
                turn.core.blocked(session);
                return turn.core.hub.set_blocked(session, true);
            }
            if pieces < SLICES {
                break;
            }
        }
        if turn.cx.data(conn).is_some_and(|link| link.closing) {
            turn.cx.close(conn);
        }
    }

    /// The socket has room again.
    pub(super) fn writable(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let Some(link) = turn.cx.data(conn) else { return };
        if link.encoding() == Some(Encoding::Program) {
            return self.wake_program_conn(turn, conn);
        }
        if let (Role::Client(_), Some(session)) = (link.role, link.session()) {
            turn.core.hub.set_blocked(session, false);
        }
    }
}
