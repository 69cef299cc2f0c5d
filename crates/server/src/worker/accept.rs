//! Admission: the accept rate, the limits on connections, and whose peers are authenticated.

use std::net::{IpAddr, SocketAddr};

use dunlin_net::{Admit, ConnId, Context, ListenerId, http};
use rustix::process::{Resource, getrlimit};

use super::Worker;
use super::link::{Link, Peer};
use super::parts::Handshake;
use super::reply::PlainResponse;
use super::timer::Timer;
use crate::limits::admission::{Admission, counted_as};
use crate::metrics::Metric;
use crate::request::forwarded_for::forwarded_for;

/// Descriptors that are left to the rest of the process where all threads share one table.
const DESCRIPTORS_RESERVED: usize = 512;

/// Whose address a connection counts for.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// Its client's, who is connected itself.
    Client,
    /// A trusted proxy's.
    Proxy,
    /// The client's that a trusted proxy has named.
    ClientOfProxy,
}

impl Worker<'_> {
    /// Decides on a connection just accepted: counts it against the limits, or refuses it.
    pub(super) fn handle_accept(
        &mut self,
        cx: &mut Context<Link>,
        listener: ListenerId,
        peer: Option<SocketAddr>,
        link: &mut Link,
    ) -> Admit {
        self.take_accept(cx);
        if !self.accept_limits.has_room(cx.stats().connections) {
            self.count(Metric::RefusedDescriptors);
            return Admit::Refuse;
        }
        let Some(peer) = peer else { return Admit::Refuse };
        let is_proxy = self.listeners.is_proxy(listener, peer.ip());
        if self.listeners.speaks_tls(listener) && !self.take_handshake(cx, peer.ip(), is_proxy) {
            return Admit::Refuse;
        }
        match self.admit(peer.ip(), if is_proxy { Source::Proxy } else { Source::Client }) {
            Some(peer) => {
                link.peer = peer;
                Admit::Accept
            }
            None => Admit::Refuse,
        }
    }

    /// Counts a connection of an address against the limits, of which those for one address do not bound a proxy.
    /// `None`: a limit is exceeded.
    fn admit(&mut self, address: IpAddr, source: Source) -> Option<Peer> {
        let limits = &self.settings.config.limits;
        let counted = counted_as(address, limits.ipv6_prefix_bits);
        let refused = match self.state.admissions.admit(counted, limits, source == Source::Proxy) {
            Admission::Granted => {
                let may_name_others = source != Source::Client;
                return Some(Peer::new(self.peers.intern(counted), may_name_others));
            }
            Admission::TotalReached => Metric::RefusedTotal,
            Admission::AddressReached => Metric::RefusedAddress,
            Admission::UnauthenticatedReached => Metric::RefusedUnauthenticated,
        };
        self.count(refused);
        None
    }

    /// A proxy passes on a request: the connection counts as the client's that the request is of from now on.
    ///
    /// # Errors
    /// The answer to a header that names nobody, or to one connection too many of a client. The connection is to be closed.
    pub(super) fn attribute(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> Result<(), PlainResponse<'static>> {
        let Some(&mut Link { peer, .. }) = cx.data(conn).filter(|link| link.peer.is_proxy()) else {
            return Ok(());
        };
        let Some(local) = cx.local_addr(conn) else { return Ok(()) };
        let listener = self.settings.listener_at(local);
        let is_proxy = |address| self.listeners.is_proxy_of(listener, address);
        let Ok(client) = forwarded_for(request.headers.list("X-Forwarded-For"), is_proxy) else {
            self.count(Metric::ForwardedMalformed);
            return Err(PlainResponse::error(
                400,
                "X-Forwarded-For has something else than addresses",
            ));
        };
        let Some(client) = client else { return Ok(()) };
        let counted = counted_as(client, self.settings.config.limits.ipv6_prefix_bits);
        if self.peers.get(peer.place()) == Some(counted) {
            return Ok(());
        }
        let source = if is_proxy(client) { Source::Proxy } else { Source::ClientOfProxy };
        self.release_peer(peer);
        let admitted = self.admit(client, source);
        if let Some(link) = cx.data(conn) {
            link.peer = admitted.unwrap_or(Peer::UNKNOWN);
        }
        let why = "too many connections from this address; see [limits] of the server";
        admitted.map(drop).ok_or_else(|| PlainResponse::error(429, why))
    }

    /// Takes one from the accept rate. If it was the last, those after it wait in the backlogs for a while.
    fn take_accept(&mut self, cx: &mut Context<Link>) {
        let limits = &self.settings.config.limits;
        let Some(pause_ms) = self.accept_limits.handle_accept(cx.now_ms(), limits) else { return };
        self.count(Metric::RefusedRate);
        let listeners: Vec<ListenerId> = cx.listeners().collect();
        listeners.into_iter().for_each(|listener| cx.pause_accept(listener));
        cx.run_after(pause_ms, Timer::Accept as u64);
    }

    /// Accepts on every listener once the rate allows it.
    pub(super) fn accept_again(&mut self, cx: &mut Context<Link>) {
        let limits = &self.settings.config.limits;
        if let Some(wait_ms) = self.accept_limits.handle_accept_timer(cx.now_ms(), limits) {
            cx.run_after(wait_ms, Timer::Accept as u64);
            return;
        }
        let listeners: Vec<ListenerId> = cx.listeners().collect();
        listeners.into_iter().for_each(|listener| cx.resume_accept(listener));
    }

    /// Takes one from the rates of TLS handshakes. False: the address has had its own. If it was the last of all, those
    /// after it wait in the backlogs.
    fn take_handshake(&mut self, cx: &mut Context<Link>, peer: IpAddr, is_proxy: bool) -> bool {
        let limits = &self.settings.config.limits;
        let address = (!is_proxy).then(|| counted_as(peer, limits.ipv6_prefix_bits));
        let handshake = self.accept_limits.handle_handshake(cx.now_ms(), address, limits);
        let Handshake::Begins { pause_ms } = handshake else {
            self.count(Metric::HandshakesRefused);
            return false;
        };
        if let Some(pause_ms) = pause_ms {
            self.count(Metric::HandshakesPaused);
            for listener in self.tls_listeners(cx) {
                cx.pause_accept(listener);
            }
            cx.run_after(pause_ms, Timer::Handshake as u64);
        }
        true
    }

    /// Accepts on listeners with TLS once the rate of handshakes allows it.
    pub(super) fn shake_hands_again(&mut self, cx: &mut Context<Link>) {
        let limits = &self.settings.config.limits;
        if let Some(wait_ms) = self.accept_limits.handle_handshake_timer(cx.now_ms(), limits) {
            cx.run_after(wait_ms, Timer::Handshake as u64);
            return;
        }
        for listener in self.tls_listeners(cx) {
            cx.resume_accept(listener);
        }
    }

    fn tls_listeners(&self, cx: &Context<Link>) -> Vec<ListenerId> {
        cx.listeners().filter(|&listener| self.listeners.speaks_tls(listener)).collect()
    }

    /// The peer of a connection has shown who it is: it has a place of its own from now on.
    pub(super) fn authenticated(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let Some(link) = cx.data(conn).filter(|link| !link.peer.is_authenticated()) else { return };
        link.peer = link.peer.authenticated();
        if let Some(address) = self.peers.authenticate(link.peer.place()) {
            self.state.admissions.authenticate(address);
        }
        cx.mark_authenticated(conn);
    }

    /// A connection is over: gives its place back.
    pub(super) fn release_peer(&mut self, peer: Peer) {
        if let Some(address) = self.peers.release(peer.place(), peer.is_authenticated()) {
            self.state.admissions.release(address, peer.is_authenticated());
        }
    }

    /// Bounds the connections whose peers have not shown who they are to this worker's share.
    pub(super) fn bound_unauthenticated(&self, cx: &mut Context<Link>) {
        let share = self.settings.config.limits.unauthenticated_max as usize;
        let share = share.div_ceil(self.state.workers());
        cx.set_unauthenticated_max(Some(self.accept_limits.unauthenticated_max(share)));
    }
}

/// The connections a worker has descriptors for.
pub(super) fn connections_max(own_descriptor_table: bool, workers: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    match own_descriptor_table {
        true => limit,
        false => limit.saturating_sub(DESCRIPTORS_RESERVED) / workers,
    }
}
