//! What users have acknowledged: cursors by channel, user and device.
//!
//! The cursors of a user in a channel are one record ([`UserCursors`]). A channel's home worker reads it, merges what is
//! acknowledged, and writes it. In memory it is a record of a table. In an engine it is the newest publication of a
//! stream of its own, beside the channel's, so that an engine needs nothing more for cursors than for channels. Several nodes may
//! write at once, each without the other's news: readers merge the last [`RECORDS_KEPT`] records, and a cursor only moves forward.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::engine::EngineId;
use crate::error::Error;
use crate::message::{SubscribeRequest, WaiterId};
use crate::options::{AckOptions, ChannelOptions};
use crate::position::{Epoch, StreamPosition};

/// Most bytes of the name of a device.
pub const DEVICE_BYTES_MAX: usize = 128;
/// Most bytes of the name of a user with cursors.
pub const CURSOR_USER_BYTES_MAX: usize = 1024;
/// Records that are merged. Of each node at most one write is under way, so that as many nodes may write at once.
pub(crate) const RECORDS_KEPT: u32 = 8;
/// Version of a record's encoding.
const VERSION: u8 = 1;
/// The same with the deliveries of each device: written where some are counted.
const VERSION_WITH_DELIVERIES: u8 = 2;
/// A record before its devices: version, epoch, count.
const HEAD_BYTES: usize = 10;
/// Whose cursor it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CursorOwner {
    /// The user, at most [`CURSOR_USER_BYTES_MAX`] bytes and not empty.
    pub user: Box<str>,
    /// The device, at most [`DEVICE_BYTES_MAX`] bytes; may be empty.
    pub device: Box<str>,
}

impl CursorOwner {
    /// # Errors
    /// A name is empty or too long.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match (self.user.len(), self.device.len()) {
            (0, _) => Err(Error::AckWithoutUser),
            (user, device) if user > CURSOR_USER_BYTES_MAX || device > DEVICE_BYTES_MAX => {
                Err(Error::DeviceName)
            }
            _ => Ok(()),
        }
    }
}

/// Where a cursor stands in its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CursorState {
    /// Everything up to here is acknowledged; offset 0 if nothing is.
    pub acked: StreamPosition,
    /// Offset of the channel's last publication.
    pub top: u64,
    /// The first publication that is still there, if some before it are gone that were not acknowledged.
    pub trimmed_before: Option<u64>,
    /// There was no cursor: the device is new, or its cursor has expired.
    pub is_new: bool,
    /// There was one in an epoch that is gone.
    pub was_reset: bool,
    /// This acknowledgement has moved it.
    pub advanced: bool,
    /// How often the first message behind it was delivered, where that is counted.
    pub deliveries: u8,
}

impl CursorState {
    /// Whether the first message behind it was delivered as often as it may be.
    pub(crate) fn is_exhausted(&self, ack: &AckOptions) -> bool {
        ack.deliveries_max > 0 && self.deliveries > ack.deliveries_max
    }

    /// Publications that are there and not acknowledged.
    pub fn unread(&self) -> u64 {
        let gone = self.trimmed_before.map_or(0, |first| first - 1);
        self.top.saturating_sub(self.acked.offset.max(gone))
    }

    /// From where a subscriber gets publications.
    pub fn since(&self) -> StreamPosition {
        let gone = self.trimmed_before.map_or(0, |first| first - 1);
        StreamPosition { offset: self.acked.offset.max(gone), ..self.acked }
    }
}

/// The stream of a channel, as its cursors see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamEnds {
    /// Its last publication.
    pub(crate) top: StreamPosition,
    /// Offset of the first that is there; after the last if none is.
    pub(crate) first: u64,
}

/// The cursors of one user in one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserCursors {
    /// Of all offsets.
    pub(crate) epoch: Epoch,
    devices: Vec<DeviceCursor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceCursor {
    device: Box<str>,
    offset: u64,
    /// When it last moved, Unix time in seconds.
    moved_s: u32,
    /// How often the first message behind it was delivered, but for the first time to a living connection.
    deliveries: u8,
}

