//! Commands that wait for a backend, and the data of their connections that is forwarded to backends.

use crate::telemetry::BegunSpan;
use std::sync::Arc;
use std::time::Instant;

use dunlin_hub::SessionId;
use dunlin_net::ConnId;
use dunlin_net::http::Headers;
use dunlin_protocol::centrifuge::Request;

use super::FastMap;
use super::flow_bytes::FlowBytes;
use crate::namespace::meta::Meta;
use crate::proxy::Event;

/// The most bytes of headers and `meta` that are kept of one connection.
const PASSED_BYTES_MAX: usize = 16 * 1024;

/// A command that waits for a backend.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProxyCall {
    pub(crate) conn: ConnId,
    /// Its user or address.
    pub(crate) flow: u64,
    /// The session; for a connect, the reserved one.
    pub(crate) session: SessionId,
    /// The command's id; `None` on a unidirectional transport.
    pub(crate) id: Option<u32>,
    pub(crate) event: Event,
    /// The proxy's name; empty if the program is asked.
    pub(crate) proxy: Arc<str>,
    /// The channel of the command, or empty.
    pub(crate) channel: Box<str>,
    /// The command as received, to be executed with the decision. Empty if the decision is all that is needed.
    pub(crate) frame: Box<[u8]>,
    pub(crate) began: Instant,
    /// Its span, if it is traced.
    pub(crate) span: Option<Box<BegunSpan>>,
    /// The connection is closed; the answer still counts for the health of the backend.
    pub(crate) gone: bool,
}

/// The calls of one worker, by number.
#[derive(Debug, Default)]
pub(crate) struct ProxyCalls {
    calls: FastMap<u64, ProxyCall>,
    of: FastMap<u64, Vec<u64>>,
    last: u64,
    /// Bytes of the stored frames.
    bytes: FlowBytes,
}

impl ProxyCalls {
    /// Creates the table of one incarnation of a worker: answers to the calls of another incarnation match no call here.
    pub(crate) fn new(incarnation: u32) -> ProxyCalls {
        ProxyCalls { last: u64::from(incarnation) << 32, ..ProxyCalls::default() }
    }

    /// Returns a number that no other call has.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Stores a call.
    ///
    /// # Errors
    /// Returns the call if there is no room for it in `bytes_max`: [`FlowBytes::add`].
    pub(crate) fn insert(
        &mut self,
        number: u64,
        call: ProxyCall,
        bytes_max: usize,
    ) -> Result<(), ProxyCall> {
        if !self.bytes.add(call.flow, call.frame.len(), bytes_max) {
            return Err(call);
        }
        self.of.entry(call.conn.to_u64()).or_default().push(number);
        self.calls.insert(number, call);
        Ok(())
    }

    /// Returns the calls to the program that began before `then`.
    pub(crate) fn of_program_before(&self, then: Instant) -> Vec<u64> {
        let calls = self.calls.iter();
        let overdue = calls.filter(|(_, call)| call.proxy.is_empty() && call.began < then);
        overdue.map(|(number, _)| *number).collect()
    }

    /// Whether the client of a call is gone.
    pub(crate) fn is_gone(&self, number: u64) -> bool {
        self.calls.get(&number).is_none_or(|call| call.gone)
    }

    /// Removes a call that is answered, or was not sent.
    pub(crate) fn take(&mut self, number: u64) -> Option<ProxyCall> {
        let call = self.calls.remove(&number)?;
        self.bytes.release(call.flow, call.frame.len());
        if let Some(of) = self.of.get_mut(&call.conn.to_u64()) {
            of.retain(|other| *other != number);
            if of.is_empty() {
                self.of.remove(&call.conn.to_u64());
            }
        }
        if self.calls.is_empty() {
            (self.calls, self.of) = Default::default();
        }
        Some(call)
    }

    /// Marks the calls of a closed connection as gone. Returns the session that was reserved for it.
    pub(crate) fn forget(&mut self, conn: ConnId) -> Option<SessionId> {
        if self.calls.is_empty() {
            return None;
        }
        let mut reserved = None;
        for number in self.of.remove(&conn.to_u64()).unwrap_or_default() {
            let Some(call) = self.calls.get_mut(&number) else { continue };
            call.gone = true;
            let (flow, bytes) = (call.flow, std::mem::take(&mut call.frame).len());
            if call.event == Event::Connect {
                reserved = Some(call.session);
            }
            self.bytes.release(flow, bytes);
        }
        reserved
    }

