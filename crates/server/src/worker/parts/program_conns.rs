//! Connections whose protocol a program speaks: what each has to do next, and their timers.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use dunlin_net::ConnId;
use dunlin_program::{ConnKey, Input};

use super::FastMap;
pub(crate) use crate::message::worker::CallAnswer;

/// The most timers of one connection.
const TIMERS_MAX: usize = 16;

/// A connection whose protocol a program speaks.
#[derive(Default)]
pub(crate) struct ProgramConn {
    pub(crate) program: Arc<str>,
    /// The version of the program that has it.
    pub(crate) version: u64,
    pub(crate) key: ConnKey,
    /// Bytes of the client that are not handled.
    pub(crate) input: Input,
    /// Messages of a WebSocket that are not handled. Reading pauses while there are any.
    pub(crate) messages: VecDeque<Box<[u8]>>,
    /// On a WebSocket: whether the client's last message was binary.
    pub(crate) websocket: Option<bool>,
    /// The call whose answer the program waits for.
    pub(crate) waits: Option<u32>,
    /// That answer.
    pub(crate) answer: Option<CallAnswer>,
    pub(crate) calls: u32,
    /// The program knows that it is open.
    pub(crate) opened: bool,
    /// The client sends nothing more.
    pub(crate) eof: bool,
    /// The output is not taken by the client.
    pub(crate) blocked: bool,
    /// The last event was a push: a frame comes next, if there is one.
    pub(crate) pushed: bool,
    /// Of the frame that the program handles: its bytes, and whether it has made a call.
    pub(crate) frame: Option<(usize, bool)>,
    /// It is to end, with code and reason.
    pub(crate) end: Option<(u32, Box<str>)>,
    pub(crate) stage: Stage,
    /// The socket is closed.
    pub(crate) gone: bool,
    pub(crate) due: VecDeque<Box<str>>,
    queued: bool,
    timers: Vec<(u64, Box<str>)>,
}

/// How far the end of a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Open,
    /// The program handles its end.
    Closing,
    /// The program knows it no more.
    Closed,
}

impl ProgramConn {
    /// Creates a connection of a version of a program. `websocket`: it is one.
    pub(crate) fn new(program: Arc<str>, version: u64, websocket: Option<bool>) -> ProgramConn {
        ProgramConn { program, version, websocket, ..ProgramConn::default() }
    }
}

/// These connections on one worker.
#[derive(Default)]
pub(crate) struct ProgramConns {
    of: FastMap<ConnId, Box<ProgramConn>>,
    /// Connections that have something to do.
    ready: VecDeque<ConnId>,
    timers: BTreeSet<(u64, ConnId)>,
    /// When the loop's timer fires.
    armed_ms: Option<u64>,
    keys: Vec<ConnKey>,
    keys_used: ConnKey,
}

impl ProgramConns {
    pub(crate) fn insert(&mut self, conn: ConnId, mut of: ProgramConn) {
        of.key = self.keys.pop().unwrap_or_else(|| {
            self.keys_used += 1;
            self.keys_used
        });
        self.of.insert(conn, Box::new(of));
    }

    pub(crate) fn get(&mut self, conn: ConnId) -> Option<&mut ProgramConn> {
        self.of.get_mut(&conn).map(|of| &mut **of)
    }

    /// Forgets a connection, of which the program knows no more.
    pub(crate) fn remove(&mut self, conn: ConnId) {
        if let Some(of) = self.of.remove(&conn) {
            self.keys.push(of.key);
            for (at_ms, _) in &of.timers {
                self.timers.remove(&(*at_ms, conn));
            }
        }
    }

