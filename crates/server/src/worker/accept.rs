//! Admission of connections: the accept rate, the connection limits, and which peers are authenticated.

use std::net::{IpAddr, SocketAddr};

use dunlin_net::{Admit, ConnId, ListenerId, http};
use dunlin_protocol::Encoding;
use rustix::process::{Resource, getrlimit};

use super::link::{Link, Peer, Role};
use super::listeners::Listeners;
use super::parts::{AcceptLimits, BufferGate, Handshake};
use super::reply::PlainResponse;
use super::timer::Timer;
use super::turn::{Core, Turn};
use crate::limits::admission::{Admission, CountedAddress};
use crate::metrics::Metric;
use crate::request::forwarded_for::forwarded_for;

/// Descriptors reserved for the rest of the process if all threads share one table.
const DESCRIPTORS_RESERVED: usize = 512;

/// The kind of peer whose address a connection counts for.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// A client that is connected directly.
    Client,
    /// A trusted proxy.
    Proxy,
    /// A client that a trusted proxy has named.
    ClientOfProxy,
}

/// The machine at the front: listeners, and what limits who comes in and what is buffered for them.
pub(super) struct Front<'w> {
    pub(super) listeners: Listeners<'w>,
    pub(super) accept_limits: AcceptLimits,
    pub(super) buffers: BufferGate,
}

impl<'w> Front<'w> {
    pub(super) fn new(listeners: Listeners<'w>, accept_limits: AcceptLimits) -> Front<'w> {
        Front { listeners, accept_limits, buffers: BufferGate::default() }
    }
}

impl Front<'_> {
    /// Counts an accepted connection against the limits, or refuses it.
    pub(super) fn handle_accept(
        &mut self,
        turn: &mut Turn<'_, '_>,
        listener: ListenerId,
        peer: Option<SocketAddr>,
        link: &mut Link,
    ) -> Admit {
        self.take_accept(turn);
        if !self.accept_limits.has_room(turn.cx.stats().connections) {
            let limit = (Metric::RefusedDescriptors, "no file descriptor is left");
            turn.core.connection_refused(peer.map(|peer| peer.ip()), limit);
            return Admit::Refuse;
        }
        let Some(peer) = peer else { return Admit::Refuse };
        let is_proxy = self.listeners.is_proxy(listener, peer.ip());
        if self.listeners.speaks_tls(listener) && !self.take_handshake(turn, peer.ip(), is_proxy) {
            return Admit::Refuse;
        }
        match self.admit(
            turn.core,
            peer.ip(),
            if is_proxy { Source::Proxy } else { Source::Client },
        ) {
            Some(peer) => {
                link.peer = peer;
                if self.listeners.speaks_by_program(listener) {
                    link.role = Role::Client(Encoding::Program);
                }
                Admit::Accept
            }
            None => Admit::Refuse,
        }
    }

    /// Counts a connection of an address against the limits; limits per address do not apply to proxies. Returns `None` if a
    /// limit is exceeded.
    fn admit(&mut self, core: &mut Core<'_>, address: IpAddr, source: Source) -> Option<Peer> {
        let limits = &core.settings.config.limits;
        let counted = CountedAddress::of(address, limits.ipv6_prefix_bits);
        let limit = match core.state.admissions.admit(counted, limits, source == Source::Proxy) {
            Admission::Granted => {
                let may_name_others = source != Source::Client;
                return Some(Peer::new(
                    core.peers.intern(address, limits.ipv6_prefix_bits),
                    may_name_others,
                ));
            }
            Admission::TotalReached => (Metric::RefusedTotal, "limits.connections_max"),
            Admission::AddressReached => {
                (Metric::RefusedAddress, "limits.connections_per_address_max")
            }
            Admission::UnauthenticatedReached => {
                (Metric::RefusedUnauthenticated, "limits.unauthenticated_per_address_max")
            }
        };
        core.connection_refused(Some(address), limit);
        None
    }