    /// Whether a connect of this connection waits for a decision.
    pub(crate) fn is_connecting(&self, conn: ConnId) -> bool {
        self.of(conn).any(|call| call.event == Event::Connect)
    }

    /// Whether the next command of a connection must wait: for its connect, for an earlier command on the same channel, or
    /// because `concurrency` commands wait already.
    pub(crate) fn holds(&self, conn: ConnId, request: &Request<'_>, concurrency: u32) -> bool {
        if self.calls.is_empty() || matches!(request, Request::Pong) {
            return false;
        }
        let channel = request.channel();
        let mut waiting = 0;
        let comes_after = self.of(conn).filter(|call| !call.event.is_unasked()).any(|call| {
            waiting += 1;
            call.event == Event::Connect || channel.is_some_and(|channel| *call.channel == *channel)
        });
        comes_after || waiting >= concurrency
    }

    fn of(&self, conn: ConnId) -> impl Iterator<Item = &ProxyCall> {
        let numbers = match self.of.is_empty() {
            true => None,
            false => self.of.get(&conn.to_u64()),
        };
        numbers.into_iter().flatten().filter_map(|number| self.calls.get(number))
    }
}

/// The fields that all proxies together want forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForwardedFields {
    pub(crate) http_headers: Vec<String>,
    pub(crate) emulated_headers: Vec<String>,
    pub(crate) meta: bool,
}

impl ForwardedFields {
    /// Adds headers that the program wants, both real and emulated ones.
    pub(crate) fn add(&mut self, headers: &[String]) {
        for name in headers {
            for list in [&mut self.http_headers, &mut self.emulated_headers] {
                if !list.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                    list.push(name.clone());
                }
            }
        }
        self.meta = true;
    }
}

/// The forwarded data of one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForwardedData {
    pub(crate) http_headers: Vec<(String, String)>,
    pub(crate) emulated_headers: Vec<(String, String)>,
    pub(crate) meta: Option<Meta>,
    bytes: usize,
}

/// The forwarded data of connections. Empty if no proxy forwards anything.
#[derive(Debug, Default)]
pub(crate) struct ForwardedTable {
    pub(crate) wanted: ForwardedFields,
    of: FastMap<u64, ForwardedData>,
}

impl ForwardedTable {
    /// Stores the wanted headers of a connection's request, in place of those of an earlier one.
    ///
    /// A header is kept with all its lines in their order, or not at all: what a trusted proxy has appended (RFC 9110 §5.3) must
    /// not be left out behind what the client has written itself.
    pub(crate) fn keep_headers(
        &mut self,
        conn: ConnId,
        headers: Headers<'_>,
        passes: impl Fn(&str) -> bool,
    ) {
        if let Some(passed) = self.of.get_mut(&conn.to_u64()) {
            let old = std::mem::take(&mut passed.http_headers);
            passed.bytes -= old.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        }
        for name in self.wanted.http_headers.iter().filter(|name| passes(name)) {
            let lines = headers.get_all(name).map(|line| str::from_utf8(line).ok());
            let Some(lines) = lines.collect::<Option<Vec<&str>>>() else { continue };
            if lines.is_empty() {
                continue;
            }
            let passed = self.of.entry(conn.to_u64()).or_default();
            if passed.has_room(lines.iter().map(|line| name.len() + line.len()).sum()) {
                let lines = lines.into_iter().map(|line| (name.clone(), line.to_owned()));
                passed.http_headers.extend(lines);
            }
        }
    }

