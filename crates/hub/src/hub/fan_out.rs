//! From a channel's home worker to its subscribers here.
//!
//! The loop in [`Hub::fan_out`] is what a publication costs: per subscriber one entry of eight
//! bytes, read in sequence, and one session record of one cache line.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::Hub;
use crate::channel::{
    Channel, DELTA, EXCEPTED, FILTERED, JOIN_LEAVE, PAUSED, SKIPS_OWN_JOIN, SubscriptionState,
};
use crate::encode::{ENCODINGS_MAX, EncodingId, Outgoing};
use crate::frame_log::{FrameKind, FrameLabel, Range};
use crate::message::HubMessageKind;
use crate::options::OverflowPolicy;
use crate::outbox::Appended;
use crate::position::Epoch;
use crate::publication::{ClientInfo, Publication};
use crate::session::{BLOCKED, BULK, DIRTY, HELD};
use crate::session_id::SessionId;
use crate::tenant::MARK;
use crate::trace::TracedDelivery;

/// The most traced publications that are kept until they are taken; further ones are not traced here.
const TRACED_MAX: usize = 1_024;
/// Ranges after which the bytes of a blocked session are copied together, so that its memory in the frame log
/// is proportional to its bytes.
const RANGES_MAX: usize = 32;

/// A push to many subscribers.
#[derive(Clone, Copy)]
pub(super) struct FanOut<'a> {
    pub(super) outgoing: &'a Outgoing<'a>,
    pub(super) label: FrameLabel<'a>,
    pub(super) estimate_bytes: usize,
    /// Only to subscribers that have these of the flags in `mask` and no others.
    pub(super) flags: u8,
    pub(super) mask: u8,
    /// The broadcast has counted the publication already, in another encoding.
    pub(super) repeats: bool,
    /// The session flag of the broadcast that flushes it over several turns.
    pub(super) paced: Option<u16>,
}

impl<'a> FanOut<'a> {
    fn unpaced(outgoing: &'a Outgoing<'a>, estimate_bytes: usize, flags: u8) -> Self {
        let (label, mask) = (FrameLabel::KEPT, flags | EXCEPTED);
        Self { outgoing, label, estimate_bytes, flags, mask, repeats: false, paced: None }
    }
}

impl Hub {
    pub(super) fn deliver_publication(
        &mut self,
        from: u8,
        name: &Arc<str>,
        epoch: Epoch,
        publication: &Publication,
        except: Option<SessionId>,
    ) {
        let Some(at) = self.channels.find(&self.names, name) else {
            // Normal while an unsubscription is in flight. Repeated because a predecessor of this hub may
            // have subscribed.
            let channel = Arc::clone(name);
            self.send_to(from, HubMessageKind::Unsubscribe { channel, member: None, last: true });
            return;
        };
        let channel = &mut self.channels[at];
        if !channel.joined {
            return;
        }
        if publication.offset() > 0 {
            let next = channel.position.offset + 1;
            // A stream that began after this worker joined begins at 1.
            let same = epoch == channel.position.epoch || channel.position.epoch.is_none();
            if same && publication.offset() < next {
                return;
            }
            if !same || publication.offset() > next {
                self.gap(at);
                return;
            }
            channel.position.offset = publication.offset();
            channel.position.epoch = epoch;
        }
        let paced = self.broadcasts.flag_for(
            &channel.options.namespace,
            channel.subscribers.len(),
            publication.data().len(),
        );
        let mut label = label(channel.options.overflow, name, publication);
        if paced.is_some() {
            // Needed to cancel the broadcast.
            label.channel = Some(name);
        }
        let estimate_bytes = publication.data().len() + name.len() + 256;
        let outgoing = &Outgoing::Publication { channel: name, publication };
        let mask = FILTERED | DELTA | EXCEPTED | PAUSED;
        let plain =
            FanOut { outgoing, label, estimate_bytes, flags: 0, mask, repeats: false, paced };
        let incarnation = self.channels[at].incarnation;
        if name.starts_with(MARK) {
            let subscribers = self.channels[at].subscribers.len();
            self.count_traffic(name, |traffic| {
                traffic.deliveries += subscribers as u64;
                traffic.delivered_bytes += (subscribers * publication.data().len()) as u64;
            });
        }
        let excepted = except.and_then(|session| self.except(at, session));
        self.fan_out(at, &plain);
        self.end_exception(excepted);
        if self.filters.is_empty() && self.deltas.is_empty() && self.in_flight.is_empty() {
            return;
        }
        // Subscribers beyond their limits may have been disconnected, and the channel removed with the last
        // of them.
        let is_alive = |hub: &Self| {
            hub.channels.get(at).is_some_and(|channel| channel.incarnation == incarnation)
        };
        if is_alive(self) {
            self.fan_out_filtered(at, &plain, publication);
        }
        if is_alive(self) {
            self.fan_out_delta(at, &plain, publication);
        }
        if is_alive(self) && publication.offset() > 0 {
            self.sent_to_subscribers(at, publication.offset());
        }
    }

