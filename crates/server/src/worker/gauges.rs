//! What a worker says of itself once a second.

use dunlin_hub::{TracedDelivery, tenant};
use dunlin_net::Context;

use super::Worker;
use super::link::Link;
use super::turn::Core;
use crate::clock::unix_ms;
use crate::metrics::Metric;
use crate::metrics::namespaces::{Figures, NAMESPACES_MAX};
use crate::telemetry::SpanKind;

impl Core<'_> {
    /// Records how old the publications were that this turn has delivered.
    pub(super) fn record_deliveries(&mut self) {
        for TracedDelivery { cause, channel, time_ms, deliveries } in self.hub.take_traced() {
            if let Some(begun) = self.state.telemetry.begin_below(Some(cause)) {
                let attributes = vec![
                    ("messaging.destination.name", tenant::bare(&channel).into()),
                    ("dunlin.worker", (self.index as u64).into()),
                    ("dunlin.deliveries", deliveries.into()),
                ];
                let what = (SpanKind::Consumer, "deliver");
                self.state.telemetry.end_since(begun, time_ms, what, attributes);
            }
        }
        let mut delivered = self.hub.take_delivered().peekable();
        if delivered.peek().is_none() {
            return;
        }
        let (now_ms, times) = (unix_ms(), &self.state.loop_stats[self.index].delivery_times);
        for (time_ms, count) in delivered {
            // A clock that was set back, or that of another node.
            let age_ms = now_ms.saturating_sub(time_ms);
            times.record_many(age_ms.saturating_mul(1_000_000), count);
        }
    }
}

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
        let namespaces = &self.core.settings.config.channel.namespaces;
        let listed = std::iter::once("").chain(namespaces.keys());
        let listed = listed.take(NAMESPACES_MAX).map(|name| {
            let share = self.core.hub.namespace(name);
            (name.into(), share.as_ref().map(Figures::from).unwrap_or_default())
        });
        self.core.state.namespaces[self.core.index].publish(Figures::from(&hub), listed);
        self.core.state.transports[self.core.index].set(self.core.hub.sessions_by_encoding());
        self.engines.publish_engine_gauges(&mut self.core.turn(cx));
        if let Some(backends) = &mut self.clients.deciders.backends {
            backends.publish_gauges();
        }
    }
}
