//! From outboxes to sockets, at the end of a turn: what arrived together leaves together.

use std::io::IoSlice;

use dunlin_hub::SessionId;
use dunlin_net::{ConnId, Context};

use super::Worker;
use super::link::{Link, Role};
use crate::metrics::Metric;

/// Pieces of one outbox handed to the kernel at once. A burst of one channel is one piece, since frames that
/// follow each other in the worker's log are one range.
const SLICES: usize = 16;

impl Worker<'_> {
    /// Writes every outbox that has something, once.
    pub(super) fn flush_outboxes(&mut self, cx: &mut Context<Link>) {
        while let Some(flush) = self.hub.poll_flush() {
            let conn = ConnId::from_u64(flush.tag);
            if flush.poll {
                self.answer_poll(cx, flush.session);
            } else {
                self.flush_session(cx, flush.session, conn);
            }
        }
    }

    /// Writes one outbox until it is empty or the socket is full.
    pub(super) fn flush_session(
        &mut self,
        cx: &mut Context<Link>,
        session: SessionId,
        conn: ConnId,
    ) {
        loop {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let pieces = self.hub.outbox(session, &mut slices);
            if pieces == 0 {
                break;
            }
            let offered: usize = slices[..pieces].iter().map(|slice| slice.len()).sum();
            let Ok(written) = cx.try_write_slices(conn, &slices[..pieces]) else {
                // The connection is gone; its on_close closes the session.
                return;
            };
            let counters = &self.state.counters[self.index];
            counters.count(Metric::Writes);
            counters.add(Metric::BytesOut, written as u64);
            self.hub.advance(session, written);
            if written < offered {
                return self.hub.set_blocked(session, true);
            }
            if pieces < SLICES {
                break;
            }
        }
        if cx.data(conn).is_some_and(|link| link.closing) {
            cx.close(conn);
        }
    }

    /// The socket has room again.
    pub(super) fn writable(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let Some(link) = cx.data(conn) else { return };
        if link.role == Role::Push {
            return self.push_writable(cx, conn);
        }
        if let (Role::Client(_), Some(session)) = (link.role, link.session()) {
            self.hub.set_blocked(session, false);
        }
    }
}
