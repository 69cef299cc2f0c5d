//! What a worker says of itself once a second.

use dunlin_net::Context;

use super::Worker;
use super::link::Link;
use crate::metrics::Metric;

impl Worker<'_> {
    /// Publishes how much there is of what it has.
    pub(super) fn publish_gauges(&mut self, cx: &mut Context<Link>) {
        self.core.state.publish_keys(self.core.index, self.clients.sessions.heartbeat.keys());
        let hub = self.core.hub.stats();
        self.clients.sessions.heartbeat.set_sessions(hub.sessions);
        let net = cx.stats();
        let counters = &self.core.state.counters[self.core.index];
        let backends = self.clients.deciders.backends.as_ref().map_or(0, |of| of.connections);
        let own = backends + self.engines.connections();
        counters.set(Metric::Connections, (net.connections - own) as u64);
        counters.set(Metric::Turns, net.turns);
        counters.set(Metric::Unauthenticated, net.unauthenticated as u64);
        counters.set(Metric::Displaced, net.displaced);
        counters.set(Metric::BufferedBytes, net.buffered_bytes as u64);
        counters.set(Metric::ProxyFailed, net.proxy_failed);
        counters.set(Metric::HandshakesFailed, net.handshakes_failed);
        counters.set(Metric::Sessions, hub.sessions);
        counters.set(Metric::Subscriptions, hub.subscriptions);
        counters.set(Metric::Channels, hub.home_channels);
        counters.set(Metric::OutboxBytes, hub.pending_bytes);
        counters.set(Metric::HistoryBytes, hub.history_bytes);
        counters.set(Metric::FilterBytes, hub.filter_bytes);
        counters.set(Metric::MessagesIn, hub.publications);
        counters.set(Metric::MessagesOut, hub.deliveries);
        counters.set(Metric::MessagesDropped, hub.dropped);
        counters.set(Metric::SlowDisconnects, hub.slow_disconnects);
        counters.set(Metric::Gaps, hub.gaps);
        counters.set(Metric::Recovered, hub.recovered);
        counters.set(Metric::Unrecovered, hub.unrecovered);
        counters.set(Metric::BusRefused, hub.transmit_refused);
        for (metric, value) in [
            (Metric::Acks, hub.acks),
            (Metric::Cursors, hub.cursor_records),
            (Metric::CursorBytes, hub.cursor_bytes),
            (Metric::CursorsExpired, hub.cursors_expired),
            (Metric::Redelivered, hub.redelivered),
            (Metric::WindowsFull, hub.windows_full),
            (Metric::CursorsEvicted, hub.cursors_evicted),
            (Metric::EngineChannels, hub.engine_channels),
            (Metric::EngineHeldBytes, hub.engine_held_bytes),
            (Metric::EngineTimeouts, hub.engine_timeouts),
            (Metric::EngineReads, hub.engine_reads),
            (Metric::EngineRepaired, hub.engine_repaired),
            (Metric::EngineUnrepaired, hub.engine_unrepaired),
        ] {
            counters.set(metric, value);
        }
        self.core.state.transports[self.core.index].set(self.core.hub.sessions_by_encoding());
        self.engines.publish_engine_gauges(&mut self.core.turn(cx));
        if let Some(backends) = &mut self.clients.deciders.backends {
            backends.publish_gauges();
        }
    }
}
