//! Messages that come again on a living connection: what a subscriber has not acknowledged in time, and what waits until there is
//! room in its window.

use std::sync::Arc;

use super::Hub;
use super::subscribe::Recovered;
use crate::channel::{FILTERED, PAUSED, SubscriptionState};
use crate::channel_event::UnsubscribeCause;
use crate::code;
use crate::command::HistoryFilter;
use crate::cursor::{CursorAction, CursorOwner, CursorRequest, CursorState};
use crate::encode::Outgoing;
use crate::error::Error;
use crate::event::{Event, History};
use crate::in_flight::{Delivery, PAGE_MAX, REQUESTS_MAX};
use crate::inbox;
use crate::message::{HistoryRequest, HubMessageKind, ReplyContent};
use crate::options::{AckOptions, ChannelOptions};
use crate::pending_requests::{DeliveryStep, PendingDelivery, Waiter};
use crate::position::StreamPosition;
use crate::publication::Publication;
use crate::session::POLL;

/// When a request that failed is made again.
const RETRY_MS: u64 = 1_000;

impl Hub {
    /// Begins to follow what a subscriber has not acknowledged. What its window does not hold is taken from what it is given.
    pub(super) fn begin_delivery(
        &mut self,
        subscription: u32,
        device: Box<str>,
        position: &mut StreamPosition,
        recovered: &mut Recovered,
    ) {
        let record = self.subscriptions[subscription];
        let (slot, at) = (record.slot(), record.channel);
        let Some(ack) = redelivers(&self.channels[at].options) else { return };
        let Some(state) = recovered.cursor.as_deref().copied() else { return };
        let is_exhausted = state.is_exhausted(&ack);
        let acked = state.since().offset;
        if is_exhausted {
            self.report_undeliverable(subscription, device.clone(), acked, state.deliveries);
        }
        // A poll ends with its answer.
        if self.sessions[slot].is(POLL) {
            return;
        }
        let mut sent = position.offset;
        if ack.window > 0 {
            if !recovered.recovered {
                sent = (acked + u64::from(is_exhausted)).min(position.offset);
            } else if recovered.publications.len() > ack.window as usize {
                recovered.publications.truncate(ack.window as usize);
                sent = recovered.publications.last().map_or(sent, |last| last.offset());
            }
            recovered.recovered = true;
        }
        let mut delivery = Delivery::new(device, acked.min(sent), sent);
        if delivery.in_flight() > 0 {
            delivery.due_ms = self.now.ms + ack.timeout_ms;
        }
        let is_behind = sent < position.offset;
        let is_full = delivery.room(ack.window) == 0;
        position.offset = sent;
        self.in_flight.insert(at, subscription, delivery);
        if is_behind || is_full {
            self.pause(subscription, true);
            self.resume(subscription);
        }
    }

    /// Has a subscriber left out of what the others are sent, or no longer.
    fn pause(&mut self, subscription: u32, is_paused: bool) {
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        of.is_paused = is_paused;
        let record = self.subscriptions[subscription];
        if let SubscriptionState::Established { index } = record.state.get()
            && let Some(of) = self.channels[record.channel].subscribers.get_mut(index as usize)
        {
            *of = if is_paused { of.with(PAUSED) } else { of.without(PAUSED) };
        }
    }

    /// The subscribers of a channel were sent a publication, but for those that are paused.
    pub(super) fn sent_to_subscribers(&mut self, at: u32, offset: u64) {
        let Some(ack) = self.channels.get(at).and_then(|channel| redelivers(&channel.options))
        else {
            return;
        };
        for subscription in self.in_flight.of_channel(at).to_vec() {
            let is_filtered_out = self.is_filtered_out(at, subscription);
            let now_ms = self.now.ms;
            let Some(of) = self.in_flight.get_mut(subscription) else { continue };
            if of.is_paused {
                self.resume(subscription);
                continue;
            }
            if is_filtered_out && of.in_flight() == 0 {
                of.acked = offset;
            }
            of.sent = offset;
            if of.in_flight() > 0 && of.due_ms == u64::MAX {
                of.due_ms = now_ms + ack.timeout_ms;
            }
            let is_full = of.room(ack.window) == 0;
            self.in_flight.set_timer(subscription);
            if is_full {
                self.pause(subscription, true);
            }
        }
    }