impl UserCursors {
    pub(crate) fn encode(&self) -> Box<[u8]> {
        let names: usize = self.devices.iter().map(|of| of.device.len()).sum();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + names + self.devices.len() * 12);
        let counts = self.devices.iter().any(|of| of.deliveries > 0);
        bytes.push(if counts { VERSION_WITH_DELIVERIES } else { VERSION });
        bytes.extend_from_slice(&self.epoch.to_u64().to_le_bytes());
        bytes.push(self.devices.len() as u8);
        for of in &self.devices {
            bytes.push(of.device.len() as u8);
            bytes.extend_from_slice(of.device.as_bytes());
            let mut offset = of.offset;
            while offset >= 0x80 {
                bytes.push(offset as u8 | 0x80);
                offset >>= 7;
            }
            bytes.push(offset as u8);
            bytes.extend_from_slice(&of.moved_s.to_le_bytes());
            if counts {
                bytes.push(of.deliveries);
            }
        }
        bytes.into_boxed_slice()
    }

    /// `None`: it is no record, or one of a later version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<UserCursors> {
        let (head, mut rest) = bytes.split_at_checked(HEAD_BYTES)?;
        if !(VERSION..=VERSION_WITH_DELIVERIES).contains(&head[0]) {
            return None;
        }
        let epoch = Epoch::from_u64(u64::from_le_bytes(head[1..9].try_into().ok()?));
        let mut devices = Vec::new();
        for _ in 0..head[9] {
            let (&length, after) = rest.split_first()?;
            let (name, after) = after.split_at_checked(usize::from(length))?;
            let device = str::from_utf8(name).ok()?.into();
            let end = after.iter().take(10).position(|byte| byte & 0x80 == 0)? + 1;
            let (digits, after) = after.split_at(end);
            let offset = digits.iter().rev().try_fold(0u64, |offset, digit| {
                offset.checked_mul(0x80)?.checked_add(u64::from(digit & 0x7f))
            })?;
            let (moved, after) = after.split_at_checked(4)?;
            let moved_s = u32::from_le_bytes(moved.try_into().ok()?);
            let (deliveries, after) = match head[0] {
                VERSION => (0, after),
                _ => after.split_first().map(|(&deliveries, after)| (deliveries, after))?,
            };
            devices.push(DeviceCursor { device, offset, moved_s, deliveries });
            rest = after;
        }
        rest.is_empty().then_some(UserCursors { epoch, devices })
    }

    /// Merges a record that was written later, or at the same time elsewhere.
    pub(crate) fn merge(&mut self, later: UserCursors) {
        if self.epoch != later.epoch {
            *self = later;
            return;
        }
        for of in later.devices {
            match self.devices.iter_mut().find(|known| known.device == of.device) {
                Some(known) => {
                    known.deliveries = match known.offset.cmp(&of.offset) {
                        Ordering::Less => of.deliveries,
                        Ordering::Equal => known.deliveries.max(of.deliveries),
                        Ordering::Greater => known.deliveries,
                    };
                    known.offset = known.offset.max(of.offset);
                    known.moved_s = known.moved_s.max(of.moved_s);
                }
                None => self.devices.push(of),
            }
        }
    }

    /// The highest offset.
    pub(crate) fn position(&self) -> Option<StreamPosition> {
        let offset = self.devices.iter().map(|of| of.offset).max()?;
        Some(StreamPosition { offset, epoch: self.epoch })
    }

    /// Removes the cursors of devices that have not moved for as long as `options` say. Returns how many.
    pub(crate) fn expire(&mut self, now_s: u32, options: &AckOptions) -> usize {
        let before = self.devices.len();
        let ttl_s = u32::try_from(options.ttl_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
        self.devices.retain(|of| of.moved_s.saturating_add(ttl_s) > now_s);
        before - self.devices.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Where the cursor of a device stands; `was_reset`: as in [`CursorState`].
    pub(crate) fn state(&self, device: &str, ends: StreamEnds, was_reset: bool) -> CursorState {
        let known = self.devices.iter().find(|of| &*of.device == device);
        let offset = known.map_or(0, |of| of.offset);
        CursorState {
            acked: StreamPosition { offset, epoch: ends.top.epoch },
            top: ends.top.offset,
            trimmed_before: (ends.first > offset + 1).then_some(ends.first),
            is_new: offset == 0,
            was_reset,
            advanced: false,
            deliveries: known.map_or(0, |of| of.deliveries),
        }
    }

    /// Acknowledges everything up to `acked` for a device. Returns whether its cursor has moved.
    ///
    /// # Errors
    /// The position was never sent, or is of an epoch that is gone; the user has cursors of as many devices as it may.
    pub(crate) fn acknowledge(
        &mut self,
        device: &str,
        acked: StreamPosition,
        ends: StreamEnds,
        (now_s, options): (u32, &AckOptions),
    ) -> Result<bool, Error> {
        if !acked.epoch.accepts(ends.top.epoch) {
            return Err(Error::UnrecoverablePosition(ends.top));
        }
        if acked.offset == 0 || acked.offset > ends.top.offset {
            return Err(Error::AckOffset { top: ends.top.offset });
        }
        match self.devices.iter().position(|of| &*of.device == device) {
            Some(at) => {
                let known = &mut self.devices[at];
                let moves = acked.offset > known.offset;
                if moves {
                    known.offset = acked.offset;
                    (known.moved_s, known.deliveries) = (now_s, 0);
                }
                Ok(moves)
            }
            None if self.devices.len() >= usize::from(options.devices_max) => {
                Err(Error::TooManyDevices)
            }
            None => {
                let (device, offset) = (device.into(), acked.offset);
                self.devices.push(DeviceCursor { device, offset, moved_s: now_s, deliveries: 0 });
                Ok(true)
            }
        }
    }

    /// Counts a delivery of the first message behind a device's cursor. `is_again`: it was delivered before, which may not have
    /// been counted. Returns whether anything has changed.
    pub(crate) fn count_delivery(
        &mut self,
        device: &str,
        is_again: bool,
        (now_s, options): (u32, &AckOptions),
    ) -> bool {
        let at = self.devices.iter().position(|of| &*of.device == device);
        let at = match at {
            Some(at) => at,
            // Beyond its bound a device's deliveries are not counted.
            None if self.devices.len() >= usize::from(options.devices_max) => return false,
            None => {
                let device = device.into();
                self.devices.push(DeviceCursor {
                    device,
                    offset: 0,
                    moved_s: now_s,
                    deliveries: 0,
                });
                self.devices.len() - 1
            }
        };
        let deliveries = &mut self.devices[at].deliveries;
        let before = *deliveries;
        let first = if is_again && before == 0 { 2 } else { 1 };
        *deliveries = before.saturating_add(first).min(options.deliveries_max.saturating_add(1));
        *deliveries != before
    }

    /// The offsets hold in this epoch, too.
    pub(crate) fn continue_in(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }
}

/// A request for a cursor: to move it, or to read it.
#[derive(Debug)]
pub(crate) struct CursorRequest {
    pub(crate) request: WaiterId,
    pub(crate) channel: Arc<str>,
    pub(crate) options: Arc<ChannelOptions>,
    pub(crate) owner: CursorOwner,
    pub(crate) action: CursorAction,
}

/// What is done with a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CursorAction {
    Read,
    /// Everything up to here is acknowledged.
    Acknowledge(StreamPosition),
    /// It is read to send again what was not acknowledged.
    Redeliver,
}