    pub(super) fn deliver_join(&mut self, name: &Arc<str>, info: &ClientInfo, of_user: bool) {
        let join = &Outgoing::Join { channel: name, info, of_user };
        let own = self.channels.find(&self.names, name).and_then(|at| {
            let own = self.subscription_to(self.slot_of(info.client)?, at)?;
            self.subscriptions[own].is(SKIPS_OWN_JOIN).then(|| self.except(at, info.client))?
        });
        self.fan_out_to_watchers(name, join);
        self.end_exception(own);
    }

    pub(super) fn deliver_leave(&mut self, name: &Arc<str>, info: &ClientInfo, of_user: bool) {
        self.fan_out_to_watchers(name, &Outgoing::Leave { channel: name, info, of_user });
    }

    /// Excludes a session's subscription from the fan-out until [`Hub::end_exception`].
    fn except(&mut self, at: u32, session: SessionId) -> Option<u32> {
        let subscription = self.subscription_to(self.slot_of(session)?, at)?;
        self.set_excepted(subscription, true);
        Some(subscription)
    }

    /// The subscription may have ended meanwhile.
    fn end_exception(&mut self, subscription: Option<u32>) {
        if let Some(subscription) = subscription {
            self.set_excepted(subscription, false);
        }
    }

    fn set_excepted(&mut self, subscription: u32, is_excepted: bool) {
        if let Some(of) = self.subscriptions.get(subscription)
            && let SubscriptionState::Established { index } = of.state.get()
            && self.channels.get(of.channel).is_some()
            && let Some(subscriber) = self.channels[of.channel].subscribers.get_mut(index as usize)
        {
            *subscriber = match is_excepted {
                true => subscriber.with(EXCEPTED),
                false => subscriber.without(EXCEPTED),
            };
        }
    }

    /// The home worker has lost messages.
    pub(super) fn deliver_gap(&mut self, name: &Arc<str>) {
        if let Some(at) = self.channels.find(&self.names, name)
            && self.channels[at].joined
        {
            self.gap(at);
        }
    }

    pub(super) fn fan_out_unsubscribe(&mut self, at: u32, code: u32, reason: &str) {
        let name = Arc::clone(&self.channels[at].name);
        let outgoing = &Outgoing::Unsubscribe { channel: &name, code, reason };
        self.fan_out(at, &FanOut::unpaced(outgoing, 256 + name.len(), 0));
    }

    fn fan_out_to_watchers(&mut self, name: &Arc<str>, outgoing: &Outgoing<'_>) {
        if let Some(at) = self.channels.find(&self.names, name)
            && self.channels[at].joined
        {
            self.fan_out(at, &FanOut::unpaced(outgoing, 512, JOIN_LEAVE));
        }
    }