    /// Stores the wanted emulated headers of its connect command.
    pub(crate) fn keep_emulated<'a>(
        &mut self,
        conn: ConnId,
        given: impl Iterator<Item = (&'a str, &'a str)>,
    ) {
        if self.wanted.emulated_headers.is_empty() {
            return;
        }
        for (name, value) in given {
            let wanted = &self.wanted.emulated_headers;
            let Some(name) = wanted.iter().find(|wanted| wanted.eq_ignore_ascii_case(name)) else {
                continue;
            };
            // A client must not write headers of its own into the request.
            if value.bytes().any(|byte| byte.is_ascii_control()) {
                continue;
            }
            let passed = self.of.entry(conn.to_u64()).or_default();
            if passed.has_room(name.len() + value.len()) {
                passed.emulated_headers.push((name.clone(), value.to_owned()));
            }
        }
    }

    /// Replaces the connection's `meta`. Stores none if there is no room for it.
    pub(crate) fn keep_meta(&mut self, conn: ConnId, meta: Option<Box<[u8]>>) {
        if let Some(passed) = self.of.get_mut(&conn.to_u64()) {
            passed.bytes -= passed.meta.take().map_or(0, |meta| meta.raw().len());
        }
        if let Some(meta) = meta.filter(|_| self.wanted.meta) {
            let passed = self.of.entry(conn.to_u64()).or_default();
            if passed.has_room(meta.len()) {
                passed.meta = Some(meta.into());
            }
        }
    }

    /// Returns the connection's `meta`.
    pub(crate) fn meta(&self, conn: ConnId) -> Option<&Meta> {
        self.get(conn)?.meta.as_ref()
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&ForwardedData> {
        self.of.get(&conn.to_u64())
    }

    /// Removes the data of a closed connection.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        if !self.of.is_empty() {
            self.of.remove(&conn.to_u64());
        }
    }
}