    /// Iterates over the connections of a program.
    pub(crate) fn of_program<'a>(
        &'a mut self,
        program: &'a str,
    ) -> impl Iterator<Item = (ConnId, &'a mut ProgramConn)> {
        let all = self.of.iter_mut().map(|(conn, of)| (*conn, &mut **of));
        all.filter(move |(_, of)| *of.program == *program)
    }

    /// A connection has something to do.
    pub(crate) fn wake(&mut self, conn: ConnId) {
        if let Some(of) = self.of.get_mut(&conn).filter(|of| !of.queued) {
            of.queued = true;
            self.ready.push_back(conn);
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The number of connections that have something to do.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn next_ready(&mut self) -> Option<ConnId> {
        let conn = self.ready.pop_front()?;
        if let Some(of) = self.of.get_mut(&conn) {
            of.queued = false;
        }
        Some(conn)
    }

    /// Sets or removes a timer of a connection. Returns `false` if it has too many.
    pub(crate) fn set_timer(&mut self, conn: ConnId, name: Box<str>, at_ms: Option<u64>) -> bool {
        let Some(of) = self.of.get_mut(&conn) else { return true };
        if let Some(place) = of.timers.iter().position(|(_, of)| *of == name) {
            let (before_ms, _) = of.timers.swap_remove(place);
            if !of.timers.iter().any(|(at, _)| *at == before_ms) {
                self.timers.remove(&(before_ms, conn));
            }
        }
        of.due.retain(|of| *of != name);
        let Some(at_ms) = at_ms else { return true };
        if of.timers.len() + of.due.len() >= TIMERS_MAX {
            return false;
        }
        of.timers.push((at_ms, name));
        self.timers.insert((at_ms, conn));
        true
    }

    /// Moves the timers whose time has come to their connections.
    pub(crate) fn handle_time(&mut self, now_ms: u64) {
        while let Some((at_ms, conn)) = self.timers.first().copied().filter(|of| of.0 <= now_ms) {
            self.timers.pop_first();
            let Some(of) = self.of.get_mut(&conn) else { continue };
            let mut place = 0;
            while place < of.timers.len() {
                if of.timers[place].0 == at_ms {
                    let (_, name) = of.timers.swap_remove(place);
                    of.due.push_back(name);
                } else {
                    place += 1;
                }
            }
            self.wake(conn);
        }
    }

    /// The loop's timer has fired.
    pub(crate) fn handle_timer(&mut self, now_ms: u64) {
        self.armed_ms = None;
        self.handle_time(now_ms);
    }

    /// Returns in how many milliseconds a timer of the loop must fire that is not set yet; from now on it counts as set.
    pub(crate) fn arm_timer(&mut self, now_ms: u64) -> Option<u64> {
        let (at_ms, _) = *self.timers.first()?;
        if self.armed_ms.is_some_and(|armed| armed <= at_ms) {
            return None;
        }
        self.armed_ms = Some(at_ms);
        Some(at_ms.saturating_sub(now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conns() -> (ProgramConns, ConnId) {
        let (mut conns, conn) = (ProgramConns::default(), ConnId::from_u64(7));
        conns.insert(conn, ProgramConn::default());
        (conns, conn)
    }

    #[test]
    fn a_timer_of_the_same_name_replaces_the_first_and_fires_once() {
        let (mut conns, conn) = conns();
        assert!(conns.set_timer(conn, "a".into(), Some(10)));
        assert!(conns.set_timer(conn, "a".into(), Some(30)));
        assert!(conns.set_timer(conn, "b".into(), Some(20)));
        assert_eq!(conns.arm_timer(5), Some(15));
        assert_eq!(conns.arm_timer(5), None);
        conns.handle_timer(20);
        assert_eq!(conns.get(conn).unwrap().due, [Box::<str>::from("b")]);
        assert_eq!((conns.ready(), conns.next_ready()), (1, Some(conn)));
        assert_eq!(conns.arm_timer(20), Some(10));
        assert!(conns.set_timer(conn, "a".into(), None));
        conns.handle_timer(40);
        assert!(!conns.is_ready());
    }

    #[test]
    fn a_connection_has_a_bounded_number_of_timers() {
        let (mut conns, conn) = conns();
        for at in 0..TIMERS_MAX {
            assert!(conns.set_timer(conn, at.to_string().into(), Some(10)));
        }
        assert!(!conns.set_timer(conn, "more".into(), Some(10)));
        conns.handle_timer(10);
        assert_eq!(conns.get(conn).unwrap().due.len(), TIMERS_MAX);
        conns.remove(conn);
        assert_eq!((conns.timers.len(), conns.keys.len()), (0, 1));
    }

    #[test]
    fn a_connection_is_ready_once_however_often_it_is_woken() {
        let (mut conns, conn) = conns();
        conns.wake(conn);
        conns.wake(conn);
        assert_eq!((conns.next_ready(), conns.next_ready()), (Some(conn), None));
    }
}