/// What waits for a user's record.
pub(crate) enum CursorJob {
    Request(Box<CursorRequest>),
    /// Is answered from the cursor on.
    Subscribe(Box<SubscribeRequest>),
}

impl CursorJob {
    pub(crate) fn channel(&self) -> &Arc<str> {
        match self {
            CursorJob::Request(asked) => &asked.channel,
            CursorJob::Subscribe(asked) => &asked.channel,
        }
    }

    pub(crate) fn options(&self) -> &Arc<ChannelOptions> {
        match self {
            CursorJob::Request(asked) => &asked.options,
            CursorJob::Subscribe(asked) => &asked.options,
        }
    }

    pub(crate) fn request(&self) -> WaiterId {
        match self {
            CursorJob::Request(asked) => asked.request,
            CursorJob::Subscribe(asked) => asked.request,
        }
    }

    /// The device whose cursor it is; the user's, where one stands for all.
    pub(crate) fn device(&self) -> &str {
        let owner = match self {
            CursorJob::Request(asked) => Some(&asked.owner),
            CursorJob::Subscribe(asked) => asked.cursor.as_deref(),
        };
        let by_user = self.options().ack.as_ref().is_none_or(|ack| ack.by_user);
        owner.filter(|_| !by_user).map_or("", |owner| &owner.device)
    }
}