    /// Whether a subscriber's filter has left out the last publication.
    fn is_filtered_out(&self, at: u32, subscription: u32) -> bool {
        let Some(filters) = self.filters.get(&at) else { return false };
        self.is_filtered(subscription) && !filters.admits(subscription)
    }

    fn is_filtered(&self, subscription: u32) -> bool {
        let record = self.subscriptions[subscription];
        match record.state.get() {
            SubscriptionState::Established { index } => {
                let of = self.channels[record.channel].subscribers.get(index as usize);
                of.is_some_and(|of| of.flags() & FILTERED != 0)
            }
            _ => false,
        }
    }

    /// A cursor has moved, maybe by another device, a poll or a backend.
    pub(super) fn handle_acked(&mut self, channel: &str, owner: &CursorOwner, offset: u64) {
        let Some(at) = self.channels.find(&self.names, channel) else { return };
        for subscription in self.in_flight.of_channel(at).to_vec() {
            let slot = self.subscriptions[subscription].slot();
            let is_own = self.users.name(self.sessions[slot].user) == &*owner.user
                && self.in_flight.get_mut(subscription).is_some_and(|of| of.device == owner.device);
            if is_own {
                self.acknowledged(subscription, offset);
            }
        }
    }

    fn acknowledged(&mut self, subscription: u32, offset: u64) {
        let at = self.subscriptions[subscription].channel;
        let Some(ack) = redelivers(&self.channels[at].options) else { return };
        let due_ms = self.now.ms + ack.timeout_ms;
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        if of.acknowledge(offset, due_ms) {
            self.in_flight.set_timer(subscription);
            self.resume(subscription);
        }
    }

    /// Lets a paused subscriber go on: with the others if it has what they have, otherwise with what it has not been sent yet.
    fn resume(&mut self, subscription: u32) {
        let at = self.subscriptions[subscription].channel;
        let Some(ack) = redelivers(&self.channels[at].options) else { return };
        let position = self.channels[at].position;
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        let (room, sent) = (of.room(ack.window), of.sent);
        if !of.is_paused || of.is_waiting || room == 0 || sent > position.offset {
            return;
        }
        if sent == position.offset {
            return self.pause(subscription, false);
        }
        self.read_for(subscription, DeliveryStep::Feed, sent, room);
    }

    /// Reads publications for a subscriber.
    fn read_for(&mut self, subscription: u32, step: DeliveryStep, since: u64, count: u64) {
        let record = self.subscriptions[subscription];
        let channel = &self.channels[record.channel];
        let (options, epoch) = (Arc::clone(&channel.options), channel.position.epoch);
        let filter = HistoryFilter {
            since: Some(StreamPosition { offset: since, epoch }),
            limit: u32::try_from(count.min(PAGE_MAX)).ok(),
            bytes_max: (options.recovery_bytes_max > 0).then_some(options.recovery_bytes_max),
            ..HistoryFilter::default()
        };
        let owner = self.sessions[record.slot()].owner;
        self.request_for(subscription, step, |request, channel| {
            let asked = HistoryRequest { request, channel, options, filter, owner };
            HubMessageKind::History(Box::new(asked))
        });
    }

    fn request_for(
        &mut self,
        subscription: u32,
        step: DeliveryStep,
        kind: impl FnOnce(crate::message::WaiterId, Arc<str>) -> HubMessageKind,
    ) {
        let record = self.subscriptions[subscription];
        let channel = &self.channels[record.channel];
        let (home, name) = (channel.home, Arc::clone(&channel.name));
        let session = self.id_of(record.slot());
        let waiter = PendingDelivery { session, subscription, home, step };
        let has_room = self.in_flight.requests < REQUESTS_MAX;
        let sent = has_room
            .then(|| self.request(home, Waiter::Delivery(waiter), |request| kind(request, name)));
        let now_ms = self.now.ms;
        let is_sent = matches!(sent, Some(Ok(_)));
        self.in_flight.requests += u32::from(is_sent);
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        of.is_waiting = is_sent;
        if !is_sent {
            of.due_ms = of.due_ms.min(now_ms + RETRY_MS).max(now_ms + RETRY_MS / 10);
            self.in_flight.set_timer(subscription);
        }
    }

