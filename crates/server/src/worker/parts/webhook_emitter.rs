//! Events for webhooks: selects those that a hook subscribes to, and counts those that were dropped.

use std::sync::Arc;

use dunlin_config::HookEventKind;
use dunlin_hub::{ChannelEvent, ChannelEventFilter, SessionId};
use dunlin_protocol::Encoding;
use dunlin_protocol::pusher::EVENT_TAG;
use dunlin_webhooks::{EventFilter, EventOwner, FilterCache, HookEventBody};

use dunlin_cluster::message::{OccupancyChange, OccupancyEdge};

/// Milliseconds between two log lines about events that were dropped.
const LOG_INTERVAL_MS: u64 = 10_000;

/// Selects events and counts what is dropped.
#[derive(Debug, Default)]
pub(crate) struct WebhookEmitter {
    filter: FilterCache,
    /// Dropped events that hooks were not notified of yet.
    dropped: u64,
    /// Who caused them, if it was one owner.
    dropped_of: Option<EventOwner>,
    /// Events dropped since the last log line.
    unlogged: u64,
    logged_ms: Option<u64>,
    /// The hub records occupancy.
    watches_occupancy: bool,
    /// Occupancy to be reported to the cluster, which emits its events once for all nodes.
    occupancy: Vec<OccupancyChange>,
}

/// The most changes of occupancy that wait for the bus.
const OCCUPANCY_MAX: usize = 1 << 18;

/// The result of emitting an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emitted {
    Sent,
    /// There was no room. `log`: the number dropped since the last log line, if another line is due.
    Dropped {
        log: Option<u64>,
    },
}

impl WebhookEmitter {
    /// Keeps an event of occupancy for the cluster. Returns events of other kinds, and what finds no room.
    pub(crate) fn keep_occupancy(
        &mut self,
        event: ChannelEvent,
        known: bool,
    ) -> Option<ChannelEvent> {
        if self.occupancy.len() >= OCCUPANCY_MAX {
            return Some(event);
        }
        let (channel, user, occupied) = match event {
            ChannelEvent::Occupied { channel, occupied } => (channel, None, occupied),
            ChannelEvent::Member { channel, user, added } => (channel, Some(user.into()), added),
            other => return Some(other),
        };
        let edge = match occupied {
            true if known => OccupancyEdge::Known,
            true => OccupancyEdge::Begun,
            false => OccupancyEdge::Ended,
        };
        self.occupancy.push(OccupancyChange { channel, user, edge });
        None
    }

    /// Takes what is to be reported.
    pub(crate) fn take_occupancy(&mut self) -> Vec<OccupancyChange> {
        std::mem::take(&mut self.occupancy)
    }

    /// Keeps what the bus did not take, before what has come since.
    pub(crate) fn restore_occupancy(&mut self, mut changes: Vec<OccupancyChange>) {
        changes.append(&mut self.occupancy);
        self.occupancy = changes;
    }

    /// Whether the hub records occupancy.
    pub(crate) fn watches_occupancy(&self) -> bool {
        self.watches_occupancy
    }

    /// Sets which events the hooks want. Returns what the hub has to watch for that.
    pub(crate) fn set_filter(&mut self, filter: &Arc<EventFilter>) -> ChannelEventFilter {
        self.filter.set_filter(filter);
        let watched = ChannelEventFilter {
            subscriptions: self.wants(HookEventKind::Subscribe)
                || self.wants(HookEventKind::Unsubscribe),
            publications: self.wants(HookEventKind::Publish)
                || self.wants(HookEventKind::ClientEvent),
            occupancy: [
                HookEventKind::ChannelOccupied,
                HookEventKind::ChannelVacated,
                HookEventKind::MemberAdded,
                HookEventKind::MemberRemoved,
            ]
            .into_iter()
            .any(|kind| self.wants(kind)),
        };
        self.watches_occupancy = watched.occupancy;
        watched
    }

    /// Whether a hook wants such events; without hooks this is one branch.
    pub(crate) fn wants(&self, kind: HookEventKind) -> bool {
        self.filter.wants(kind)
    }

    /// Returns the hook event of a publication by a client of the Pusher protocol, if a hook wants it.
    pub(crate) fn client_event(&mut self, event: &ChannelEvent) -> Option<HookEventBody> {
        let ChannelEvent::Published { channel, publication, .. } = event else { return None };
        let is_named = publication
            .tags()
            .iter()
            .any(|(name, event)| &**name == EVENT_TAG && event.starts_with("client-"));
        let is_wanted = publication.info().is_some()
            && is_named
            && self.filter.wants_from(HookEventKind::ClientEvent, channel);
        is_wanted.then(|| HookEventBody::ClientEvent {
            channel: Arc::clone(channel),
            publication: publication.clone(),
        })
    }