    /// Puts a frame into the outbox of every subscriber with its flags. The channel may be removed by this: a
    /// subscriber whose outbox is full may be disconnected.
    pub(super) fn fan_out(&mut self, at: u32, fan_out: &FanOut<'_>) {
        let FanOut { outgoing, label, estimate_bytes, flags, mask, repeats, paced } = *fan_out;
        let Self {
            channels, sessions, encoder, log, dirty, flush_wanted, broadcasts, ages, ..
        } = self;
        let filters = if flags & FILTERED != 0 { self.filters.get(&at) } else { None };
        let mut broadcast = paced.and_then(|flag| {
            let Channel { name, options, .. } = &channels[at];
            broadcasts.join(name, &options.namespace, flag, self.now.unix_ms, !repeats)
        });
        // The queue for a session with an empty outbox, and the flag it gets there.
        let (queue, mark, paused) = match &mut broadcast {
            Some(broadcast) => (&mut broadcast.queue, broadcast.flag, broadcast.status.paused),
            None => (&mut *dirty, DIRTY, false),
        };
        // Per encoding: the frame, if the encoding has one, and how many ranges begin with it.
        let mut frames = [Range::NONE; ENCODINGS_MAX];
        let mut created = [0u64; ENCODINGS_MAX];
        let mut encoded = 0u32;
        let mut bytes = 0u64;
        let mut delivered = 0u64;
        let mut is_behind = false;
        let (mut urgent, mut over_limit) = (Vec::new(), Vec::new());
        for &subscriber in &channels[at].subscribers {
            if subscriber.flags() & mask != flags {
                continue;
            }
            if let Some(filters) = filters
                && !filters.admits(subscriber.subscription())
            {
                continue;
            }
            let encoding = subscriber.encoding();
            if encoded & 1 << encoding == 0 {
                encoded |= 1 << encoding;
                let frame = log.append(encoding, estimate_bytes, label, |out| {
                    encoder.encode(EncodingId(encoding as u8), outgoing, out);
                });
                if let Some(frame) = frame {
                    frames[encoding] = frame;
                    // Retained until the loop has counted its ranges.
                    log.retain(frame.chunk, 1);
                }
            }
            let frame = frames[encoding];
            if frame.is_none() {
                continue;
            }
            let slot = subscriber.slot();
            let session = &mut sessions[slot];
            let appended = session.outbox.append(frame);
            created[encoding] += u64::from(appended != Appended::Joined);
            delivered += 1;
            bytes += u64::from(frame.len());
            if session.flags & (DIRTY | BLOCKED | HELD | mark) == 0 && !paused {
                session.flags |= mark;
                queue.push_back(slot);
            }
            let waiting = session.outbox.bytes();
            if waiting > session.outbox_bytes_max / 2 {
                if mark == BULK && waiting <= session.outbox_bytes_max {
                    // Publishers wait for the turns that this requires.
                    is_behind |= session.flags & (BLOCKED | HELD) == 0;
                } else if session.flags & (BLOCKED | HELD) == 0 && !paused {
                    // Flush before it accepts more, and before sessions with less output.
                    *flush_wanted = true;
                    if !session.is(DIRTY) {
                        session.flags |= DIRTY;
                        urgent.push(slot);
                    }
                }
                if waiting > session.outbox_bytes_max {
                    over_limit.push(slot);
                    continue;
                }
            }
            if appended == Appended::Behind && session.flags & (BLOCKED | HELD) != 0 {
                over_limit.push(slot);
            }
        }
        dirty.extend(urgent);
        let is_paced = broadcast.is_some();
        if let Some(broadcast) = broadcast {
            broadcast.is_behind |= is_behind;
        }
        if let Outgoing::Publication { publication, .. } = outgoing {
            if let Some(cause) = publication.trace()
                && self.traced.len() < TRACED_MAX
            {
                let channel = Arc::clone(&channels[at].name);
                let (time_ms, deliveries) = (publication.time_ms(), delivered);
                self.traced.push(TracedDelivery { cause, channel, time_ms, deliveries });
            }
            // A broadcast counts its writes when they are made.
            if !is_paced {
                ages.add(publication.time_ms(), delivered);
            }
            let namespace = self.shares.namespace(&channels[at].options.namespace);
            self.shares.share_mut(namespace).deliveries += delivered;
        }
        for (frame, created) in frames.iter().zip(created) {
            if !frame.is_none() {
                log.retain(frame.chunk, created);
                log.release(frame.chunk, 1);
            }
        }
        self.pending_bytes += bytes;
        self.stats.deliveries += delivered;
        for slot in over_limit {
            self.enforce_limit(slot, RANGES_MAX, label.kind.is_droppable());
        }
        self.enforce_budget();
    }

    /// Encodes a push into one session's outbox; it is never dropped. Returns `false` if the session's
    /// encoding does not have this push.
    pub(super) fn enqueue(&mut self, slot: u32, outgoing: &Outgoing<'_>) -> bool {
        let encoding = EncodingId(self.sessions[slot].encoding);
        let estimate = match outgoing {
            Outgoing::Publication { publication, .. } => publication.data().len() + 512,
            Outgoing::Message { data, .. } => data.len() + 256,
            _ => 512,
        };
        let Self { log, encoder, .. } = self;
        let frame = log.append(crate::frame_log::SESSION_TAIL, estimate, FrameLabel::KEPT, |out| {
            encoder.encode(encoding, outgoing, out);
        });
        if let Some(frame) = frame {
            self.stats.deliveries += 1;
            self.enqueue_frame(slot, frame);
        }
        frame.is_some()
    }

    pub(super) fn enqueue_frame(&mut self, slot: u32, frame: Range) {
        let session = &mut self.sessions[slot];
        let appended = session.outbox.append(frame);
        if appended != Appended::Joined {
            self.log.retain(frame.chunk, 1);
        }
        self.pending_bytes += u64::from(frame.len());
        self.mark_dirty(slot);
        if self.sessions[slot].is_live() {
            self.enforce_limit(slot, RANGES_MAX, false);
            self.enforce_budget();
        }
    }
}

fn label<'a>(
    policy: OverflowPolicy,
    name: &'a Arc<str>,
    publication: &Publication,
) -> FrameLabel<'a> {
    let kind = match policy {
        OverflowPolicy::Disconnect => return FrameLabel::KEPT,
        OverflowPolicy::DropOldest => FrameKind::DropOldest,
        OverflowPolicy::KeepLatest => FrameKind::KeepLatest,
    };
    let of = (publication.channel(), publication.key());
    let is_one = of == (None, None);
    let key = if is_one { 0 } else { FixedState::with_seed(0).hash_one(of) as u32 | 1 };
    FrameLabel { kind, key, channel: Some(name) }
}