    /// Sends again what was not acknowledged in time.
    pub(super) fn redeliver_due(&mut self) {
        while let Some(subscription) = self.in_flight.poll_due(self.now.ms) {
            let record = self.subscriptions[subscription];
            let ack = redelivers(&self.channels[record.channel].options);
            let user = self.users.name(self.sessions[record.slot()].user);
            let waits = self.sessions[record.slot()].outbox.bytes() > 0;
            let (now_ms, owner) =
                (self.now.ms, CursorOwner { user: user.into(), device: "".into() });
            let Some(of) = self.in_flight.get_mut(subscription) else { continue };
            // Without a time-out any more: nothing comes again.
            of.due_ms = ack.as_ref().map_or(u64::MAX, |ack| now_ms + ack.timeout_ms);
            let (in_flight, is_waiting) = (of.in_flight(), of.is_waiting);
            let owner = CursorOwner { device: of.device.clone(), ..owner };
            if in_flight == 0 {
                of.due_ms = u64::MAX;
                self.resume(subscription);
                continue;
            }
            self.in_flight.set_timer(subscription);
            // What its socket has not taken yet is not put behind itself.
            if ack.is_none() || is_waiting || waits {
                continue;
            }
            let options = Arc::clone(&self.channels[record.channel].options);
            self.request_for(subscription, DeliveryStep::Cursor, |request, channel| {
                let action = CursorAction::Redeliver;
                let asked = CursorRequest { request, channel, options, owner, action };
                HubMessageKind::Cursor(Box::new(asked))
            });
        }
    }

    /// A request for a subscriber is answered.
    pub(super) fn handle_delivery(
        &mut self,
        pending: PendingDelivery,
        result: Result<ReplyContent, Error>,
    ) {
        let PendingDelivery { session, subscription, step, .. } = pending;
        self.in_flight.requests = self.in_flight.requests.saturating_sub(1);
        let is_same = self
            .subscriptions
            .get(subscription)
            .is_some_and(|of| of.channel != crate::slots::NONE && self.id_of(of.slot()) == session);
        if !is_same {
            return;
        }
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        of.is_waiting = false;
        match (step, result) {
            (DeliveryStep::Cursor, Ok(ReplyContent::Cursor(state))) => {
                self.send_again(subscription, &state);
            }
            (DeliveryStep::Feed, Ok(ReplyContent::History(history))) => {
                self.feed(subscription, &history);
            }
            (DeliveryStep::Again, Ok(ReplyContent::History(history))) => {
                self.sent_again(subscription, &history);
            }
            (DeliveryStep::Feed, Err(Error::UnrecoverablePosition(_))) => {
                self.end_behind(subscription);
            }
            (_, _) => {
                let now_ms = self.now.ms;
                let Some(of) = self.in_flight.get_mut(subscription) else { return };
                of.due_ms = of.due_ms.min(now_ms + RETRY_MS);
                self.in_flight.set_timer(subscription);
            }
        }
    }

    /// The cursor of a subscriber was read, because its messages are due.
    fn send_again(&mut self, subscription: u32, state: &CursorState) {
        self.acknowledged(subscription, state.acked.offset);
        let at = self.subscriptions[subscription].channel;
        let Some(ack) = redelivers(&self.channels[at].options) else { return };
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        if of.in_flight() == 0 || of.is_waiting {
            return;
        }
        let (mut since, sent) = (of.acked, of.sent);
        if state.is_exhausted(&ack) {
            let acked = state.since().offset;
            let device = of.device.clone();
            self.report_undeliverable(subscription, device, acked, state.deliveries);
            since = since.max(acked + 1);
        }
        if sent > since {
            self.read_for(subscription, DeliveryStep::Again, since, sent - since);
        }
    }

    /// The first message behind an offset was delivered as often as it may be.
    fn report_undeliverable(
        &mut self,
        subscription: u32,
        device: Box<str>,
        acked: u64,
        deliveries: u8,
    ) {
        let record = self.subscriptions[subscription];
        let user = self.users.name(self.sessions[record.slot()].user).into();
        let channel = Arc::clone(&self.channels[record.channel].name);
        let epoch = self.channels[record.channel].position.epoch;
        let owner = CursorOwner { user, device };
        let position = StreamPosition { offset: acked + 1, epoch };
        self.events.push_back(Event::Undeliverable { channel, owner, position, deliveries });
    }