    /// Returns the hook event of a channel event, if a hook wants it.
    pub(crate) fn select(&mut self, event: ChannelEvent) -> Option<HookEventBody> {
        let filter = &mut self.filter;
        match event {
            ChannelEvent::Occupied { channel, occupied } => {
                let kind = match occupied {
                    true => HookEventKind::ChannelOccupied,
                    false => HookEventKind::ChannelVacated,
                };
                let is_wanted = filter.wants_from(kind, &channel);
                is_wanted.then_some(HookEventBody::Occupied { channel, occupied })
            }
            ChannelEvent::Member { channel, user, added } => {
                let kind = match added {
                    true => HookEventKind::MemberAdded,
                    false => HookEventKind::MemberRemoved,
                };
                let is_wanted = filter.wants_from(kind, &channel);
                is_wanted.then_some(HookEventBody::Member { channel, user, added })
            }
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
        }
    }

    /// Returns the hook event of a new session, if a hook wants it.
    pub(crate) fn connect(
        &self,
        session: SessionId,
        user: &str,
        encoding: Encoding,
    ) -> Option<HookEventBody> {
        let transport = encoding.transport();
        self.wants(HookEventKind::Connect).then(|| HookEventBody::Connect {
            session,
            user: user.into(),
            transport,
        })
    }

    /// Gives an event to `send`, which returns it when there is no room. Before it, hooks are notified of those that
    /// were dropped.
    pub(crate) fn emit(
        &mut self,
        event: HookEventBody,
        now_ms: u64,
        mut send: impl FnMut(HookEventBody) -> Result<(), HookEventBody>,
    ) -> Emitted {
        if self.dropped > 0 {
            let owner = self.dropped_of.clone().map(Box::new);
            if send(HookEventBody::Missed { count: self.dropped, owner }).is_ok() {
                (self.dropped, self.dropped_of) = (0, None);
            }
        }
        let owner = match send(event) {
            Ok(()) => return Emitted::Sent,
            Err(event) => event.owner(),
        };
        self.dropped_of = match self.dropped {
            0 => owner,
            _ => self.dropped_of.take().filter(|of| Some(of) == owner.as_ref()),
        };
        self.dropped += 1;
        self.unlogged += 1;
        let log_is_due = self.logged_ms.is_none_or(|at_ms| now_ms >= at_ms + LOG_INTERVAL_MS);
        let log = log_is_due.then(|| {
            self.logged_ms = Some(now_ms);
            std::mem::take(&mut self.unlogged)
        });
        Emitted::Dropped { log }
    }
}

#[cfg(test)]
mod tests {
    use dunlin_config::{Hook, Map, Pattern};

    use super::*;

    fn session() -> SessionId {
        SessionId::pack(0, 0, 0, 1, 0)
    }

    fn emitter(
        kinds: &[HookEventKind],
        channels: Option<&str>,
    ) -> (WebhookEmitter, ChannelEventFilter) {
        let channels = channels.map(|pattern| Pattern::parse(pattern).unwrap());
        let hook = Hook { events: kinds.into(), channels, ..Hook::default() };
        let hooks: Map<Hook> = [("hook", hook)].into_iter().collect();
        let mut emitter = WebhookEmitter::default();
        let watched = emitter.set_filter(&Arc::new(EventFilter::of(&hooks)));
        (emitter, watched)
    }

    fn event() -> HookEventBody {
        HookEventBody::Connect { session: session(), user: "ada".into(), transport: "websocket" }
    }

    #[test]
    fn without_hooks_nothing_is_watched_and_nothing_selected() {
        let mut emitter = WebhookEmitter::default();
        let watched = emitter.set_filter(&Arc::new(EventFilter::of(&Map::new())));
        assert!(!watched.subscriptions && !watched.publications);
        assert!(emitter.connect(session(), "ada", Encoding::WsJson).is_none());
    }

    #[test]
    fn a_hook_on_a_pattern_selects_events_of_its_channels() {
        let (mut emitter, watched) = emitter(&[HookEventKind::Subscribe], Some("chat:*"));
        assert!(watched.subscriptions && !watched.publications);
        let mut subscribed = |channel: &str| {
            let (user, channel) = ("ada".into(), channel.into());
            emitter.select(ChannelEvent::Subscribed { session: session(), user, channel }).is_some()
        };
        assert!(subscribed("chat:1"));
        assert!(!subscribed("news"));
    }

    #[test]
    fn hooks_are_notified_of_dropped_events_before_the_next_one() {
        let mut emitter = WebhookEmitter::default();
        let full = |event| Err(event);
        assert_eq!(emitter.emit(event(), 0, full), Emitted::Dropped { log: Some(1) });
        assert_eq!(emitter.emit(event(), 1, full), Emitted::Dropped { log: None });
        let soon = LOG_INTERVAL_MS;
        assert_eq!(emitter.emit(event(), soon, full), Emitted::Dropped { log: Some(2) });

        let mut sent = Vec::new();
        let room = |event| {
            sent.push(event);
            Ok(())
        };
        assert_eq!(emitter.emit(event(), soon, room), Emitted::Sent);
        let [HookEventBody::Missed { count: 3, owner }, HookEventBody::Connect { .. }] = &sent[..]
        else {
            panic!("{sent:?}");
        };
        assert_eq!(owner.as_deref(), event().owner().as_ref(), "it was one user's loss");
        let only_itself = |event| match event {
            HookEventBody::Connect { .. } => Ok(()),
            other => Err(other),
        };
        assert_eq!(emitter.emit(event(), soon, only_itself), Emitted::Sent);
    }
}