/// The work on one user's record in an engine: one round at a time reads it, serves whoever has asked by then, and writes it.
pub(crate) struct CursorRound {
    pub(crate) engine: EngineId,
    pub(crate) channel: Arc<str>,
    pub(crate) options: Arc<ChannelOptions>,
    pub(crate) step: CursorStep,
    pub(crate) cursors: UserCursors,
    pub(crate) was_reset: bool,
    pub(crate) ends: Option<StreamEnds>,
    /// Whom this round serves.
    pub(crate) jobs: Vec<(u8, CursorJob)>,
    /// Whom the next one serves.
    pub(crate) next: VecDeque<(u8, CursorJob)>,
    /// Answers that wait for the write.
    pub(crate) answers: Vec<(u8, Box<CursorRequest>, CursorState)>,
}

/// What a round waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CursorStep {
    /// The record.
    Record,
    /// The ends of the channel's stream.
    Ends,
    /// Whether the record's epoch lives on in the stream's.
    Lineage,
    /// The record is being written.
    Write,
}

/// The rounds of a home worker, by the name of the record.
#[derive(Default)]
pub(crate) struct CursorRounds {
    pub(crate) running: HashMap<Arc<str>, Box<CursorRound>, RandomState>,
    /// Whoever is served or waits, in all of them.
    pub(crate) jobs: usize,
}