impl ForwardedData {
    fn has_room(&mut self, bytes: usize) -> bool {
        let fits = self.bytes + bytes <= PASSED_BYTES_MAX;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

#[cfg(test)]
mod tests {
    use dunlin_protocol::centrifuge::{ChannelRequest, RpcRequest};
    use dunlin_wire::http1::{Decoded, HeaderSlots, Limits, decode_request};

    use super::*;

    fn call(conn: u64, event: Event, channel: &str) -> ProxyCall {
        ProxyCall {
            conn: ConnId::from_u64(conn),
            flow: conn,
            session: SessionId::pack(0, 0, 0, conn as u32, 0),
            id: Some(1),
            event,
            proxy: "backend".into(),
            channel: channel.into(),
            frame: vec![0; 10].into(),
            began: Instant::now(),
            span: None,
            gone: false,
        }
    }

    fn insert(calls: &mut ProxyCalls, call: ProxyCall, bytes_max: usize) -> Option<u64> {
        let number = calls.next_number();
        calls.insert(number, call, bytes_max).ok().map(|()| number)
    }

    fn presence(channel: &str) -> Request<'_> {
        Request::Presence(ChannelRequest { channel: channel.into() })
    }

    #[test]
    fn only_what_must_not_overtake_waits() {
        let mut calls = ProxyCalls::default();
        let (one, two) = (ConnId::from_u64(1), ConnId::from_u64(2));
        assert!(!calls.holds(one, &presence("a"), 2));
        let subscribe = insert(&mut calls, call(1, Event::Subscribe, "a"), 100).unwrap();
        assert!(calls.holds(one, &presence("a"), 2));
        assert!(!calls.holds(one, &presence("b"), 2));
        assert!(!calls.holds(two, &presence("a"), 2), "another connection");
        insert(&mut calls, call(1, Event::Rpc, ""), 100).unwrap();
        let rpc = Request::Rpc(RpcRequest::default());
        assert!(calls.holds(one, &rpc, 2), "as many as may be");
        assert!(!calls.holds(one, &Request::Pong, 2));
        assert!(calls.take(subscribe).is_some() && calls.take(subscribe).is_none());
        assert!(!calls.holds(one, &presence("a"), 2));
        insert(&mut calls, call(2, Event::Connect, ""), 100).unwrap();
        assert!(calls.is_connecting(two) && !calls.is_connecting(one));
        assert!(calls.holds(two, &rpc, 99), "nothing comes before the connect");
    }

    #[test]
    fn a_connection_that_closes_leaves_nothing_and_gives_its_session_back() {
        let mut calls = ProxyCalls::default();
        let number = insert(&mut calls, call(1, Event::Connect, ""), 15).unwrap();
        assert!(insert(&mut calls, call(2, Event::Publish, "a"), 15).is_none(), "too many bytes");
        assert_eq!(calls.forget(ConnId::from_u64(1)), Some(SessionId::pack(0, 0, 0, 1, 0)));
        assert!(!calls.is_connecting(ConnId::from_u64(1)));
        assert!(calls.take(number).is_some_and(|call| call.gone), "its answer is still heard");
        assert_eq!((calls.bytes.all(), calls.calls.capacity(), calls.of.capacity()), (0, 0, 0));
        insert(&mut calls, call(2, Event::Publish, "a"), 15).unwrap();
        assert_eq!(calls.forget(ConnId::from_u64(2)), None);
    }

    #[test]
    fn calls_of_a_user_leave_room_for_those_of_others() {
        let mut calls = ProxyCalls::default();
        let of = |flow: u64, conn: u64| ProxyCall { flow, ..call(conn, Event::Rpc, "") };
        let own = (0..20).filter_map(|conn| insert(&mut calls, of(7, conn), 100)).count();
        assert_eq!(own, 5, "half of 100 bytes, whatever the number of connections");
        assert!(insert(&mut calls, of(8, 30), 100).is_some());
        assert!(insert(&mut calls, of(8, 31), 100).is_some());
        assert!(insert(&mut calls, of(7, 32), 100).is_none());
        let numbers: Vec<u64> = calls.calls.keys().copied().collect();
        numbers.into_iter().for_each(|number| drop(calls.take(number)));
        assert_eq!((calls.bytes.all(), calls.bytes.flows()), (0, 0));
    }

    fn with_headers(lines: &str, then: impl FnOnce(Headers<'_>)) {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
        let mut slots = HeaderSlots::new();
        let limits = Limits { head_bytes_max: 64 << 10, ..Limits::default() };
        match decode_request(head.as_bytes(), &mut slots, &limits) {
            Ok(Decoded::Head(head, _)) => then(head.headers),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn repeated_header_is_kept_with_all_lines_or_not_at_all() {
        let wanted = ForwardedFields {
            http_headers: vec!["X-Forwarded-For".into()],
            ..ForwardedFields::default()
        };
        let mut passed = ForwardedTable { wanted, ..ForwardedTable::default() };
        let conn = ConnId::from_u64(1);
        let lines = |passed: &ForwardedTable| {
            let lines = passed.get(conn).map(|of| of.http_headers.clone()).unwrap_or_default();
            lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            // The second request of a connection replaces the first.
            let forged = "x-forwarded-for: 6.6.6.6\r\nA: b\r\nX-Forwarded-For: 192.0.2.7, 10.0.0.1";
            with_headers(forged, |headers| passed.keep_headers(conn, headers, |_| true));
            assert_eq!(lines(&passed), ["6.6.6.6", "192.0.2.7, 10.0.0.1"]);
        }
        let long = "6.6.6.6,".repeat(1_000);
        let long = format!("X-Forwarded-For: {long}\r\nX-Forwarded-For: {long}7.7.7.7\r\n");
        let long = format!("{long}X-Forwarded-For: {}", "192.0.2.7,".repeat(100));
        with_headers(&long, |headers| passed.keep_headers(conn, headers, |_| true));
        assert!(lines(&passed).is_empty(), "the last line would have no room");
        with_headers("X-Forwarded-For: 192.0.2.7", |headers| {
            passed.keep_headers(conn, headers, |_| true);
        });
        assert_eq!(lines(&passed), ["192.0.2.7"]);
    }

    #[test]
    fn headers_that_nobody_asked_for_are_not_kept_nor_lines_within_them() {
        let mut passed = ForwardedTable::default();
        let conn = ConnId::from_u64(1);
        with_headers("Cookie: a=1", |headers| passed.keep_headers(conn, headers, |_| true));
        assert_eq!(passed.get(conn), None);
        passed.wanted = ForwardedFields {
            http_headers: vec!["Cookie".into(), "Origin".into()],
            emulated_headers: vec!["Authorization".into()],
            meta: true,
        };
        with_headers("Cookie: a=1", |headers| passed.keep_headers(conn, headers, |_| true));
        let long = "x".repeat(PASSED_BYTES_MAX);
        let given = [
            ("authorization", "Bearer t"),
            ("Authorization", "a\r\nX-User: root"),
            ("X-User", "root"),
            ("Authorization", long.as_str()),
        ];
        passed.keep_emulated(conn, given.into_iter());
        let of = passed.get(conn).unwrap();
        assert_eq!(of.http_headers, [("Cookie".into(), "a=1".into())]);
        assert_eq!(of.emulated_headers, [("Authorization".into(), "Bearer t".into())]);
        passed.forget(conn);
        assert_eq!(passed.get(conn), None);
    }
}
