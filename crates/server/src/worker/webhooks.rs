//! Events for webhooks: from the hub and the sessions to the webhooks thread, as far as a hook wants them.

use dunlin_bus::SendError;
use dunlin_cluster::message::ClusterMessage;
use dunlin_config::HookEventKind;
use dunlin_hub::SessionId;
use dunlin_protocol::Encoding;
use dunlin_webhooks::{HookEvent, HookEventBody};

use super::parts::Emitted;
use super::turn::Core;
use crate::message::control::ControlMessage;
use crate::message::webhooks::WebhooksMessage;
use crate::metrics::Metric;

impl Core<'_> {
    /// Follows what the hooks of the present settings want.
    pub(super) fn apply_hooks(&mut self) {
        let watched_before = self.emitter.watches_occupancy();
        let watched = self.emitter.set_filter(&self.settings.event_filter);
        self.hub.set_channel_event_filter(watched);
        if watched.occupancy && !watched_before {
            self.list_occupied();
        }
    }

    /// Reports all channels that are occupied to the cluster, as known: no event begins with them.
    pub(super) fn list_occupied(&mut self) {
        if !self.is_in_cluster() || !self.emitter.watches_occupancy() {
            return;
        }
        for event in self.hub.occupied() {
            self.emitter.keep_occupancy(event, true);
        }
    }

    /// Reports occupancy to the cluster, which emits its events once for all nodes.
    pub(super) fn report_occupancy(&mut self) {
        let changes = self.emitter.take_occupancy();
        if changes.is_empty() {
            return;
        }
        let report = ClusterMessage::Occupancy(changes);
        let refused = self.endpoint.send(self.state.bus.control(), report).err();
        let refused = refused.map(SendError::into_value);
        if let Some(ControlMessage::Cluster(ClusterMessage::Occupancy(changes))) = refused {
            self.emitter.restore_occupancy(changes);
        }
    }

    /// Emits what happened in channels.
    pub(super) fn emit_channel_events(&mut self) {
        while let Some(event) = self.hub.poll_channel_event() {
            if let Some(event) = self.emitter.client_event(&event) {
                self.emit(event);
            }
            let event = match self.is_in_cluster() {
                true => self.emitter.keep_occupancy(event, false),
                false => Some(event),
            };
            if let Some(event) = event.and_then(|event| self.emitter.select(event)) {
                self.emit(event);
            }
        }
    }

    pub(super) fn emit_connect(&mut self, session: SessionId, user: &str, encoding: Encoding) {
        if let Some(event) = self.emitter.connect(session, user, encoding) {
            self.emit(event);
        }
    }

    pub(super) fn emit_disconnect(
        &mut self,
        session: SessionId,
        user: Box<str>,
        code: u32,
        reason: &str,
    ) {
        self.emit(HookEventBody::Disconnect { session, user, code, reason: reason.into() });
    }

    /// The user of a session about to be closed, if a hook wants its end and the hub has not ended it before.
    pub(super) fn user_to_report(&self, session: SessionId) -> Option<Box<str>> {
        let is_open = self.hub.session(session).is_some_and(|view| !view.closing);
        is_open.then(|| self.ended_user_to_report(session)).flatten()
    }

    /// The user of a session that the hub has ended, if a hook wants that. A long-poll is a request: no hook was
    /// notified of its beginning either.
    pub(super) fn ended_user_to_report(&self, session: SessionId) -> Option<Box<str>> {
        let view = self.hub.session(session).filter(|view| !view.poll)?;
        self.emitter.wants(HookEventKind::Disconnect).then(|| view.user.into())
    }

    fn emit(&mut self, event: HookEventBody) {
        let Self { emitter, endpoint, state, clock, index: worker, settings, .. } = self;
        let now = clock.now();
        let events_max = u64::from(settings.config.limits.bus_slots);
        let send = |body: HookEventBody| {
            let Some(in_transit) = state.webhooks.in_transit(*worker) else { return Err(body) };
            let (flow, cost_bytes) = (body.flow(), body.cost_bytes());
            if !in_transit.try_send(flow, cost_bytes, events_max) {
                return Err(body);
            }
            let event = Box::new(HookEvent { unix_ms: now.unix_ms, body });
            endpoint.send(state.bus.webhooks(), WebhooksMessage::Event(event)).or_else(|refused| {
                in_transit.cancel_send(flow, cost_bytes);
                match refused.into_value() {
                    WebhooksMessage::Event(event) => Err(event.body),
                    // It is what was given to it.
                    _ => Ok(()),
                }
            })
        };
        let log = match emitter.emit(event, now.ms, send) {
            Emitted::Sent => return self.count(Metric::WebhookEvents),
            Emitted::Dropped { log } => log,
        };
        self.count(Metric::WebhookOverflow);
        if let Some(events) = log {
            tracing::warn!(
                worker = self.index,
                events,
                "events happen faster than the webhooks thread takes them; they are dropped"
            );
        }
    }
}