    fn sent_again(&mut self, subscription: u32, history: &History) {
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        let (acked, sent) = (of.acked, of.sent);
        let again: Vec<_> = history
            .publications
            .iter()
            .filter(|publication| (acked + 1..=sent).contains(&publication.offset()))
            .collect();
        let count = self.put_out(subscription, &again);
        self.stats.redelivered += count;
        let is_whole = again.last().is_none_or(|last| last.offset() >= sent);
        if let Some(of) = self.in_flight.get_mut(subscription)
            && count == 0
            && is_whole
        {
            // Nothing of it is there any more, or its filter leaves it out.
            of.acked = of.sent;
            of.due_ms = u64::MAX;
            self.resume(subscription);
        }
    }

    /// Sends a subscriber what it has not been sent yet.
    fn feed(&mut self, subscription: u32, history: &History) {
        let at = self.subscriptions[subscription].channel;
        let Some(ack) = redelivers(&self.channels[at].options) else { return };
        let now_ms = self.now.ms;
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        let sent = of.sent;
        let next: Vec<_> =
            history.publications.iter().filter(|publication| publication.offset() > sent).collect();
        let Some(last) = next.last().map(|last| last.offset()) else {
            // What came after it is gone, or is not there yet.
            if history.position.offset > sent {
                return self.end_behind(subscription);
            }
            of.due_ms = of.due_ms.min(now_ms + RETRY_MS);
            return self.in_flight.set_timer(subscription);
        };
        if next[0].offset() != sent + 1 {
            return self.end_behind(subscription);
        }
        let count = self.put_out(subscription, &next);
        let Some(of) = self.in_flight.get_mut(subscription) else { return };
        if count == 0 && of.in_flight() == 0 {
            of.acked = last;
        }
        of.sent = last;
        if of.in_flight() > 0 && of.due_ms == u64::MAX {
            of.due_ms = now_ms + ack.timeout_ms;
        }
        self.in_flight.set_timer(subscription);
        self.resume(subscription);
    }

    /// Puts publications into the outbox of a subscriber. Returns how many its filter lets through.
    fn put_out(&mut self, subscription: u32, publications: &[&Publication]) -> u64 {
        let record = self.subscriptions[subscription];
        let (slot, at) = (record.slot(), record.channel);
        let name = Arc::clone(&self.channels[at].name);
        let is_filtered = self.is_filtered(subscription);
        let mut publications = publications.to_vec();
        if self.channels[at].options.inbox {
            inbox::fold(&mut publications, self.now.unix_ms);
        }
        let mut count = 0;
        for publication in publications {
            if is_filtered && let Some(filters) = self.filters.get_mut(&at) {
                filters.evaluate(publication.tags());
                if !filters.admits(subscription) {
                    continue;
                }
            }
            self.enqueue(slot, &Outgoing::Publication { channel: &name, publication });
            count += 1;
            // It may have been disconnected: its outbox was full.
            if self.in_flight.get_mut(subscription).is_none() {
                break;
            }
        }
        count
    }

    /// A subscriber is behind what is stored: it subscribes again, and what is gone is reported then.
    fn end_behind(&mut self, subscription: u32) {
        const CODE: u32 = code::UNSUBSCRIBE_INSUFFICIENT_STATE;
        let record = self.subscriptions[subscription];
        let channel = Arc::clone(&self.channels[record.channel].name);
        self.stats.gaps += 1;
        self.end_subscription(subscription, UnsubscribeCause::InsufficientState, CODE);
        let reason = "insufficient state";
        self.enqueue(
            record.slot(),
            &Outgoing::Unsubscribe { channel: &channel, code: CODE, reason },
        );
    }

    /// Tells the workers with subscribers of a channel at home here that a cursor has moved.
    pub(super) fn tell_acked(
        &mut self,
        channel: &Arc<str>,
        options: &ChannelOptions,
        owner: &CursorOwner,
        offset: u64,
    ) {
        let Some(ack) = redelivers(options) else { return };
        let Some(at) = self.homes.find(&self.names, channel) else { return };
        let device = if ack.by_user { "".into() } else { owner.device.clone() };
        let owner = Arc::new(CursorOwner { user: owner.user.clone(), device });
        for worker in self.homes[at].interest.iter() {
            let (channel, owner) = (Arc::clone(channel), Arc::clone(&owner));
            let kind = HubMessageKind::Acked { channel, owner, offset };
            // One without this message learns it when the messages are due.
            if self.has_room(worker, kind.cost()) {
                self.send_to(worker, kind);
            }
        }
    }
}

/// How messages of a channel come again, if they do.
fn redelivers(options: &ChannelOptions) -> Option<AckOptions> {
    options.ack.clone().filter(|ack| ack.timeout_ms > 0)
}
