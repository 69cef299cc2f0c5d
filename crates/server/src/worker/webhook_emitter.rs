//! What backends are told of what happens here, as far as a hook wants to hear of it.

use dunlin_config::HookEventKind;
use dunlin_hub::{ChannelEvent, ChannelEventFilter, SessionId};
use dunlin_protocol::Encoding;
use dunlin_webhooks::{FilterCache, HookEvent, HookEventBody};

use super::Worker;
use crate::bus_message::BusMessage;
use crate::metrics::Metric;

/// Milliseconds between two lines of the log about events that could not be handed over.
const LOG_INTERVAL_MS: u64 = 10_000;

/// Which events are told, and what could not be.
#[derive(Debug, Default)]
pub(super) struct WebhookEmitter {
    filter: FilterCache,
    /// Events there was no room for, until that is told.
    missed: u64,
    /// The same, until it is logged.
    unlogged: u64,
    logged_ms: Option<u64>,
}

impl Worker<'_> {
    /// Takes up what hooks of the present settings want.
    pub(super) fn apply_hooks(&mut self) {
        let filter = &mut self.webhook_emitter.filter;
        filter.set_filter(&self.settings.event_filter);
        self.hub.set_channel_event_filter(ChannelEventFilter {
            subscriptions: filter.wants(HookEventKind::Subscribe)
                || filter.wants(HookEventKind::Unsubscribe),
            publications: filter.wants(HookEventKind::Publish),
        });
    }

    /// Tells what the hub has noticed.
    pub(super) fn emit_notices(&mut self) {
        while let Some(notice) = self.hub.poll_channel_event() {
            let filter = &mut self.webhook_emitter.filter;
            let what = match notice {
                ChannelEvent::Subscribed { session, user, channel } => filter
                    .wants_from(HookEventKind::Subscribe, &channel)
                    .then_some(HookEventBody::Subscribe { session, user, channel }),
                ChannelEvent::Unsubscribed { session, user, channel, cause } => filter
                    .wants_from(HookEventKind::Unsubscribe, &channel)
                    .then_some(HookEventBody::Unsubscribe { session, user, channel, cause }),
                ChannelEvent::Published { channel, epoch, publication } => filter
                    .wants_from(HookEventKind::Publish, &channel)
                    .then_some(HookEventBody::Publish { channel, epoch, publication }),
                _ => None,
            };
            if let Some(what) = what {
                self.tell(what);
            }
        }
    }

    pub(super) fn emit_connect(&mut self, session: SessionId, user: &str, encoding: Encoding) {
        if self.webhook_emitter.filter.wants(HookEventKind::Connect) {
            self.tell(HookEventBody::Connect {
                session,
                user: user.into(),
                transport: encoding.transport(),
            });
        }
    }

    pub(super) fn emit_disconnect(
        &mut self,
        session: SessionId,
        user: Box<str>,
        code: u32,
        reason: &str,
    ) {
        self.tell(HookEventBody::Disconnect { session, user, code, reason: reason.into() });
    }

    /// Whose session this is that is about to be closed, if its end is to be told and was not.
    pub(super) fn farewell(&self, session: SessionId) -> Option<Box<str>> {
        let view = self.hub.session(session).filter(|view| !view.closing)?;
        self.tells_end_of(view.poll).then(|| view.user.into())
    }

    /// Whose session this is that the hub has ended, if that is to be told.
    pub(super) fn last_word_of(&self, session: SessionId) -> Option<Box<str>> {
        let view = self.hub.session(session)?;
        self.tells_end_of(view.poll).then(|| view.user.into())
    }

    /// A long-poll is a request: that it has begun was not told either.
    fn tells_end_of(&self, poll: bool) -> bool {
        !poll && self.webhook_emitter.filter.wants(HookEventKind::Disconnect)
    }

    fn tell(&mut self, what: HookEventBody) {
        if self.webhook_emitter.missed > 0
            && self.hand_over(HookEventBody::Missed(self.webhook_emitter.missed))
        {
            self.webhook_emitter.missed = 0;
        }
        if self.hand_over(what) {
            return self.count(Metric::WebhookEvents);
        }
        self.count(Metric::WebhookOverflow);
        self.webhook_emitter.missed += 1;
        self.webhook_emitter.unlogged += 1;
        let now_ms = self.now_ms;
        if self.webhook_emitter.logged_ms.is_none_or(|at_ms| now_ms >= at_ms + LOG_INTERVAL_MS) {
            self.webhook_emitter.logged_ms = Some(now_ms);
            let events = std::mem::take(&mut self.webhook_emitter.unlogged);
            tracing::warn!(
                worker = self.index,
                events,
                "events happen faster than the webhooks thread takes them; they are not told"
            );
        }
    }

    /// Puts an event on the bus. False: there is no room.
    fn hand_over(&mut self, what: HookEventBody) -> bool {
        let Some(in_transit) = self.state.webhooks.in_transit(self.index) else { return false };
        let cost = what.cost_bytes();
        if !in_transit.try_send(cost) {
            return false;
        }
        let message =
            BusMessage::HookEvent(Box::new(HookEvent { unix_ms: self.unix_ms(), body: what }));
        let sent = self.endpoint.send(self.state.webhooks_endpoint(), message).is_ok();
        if !sent {
            in_transit.cancel_send(cost);
        }
        sent
    }
}
