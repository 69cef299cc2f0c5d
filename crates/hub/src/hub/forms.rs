//! Publications for subscribers with filters or delta compression.

use std::sync::Arc;

use super::Hub;
use super::fan_out::FanOut;
use crate::channel::{BASED, DELTA, FILTERED, PAUSED};
use crate::encode::{Outgoing, Patch};
use crate::filter_shares::FilterOwner;
use crate::frame_log::FrameLabel;
use crate::publication::{PayloadFormat, Publication};
use crate::tag_filter::TagFilter;

/// The state of a channel with delta compression.
#[derive(Default)]
pub(super) struct DeltaChannel {
    subscribers: u32,
    /// Subscribers without a publication yet that a delta could be based on.
    newcomers: u32,
    /// The last publication of the other subscribers.
    previous: Option<Publication>,
}

impl Hub {
    /// Enables deltas for a subscription, from its second publication on.
    pub(super) fn begin_delta(&mut self, at: u32) {
        let delta = self.deltas.entry(at).or_default();
        delta.subscribers += 1;
        delta.newcomers += 1;
    }

    /// Ends the filter and the deltas of a subscription.
    pub(super) fn end_forms(&mut self, at: u32, subscription: u32, flags: u8) {
        if flags & FILTERED != 0
            && let Some(filters) = self.filters.get_mut(&at)
        {
            if let Some((charged, bytes)) = filters.remove(subscription) {
                self.filter_shares.remove(charged, bytes);
            }
            if filters.is_empty() {
                self.filters.remove(&at);
            }
        }
        if flags & DELTA != 0
            && let Some(delta) = self.deltas.get_mut(&at)
        {
            delta.subscribers -= 1;
            delta.newcomers -= u32::from(flags & BASED == 0);
            if delta.subscribers == 0 {
                self.deltas.remove(&at);
            }
        }
    }

    /// Enables a filter for a subscription.
    pub(super) fn begin_filter(&mut self, at: u32, subscription: u32, filter: TagFilter) {
        let owner = self.sessions[self.subscriptions[subscription].slot()].owner;
        let namespace = self.shares.namespace(&self.channels[at].options.namespace);
        let charged = FilterOwner { owner, namespace };
        let added = self.filters.entry(at).or_default().insert(subscription, filter, charged);
        self.filter_shares.add(charged, added);
    }

    /// Fans out to subscribers with filters; each distinct filter is evaluated once.
    pub(super) fn fan_out_filtered(
        &mut self,
        at: u32,
        plain: &FanOut<'_>,
        publication: &Publication,
    ) {
        let Some(filters) = self.filters.get_mut(&at) else { return };
        filters.evaluate(publication.tags());
        self.fan_out(
            at,
            &FanOut { mask: FILTERED | PAUSED, flags: FILTERED, repeats: true, ..*plain },
        );
    }

    /// Fans out to subscribers with deltas. The delta is computed once; its base was sent to all of them.
    pub(super) fn fan_out_delta(&mut self, at: u32, plain: &FanOut<'_>, publication: &Publication) {
        let Some(delta) = self.deltas.get_mut(&at) else { return };
        let previous = delta.previous.replace(publication.clone());
        let (newcomers, others) = (delta.newcomers, delta.subscribers - delta.newcomers);
        delta.newcomers = 0;
        let incarnation = self.channels[at].incarnation;
        let channel = Arc::clone(&self.channels[at].name);
        // A delta requires the one before it: none of these frames is ever dropped alone.
        let plain = FanOut {
            label: FrameLabel::KEPT,
            mask: FILTERED | DELTA | BASED,
            repeats: true,
            ..*plain
        };
        if others > 0 {
            let mut bytes = std::mem::take(&mut self.patch);
            bytes.clear();
            let mut patch = None;
            if let Some(previous) = previous.filter(|_| publication.delta()) {
                self.encoder.encode_delta(previous.data(), publication.data(), &mut bytes);
                let is_text = (previous.format(), publication.format())
                    == (PayloadFormat::Json, PayloadFormat::Json);
                let is_shorter = !bytes.is_empty() && bytes.len() < publication.data().len();
                patch = is_shorter.then_some(Patch { bytes: &bytes, is_text });
            }
            let outgoing = &Outgoing::Delta { channel: &channel, publication, patch };
            self.fan_out(at, &FanOut { outgoing, flags: DELTA | BASED, ..plain });
            self.patch = bytes;
        }
        let is_alive = |hub: &Hub| {
            hub.channels.get(at).is_some_and(|channel| channel.incarnation == incarnation)
        };
        if newcomers > 0 && is_alive(self) {
            let outgoing = &Outgoing::Delta { channel: &channel, publication, patch: None };
            self.fan_out(at, &FanOut { outgoing, flags: DELTA, ..plain });
            if is_alive(self) {
                for subscriber in &mut self.channels[at].subscribers {
                    if subscriber.flags() & DELTA != 0 {
                        *subscriber = subscriber.with(BASED);
                    }
                }
            }
        }
    }
}