    /// Counts a proxy's connection for the client of its current request from now on.
    ///
    /// # Errors
    /// The response to a header that does not name a client, or to a client with too many connections. The connection must be
    /// closed.
    pub(super) fn attribute(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        request: &http::Request<'_>,
    ) -> Result<(), PlainResponse<'static>> {
        let Some(&mut Link { peer, .. }) = turn.cx.data(conn).filter(|link| link.peer.is_proxy())
        else {
            return Ok(());
        };
        let Some(local) = turn.cx.local_addr(conn) else { return Ok(()) };
        let listener = turn.core.settings.listener_at(local);
        let is_proxy = |address| self.listeners.is_proxy_of(listener, address);
        let Ok(client) = forwarded_for(request.headers.list("X-Forwarded-For"), is_proxy) else {
            turn.core.count(Metric::ForwardedMalformed);
            return Err(PlainResponse::error(
                400,
                "X-Forwarded-For has something else than addresses",
            ));
        };
        let Some(client) = client else { return Ok(()) };
        if turn.core.peers.address(peer) == Some(client.to_canonical()) {
            return Ok(());
        }
        let source = if is_proxy(client) { Source::Proxy } else { Source::ClientOfProxy };
        turn.core.release_peer(peer);
        let admitted = self.admit(turn.core, client, source);
        if let Some(link) = turn.cx.data(conn) {
            link.peer = admitted.unwrap_or(Peer::UNKNOWN);
        }
        let why = "too many connections from this address; see [limits] of the server";
        admitted.map(drop).ok_or_else(|| PlainResponse::error(429, why))
    }

    /// Takes one token of the accept rate. After the last one, connections wait in the listen backlogs.
    fn take_accept(&mut self, turn: &mut Turn<'_, '_>) {
        let limits = &turn.core.settings.config.limits;
        let Some(pause_ms) = self.accept_limits.handle_accept(turn.cx.now_ms(), limits) else {
            return;
        };
        turn.core.count(Metric::RefusedRate);
        let listeners: Vec<ListenerId> = turn.cx.listeners().collect();
        listeners.into_iter().for_each(|listener| turn.cx.pause_accept(listener));
        turn.cx.run_after(pause_ms, Timer::Accept as u64);
    }

    /// Resumes accepting on every listener once the rate allows it.
    pub(super) fn accept_again(&mut self, turn: &mut Turn<'_, '_>) {
        let limits = &turn.core.settings.config.limits;
        if let Some(wait_ms) = self.accept_limits.handle_accept_timer(turn.cx.now_ms(), limits) {
            turn.cx.run_after(wait_ms, Timer::Accept as u64);
            return;
        }
        let listeners: Vec<ListenerId> = turn.cx.listeners().collect();
        listeners.into_iter().for_each(|listener| turn.cx.resume_accept(listener));
    }

    /// Takes one token of the TLS handshake rates. Returns `false` if the address has used its own. After the last token of all,
    /// connections wait in the listen backlogs.
    fn take_handshake(&mut self, turn: &mut Turn<'_, '_>, peer: IpAddr, is_proxy: bool) -> bool {
        let limits = &turn.core.settings.config.limits;
        let address = (!is_proxy).then(|| CountedAddress::of(peer, limits.ipv6_prefix_bits));
        let handshake = self.accept_limits.handle_handshake(turn.cx.now_ms(), address, limits);
        let Handshake::Begins { pause_ms } = handshake else {
            let limit = "limits.handshakes_per_address_per_s_max";
            turn.core.connection_refused(Some(peer), (Metric::HandshakesRefused, limit));
            return false;
        };
        if let Some(pause_ms) = pause_ms {
            turn.core.count(Metric::HandshakesPaused);
            for listener in self.tls_listeners(turn) {
                turn.cx.pause_accept(listener);
            }
            turn.cx.run_after(pause_ms, Timer::Handshake as u64);
        }
        true
    }

    /// Resumes accepting on TLS listeners once the handshake rate allows it.
    pub(super) fn shake_hands_again(&mut self, turn: &mut Turn<'_, '_>) {
        let limits = &turn.core.settings.config.limits;
        if let Some(wait_ms) = self.accept_limits.handle_handshake_timer(turn.cx.now_ms(), limits) {
            turn.cx.run_after(wait_ms, Timer::Handshake as u64);
            return;
        }
        for listener in self.tls_listeners(turn) {
            turn.cx.resume_accept(listener);
        }
    }

    fn tls_listeners(&self, turn: &mut Turn<'_, '_>) -> Vec<ListenerId> {
        turn.cx.listeners().filter(|&listener| self.listeners.speaks_tls(listener)).collect()
    }

    /// Limits unauthenticated connections to this worker's share.
    pub(super) fn bound_unauthenticated(&self, turn: &mut Turn<'_, '_>) {
        let share = turn.core.settings.config.limits.unauthenticated_max as usize;
        let share = share.div_ceil(turn.core.state.workers());
        turn.cx.set_unauthenticated_max(Some(self.accept_limits.unauthenticated_max(share)));
    }
}

impl Turn<'_, '_> {
    /// Marks the peer of a connection as authenticated, so that it no longer gives way to newer connections.
    pub(super) fn authenticated(&mut self, conn: ConnId) {
        let Some(link) = self.cx.data(conn).filter(|link| !link.peer.is_authenticated()) else {
            return;
        };
        link.peer = link.peer.authenticated();
        if let Some(address) = self.core.peers.authenticate(link.peer) {
            self.core.state.admissions.authenticate(address);
        }
        self.cx.mark_authenticated(conn);
    }
}

impl Core<'_> {
    /// Releases what a closed connection counted for.
    pub(super) fn release_peer(&mut self, peer: Peer) {
        if let Some(address) = self.peers.release(peer) {
            self.state.admissions.release(address, peer.is_authenticated());
        }
    }
}

/// The number of connections for which a worker has descriptors.
pub(super) fn connections_max(own_descriptor_table: bool, workers: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    match own_descriptor_table {
        true => limit,
        false => limit.saturating_sub(DESCRIPTORS_RESERVED) / workers,
    }
}