impl CursorRounds {
    /// Drops the subscriptions to a channel of a worker without subscribers, or of a session that has left.
    pub(crate) fn forget(&mut self, drops: impl Fn(&SubscribeRequest, u8) -> bool) {
        let mut dropped = 0;
        for round in self.running.values_mut() {
            let mut stays = |(from, job): &(u8, CursorJob)| match job {
                CursorJob::Subscribe(asked) if drops(asked, *from) => {
                    dropped += 1;
                    false
                }
                _ => true,
            };
            round.jobs.retain(&mut stays);
            round.next.retain(stays);
        }
        self.jobs -= dropped;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const EPOCH: Epoch = Epoch::from_u64(7);

    pub(crate) fn options() -> AckOptions {
        AckOptions {
            by_user: false,
            ttl_ms: 60_000,
            devices_max: 3,
            bytes_max: None,
            timeout_ms: 0,
            window: 0,
            deliveries_max: 0,
        }
    }

    fn ends(top: u64, first: u64) -> StreamEnds {
        StreamEnds { top: StreamPosition { offset: top, epoch: EPOCH }, first }
    }

    fn at(offset: u64) -> StreamPosition {
        StreamPosition { offset, epoch: EPOCH }
    }

    fn empty() -> UserCursors {
        UserCursors { epoch: EPOCH, ..UserCursors::default() }
    }

    /// The cursor of a device at an offset.
    pub(crate) fn cursors_at(offset: u64) -> UserCursors {
        let mut cursors = empty();
        cursors.acknowledge("", at(offset), ends(offset, 1), (100, &options())).expect("room");
        cursors
    }

    #[test]
    fn acknowledgement_that_cannot_be_is_refused_and_moves_nothing() {
        let mut cursors = empty();
        let options = options();
        let mut ack = |device: &str, acked, top| {
            cursors.acknowledge(device, acked, ends(top, 1), (100, &options))
        };
        assert_eq!(ack("a", at(5), 10), Ok(true));
        assert_eq!(ack("a", at(4), 10), Ok(false), "it is cumulative");
        assert_eq!(ack("a", at(11), 10), Err(Error::AckOffset { top: 10 }));
        assert_eq!(ack("a", at(0), 10), Err(Error::AckOffset { top: 10 }));
        let gone = StreamPosition { offset: 6, epoch: Epoch::from_u64(6) };
        assert_eq!(ack("a", gone, 10), Err(Error::UnrecoverablePosition(at(10))));
        assert_eq!(ack("a", StreamPosition { offset: 6, ..Default::default() }, 10), Ok(true));
        assert_eq!(ack("b", at(1), 10), Ok(true));
        assert_eq!(ack("c", at(1), 10), Ok(true));
        assert_eq!(ack("d", at(1), 10), Err(Error::TooManyDevices));
        let state = cursors.state("a", ends(10, 1), false);
        assert_eq!((state.acked, state.unread(), state.trimmed_before), (at(6), 4, None));
        let state = cursors.state("d", ends(10, 1), false);
        assert_eq!((state.acked, state.unread(), state.is_new), (at(0), 10, true));
    }

    #[test]
    fn cursor_behind_the_first_publication_says_what_is_gone() {
        let mut cursors = empty();
        cursors.acknowledge("a", at(5), ends(10, 1), (100, &options())).expect("room");
        let state = cursors.state("a", ends(20, 8), false);
        assert_eq!((state.trimmed_before, state.unread(), state.since()), (Some(8), 13, at(7)));
        let state = cursors.state("a", ends(20, 6), false);
        assert_eq!((state.trimmed_before, state.unread(), state.since()), (None, 15, at(5)));
        let state = cursors.state("a", ends(20, 21), false);
        assert_eq!((state.trimmed_before, state.unread(), state.since()), (Some(21), 0, at(20)));
    }

    #[test]
    fn cursors_of_dead_devices_expire() {
        let mut cursors = empty();
        cursors.acknowledge("old", at(5), ends(10, 1), (100, &options())).expect("room");
        cursors.acknowledge("new", at(5), ends(10, 1), (130, &options())).expect("room");
        assert_eq!(cursors.expire(159, &options()), 0);
        assert_eq!(cursors.expire(160, &options()), 1);
        assert!(cursors.state("old", ends(10, 1), false).is_new);
        assert!(!cursors.state("new", ends(10, 1), false).is_new);
    }

    #[test]
    fn idle_cursor_costs_at_most_twelve_bytes_a_device_beyond_its_name_and_its_user() {
        let mut cursors = empty();
        let options = AckOptions { devices_max: u8::MAX, ..options() };
        let before = cursors.encode().len();
        for device in 0..100 {
            let name = format!("device-{device:04}");
            let acked = at(1 << 34);
            cursors.acknowledge(&name, acked, ends(1 << 34, 1), (0, &options)).expect("room");
        }
        let each = (cursors.encode().len() - before) as f64 / 100.0 - "device-0000".len() as f64;
        assert!(each <= 12.0, "{each} bytes a device");
    }

    proptest! {
        #[test]
        fn record_round_trips_and_no_bytes_break_it(
            devices in proptest::collection::vec(
                ("[a-z]{0,20}", any::<u64>(), any::<u32>(), 0..2u8), 0..20
            ),
            epoch: u64,
            noise in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let devices = devices.into_iter().map(|(name, offset, moved_s, deliveries)| {
                DeviceCursor { device: name.into(), offset, moved_s, deliveries }
            });
            let cursors = UserCursors { epoch: Epoch::from_u64(epoch), devices: devices.collect() };
            let encoded = cursors.encode();
            prop_assert_eq!(UserCursors::decode(&encoded), Some(cursors));
            for cut in 0..encoded.len() {
                prop_assert_eq!(UserCursors::decode(&encoded[..cut]), None);
            }
            let _ = UserCursors::decode(&noise);
        }

        /// Nodes that write at once, each with what it had read: no acknowledgement is lost, and none moves back.
        #[test]
        fn records_of_nodes_that_write_at_once_merge_to_the_highest_of_each_device(
            // The node and what it does: reads and prepares an acknowledgement, or writes what it has prepared.
            steps in proptest::collection::vec((0..4usize, 0..3usize, 1..100u64, any::<bool>()), 1..200),
        ) {
            let (mut written, mut model) = (Vec::<Box<[u8]>>::new(), BTreeMap::new());
            let mut prepared: [Option<(UserCursors, usize, u64)>; 4] = Default::default();
            let read = |written: &[Box<[u8]>]| {
                let mut all = empty();
                let first = written.len().saturating_sub(RECORDS_KEPT as usize);
                for record in &written[first..] {
                    all.merge(UserCursors::decode(record).expect("a record"));
                }
                all
            };
            for (node, device, offset, writes) in steps {
                if let Some((record, device, offset)) = prepared[node].take_if(|_| writes) {
                    written.push(record.encode());
                    let known: &mut u64 = model.entry(device).or_default();
                    *known = (*known).max(offset);
                } else if prepared[node].is_none() {
                    let mut record = read(&written);
                    let name = format!("device-{device}");
                    let (top, now) = (ends(100, 1), (0, &options()));
                    record.acknowledge(&name, at(offset), top, now).expect("room");
                    prepared[node] = Some((record, device, offset));
                }
                let all = read(&written);
                for (device, offset) in &model {
                    let state = all.state(&format!("device-{device}"), ends(100, 1), false);
                    prop_assert_eq!(state.acked.offset, *offset);
                }
            }
        }
    }
}
