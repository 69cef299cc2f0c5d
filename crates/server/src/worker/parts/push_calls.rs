//! Calls that the push thread handles: the connection of each, and how much of a streamed response is unread.

use std::collections::VecDeque;
use std::time::Instant;

use dunlin_net::ConnId;
use dunlin_push_service::message::{PushMessage, PushReply, PushReplyBody};

use super::FastMap;
use crate::telemetry::BegunSpan;

/// The push calls of one worker.
#[derive(Default)]
pub(crate) struct PushCalls {
    calls: FastMap<ConnId, PushCall>,
    /// Messages to the push thread that wait for room on its ring. They are small, and a batch depends on them.
    backlog: VecDeque<PushMessage>,
}

#[derive(Debug)]
struct PushCall {
    id: u64,
    method: &'static str,
    began: Instant,
    span: Option<Box<BegunSpan>>,
    /// The head of a streamed response has been sent.
    streams: bool,
    /// Bytes that the client's socket has not accepted.
    unread: usize,
}

/// The next step for a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushStep {
    /// Send the whole response; the connection then takes requests again.
    Respond { status: u16, body: Vec<u8> },
    /// Send lines of the response. With `begins` they start it; with `ends` they end it, and the connection takes requests again.
    Stream { lines: Vec<u8>, begins: bool, ends: bool },
    /// The response cannot be ended properly.
    Abort,
}

impl PushCalls {
    /// Notes that a request of this connection was sent to the push thread.
    pub(crate) fn begin(
        &mut self,
        conn: ConnId,
        call: u64,
        (method, began): (&'static str, Instant),
        span: Option<Box<BegunSpan>>,
    ) {
        let call = PushCall { id: call, method, began, span, streams: false, unread: 0 };
        self.calls.insert(conn, call);
    }

    /// Returns the span of the call of a connection, if it is traced.
    pub(crate) fn span(&self, conn: ConnId) -> Option<BegunSpan> {
        self.calls.get(&conn)?.span.as_deref().copied()
    }

    /// Returns the method of the call of a connection, and when it came.
    pub(crate) fn about(&self, conn: ConnId) -> Option<(&'static str, Instant)> {
        self.calls.get(&conn).map(|call| (call.method, call.began))
    }

    /// Handles a part of a response; `None` if the connection of the call is gone. An earlier incarnation of this worker may have
    /// given the same number to another connection.
    pub(crate) fn handle_reply(&mut self, reply: PushReply) -> Option<PushStep> {
        let PushReply { call: id, conn, body } = reply;
        let call = self.calls.get_mut(&conn).filter(|call| call.id == id)?;
        let begins = !call.streams;
        Some(match body {
            PushReplyBody::Complete(status, body) => {
                self.calls.remove(&conn);
                PushStep::Respond { status, body }
            }
            PushReplyBody::Lines(lines) => {
                call.streams = true;
                call.unread += lines.len();
                PushStep::Stream { lines, begins, ends: false }
            }
            PushReplyBody::LastLines(lines) => {
                self.calls.remove(&conn);
                PushStep::Stream { lines, begins, ends: true }
            }
            PushReplyBody::Abort => PushStep::Abort,
        })
    }

    /// Notes that the client's socket has accepted everything: the push thread may send as much again.
    pub(crate) fn handle_drained(&mut self, conn: ConnId) {
        let Some(call) = self.calls.get_mut(&conn) else { return };
        let (call, bytes) = (call.id, std::mem::take(&mut call.unread));
        if bytes > 0 {
            self.backlog.push_back(PushMessage::ReplyRead { call, bytes });
        }
    }

    /// Removes the call of a closed connection.
    pub(crate) fn handle_closed(&mut self, conn: ConnId) {
        if let Some(PushCall { id: call, .. }) = self.calls.remove(&conn) {
            self.backlog.push_back(PushMessage::CallerGone { call });
        }
    }

    /// Queues a message until the bus has room.
    pub(crate) fn enqueue(&mut self, message: PushMessage) {
        self.backlog.push_back(message);
    }

    /// Returns the oldest message that waits for room on the bus. If there is no room, [`PushCalls::put_back`] takes it back.
    pub(crate) fn poll_transmit(&mut self) -> Option<PushMessage> {
        self.backlog.pop_front()
    }

    pub(crate) fn put_back(&mut self, message: PushMessage) {
        self.backlog.push_front(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    fn reply(call: u64, body: PushReplyBody) -> PushReply {
        PushReply { call, conn: conn(1), body }
    }

    fn lines(text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    fn read(calls: &mut PushCalls) -> Option<(u64, usize)> {
        match calls.poll_transmit()? {
            PushMessage::ReplyRead { call, bytes } => Some((call, bytes)),
            _ => panic!("nothing else waits"),
        }
    }

    #[test]
    fn a_batch_streams_and_says_what_its_client_has_read() {
        let mut calls = PushCalls::default();
        calls.begin(conn(1), 7, ("push", Instant::now()), None);
        let step = calls.handle_reply(reply(7, PushReplyBody::Lines(lines("one\n"))));
        let first = PushStep::Stream { lines: lines("one\n"), begins: true, ends: false };
        assert_eq!(step, Some(first));
        let step = calls.handle_reply(reply(7, PushReplyBody::Lines(lines("two\n"))));
        let second = PushStep::Stream { lines: lines("two\n"), begins: false, ends: false };
        assert_eq!(step, Some(second));
        calls.handle_drained(conn(1));
        assert_eq!(read(&mut calls), Some((7, 8)));
        calls.handle_drained(conn(1));
        assert_eq!(read(&mut calls), None, "nothing more was read");
        let step = calls.handle_reply(reply(7, PushReplyBody::LastLines(lines("end\n"))));
        let last = PushStep::Stream { lines: lines("end\n"), begins: false, ends: true };
        assert_eq!(step, Some(last));
        calls.handle_closed(conn(1));
        assert!(calls.poll_transmit().is_none(), "the call was over");
    }

    #[test]
    fn a_reply_to_an_earlier_incarnation_reaches_nobody() {
        let mut calls = PushCalls::default();
        calls.begin(conn(1), 8, ("push", Instant::now()), None);
        assert_eq!(calls.handle_reply(reply(7, PushReplyBody::Abort)), None);
        let step = calls.handle_reply(reply(8, PushReplyBody::Complete(200, lines("{}"))));
        assert_eq!(step, Some(PushStep::Respond { status: 200, body: lines("{}") }));
        assert_eq!(calls.handle_reply(reply(8, PushReplyBody::Abort)), None);
    }

    #[test]
    fn message_that_finds_the_ring_full_stays_first() {
        let mut calls = PushCalls::default();
        for call in [1, 2] {
            calls.begin(conn(call), call, ("push", Instant::now()), None);
            calls.handle_closed(conn(call));
        }
        let first = calls.poll_transmit().unwrap();
        calls.put_back(first);
        for expected in [1, 2] {
            let next = calls.poll_transmit();
            assert!(matches!(next, Some(PushMessage::CallerGone { call }) if call == expected));
        }
    }
}
