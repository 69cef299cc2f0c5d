//! Encoded pushes, kept until the last session has sent them.
//!
//! A frame is written once; outboxes refer to it by ranges. Frames of one encoding follow each
//! other in a chunk, so that a burst a session receives whole is one range: one slice, one `send`.

use std::sync::Arc;

use crate::encode::ENCODINGS_MAX;

/// Bytes after which a tail begins another chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// The tail for frames of one session, apart from the encodings' tails so that they do not separate
/// the frames of a burst.
pub(crate) const SESSION_TAIL: usize = ENCODINGS_MAX;

const TAILS: usize = ENCODINGS_MAX + 1;
const NO_CHUNK: u32 = u32::MAX;
/// Empty chunks whose buffer is kept for the next one.
const SPARE_MAX: usize = 16;

/// Consecutive frames of one chunk; the first may be partly sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) chunk: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Range {
    pub(crate) const NONE: Self = Self { chunk: NO_CHUNK, start: 0, end: 0 };

    pub(crate) fn is_none(self) -> bool {
        self.chunk == NO_CHUNK
    }

    pub(crate) fn len(self) -> u32 {
        self.end - self.start
    }
}

/// Properties of a frame for overflow policies.
#[derive(Clone, Copy)]
pub(crate) struct FrameLabel<'a> {
    pub(crate) kind: FrameKind,
    /// Hash of the publication's key; of a gap marker, the number of publications it counts.
    pub(crate) key: u32,
    /// The channel of the publication or gap marker. Outlives the channel's record: frames are
    /// sent, or counted as missing, after the subscription has ended.
    pub(crate) channel: Option<&'a Arc<str>>,
}

impl FrameLabel<'_> {
    pub(crate) const KEPT: Self = Self { kind: FrameKind::Kept, key: 0, channel: None };
    const PARTIAL: Self = Self { kind: FrameKind::Partial, ..Self::KEPT };
}

/// A frame, or the unsent rest of one.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) range: Range,
    pub(crate) label: FrameLabel<'a>,
    /// Nothing of it has been sent.
    pub(crate) whole: bool,
}

impl FrameKind {
    /// It keeps its place.
    pub(crate) fn is_fixed(self) -> bool {
        matches!(self, Self::Kept | Self::Partial)
    }

    /// May be dropped to make room.
    pub(crate) fn is_droppable(self) -> bool {
        matches!(self, Self::DropOldest | Self::KeepLatest)
    }
}

/// When a frame may be dropped to make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    /// Never: a reply, or a push that changes the client's state.
    Kept,
    /// Never: the rest of a partly sent frame.
    Partial,
    /// A gap marker in place of dropped publications.
    GapMarker,
    /// When it is the oldest.
    DropOldest,
    /// When a later one has its key, or it is the oldest.
    KeepLatest,
}

#[derive(Clone, Copy)]
struct FrameRecord {
    end: u32,
    /// Index into the chunk's channels, or [`NO_CHANNEL`].
    channel: u32,
    key: u32,
    kind: FrameKind,
}

const NO_CHANNEL: u32 = u32::MAX;

#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// In order; a frame begins where the one before it ends.
    records: Vec<FrameRecord>,
    /// Names that frames refer to, each once per run of frames.
    channels: Vec<Arc<str>>,
    /// Ranges that refer to it.
    refs: u64,
    /// It is the tail of an encoding.
    current: bool,
}

impl Chunk {
    fn memory(&self) -> usize {
        self.bytes.capacity()
            + self.records.capacity() * size_of::<FrameRecord>()
            + self.channels.capacity() * size_of::<Arc<str>>()
    }

    /// Records the end of a frame.
    fn end_frame(&mut self, label: FrameLabel<'_>) {
        let channel = label.channel.map_or(NO_CHANNEL, |channel| {
            if self.channels.last().is_none_or(|last| !Arc::ptr_eq(last, channel)) {
                self.channels.push(Arc::clone(channel));
            }
            self.channels.len() as u32 - 1
        });
        let FrameLabel { kind, key, .. } = label;
        self.records.push(FrameRecord { end: self.bytes.len() as u32, channel, key, kind });
    }

    fn label(&self, record: &FrameRecord) -> FrameLabel<'_> {
        let channel = self.channels.get(record.channel as usize);
        FrameLabel { kind: record.kind, key: record.key, channel }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
        self.bytes.shrink_to(CHUNK_BYTES);
        self.records.shrink_to(CHUNK_BYTES / size_of::<FrameRecord>());
        self.channels.clear();
        self.channels.shrink_to(CHUNK_BYTES / size_of::<FrameRecord>());
    }
}

pub(crate) struct FrameLog {
    chunks: Vec<Chunk>,
    /// Unused chunks. The last [`SPARE_MAX`] of them still have a buffer.
    free: Vec<u32>,
    tails: [u32; TAILS],
    memory: usize,
    ranges: u64,
}

impl FrameLog {
    pub(crate) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
            tails: [NO_CHUNK; TAILS],
            memory: 0,
            ranges: 0,
        }
    }

    /// Memory in use for frames and for the ranges that point to them.
    pub(crate) fn memory(&self) -> usize {
        self.memory + self.ranges as usize * size_of::<Range>()
    }

    /// Whether waiting frames take more than `bytes_max`. The free space of current chunks does not
    /// count: dropping frames would not free it.
    pub(crate) fn is_over(&self, bytes_max: usize) -> bool {
        if self.memory() <= bytes_max {
            return false;
        }
        let current = self.tails.iter().filter(|&&tail| tail != NO_CHUNK);
        let at_hand = current.map(|&tail| {
            let chunk = &self.chunks[tail as usize];
            match chunk.refs {
                0 => chunk.memory(),
                _ => chunk.bytes.capacity() - chunk.bytes.len(),
            }
        });
        self.memory() - at_hand.sum::<usize>() > bytes_max
    }

    /// Writes a frame at the end of `tail`. `estimate` is about how long it will be. `None` when
    /// `write` wrote nothing. Valid until the next `append` to the tail unless retained.
    pub(crate) fn append(
        &mut self,
        tail: usize,
        estimate: usize,
        label: FrameLabel<'_>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Range> {
        let index = self.chunk_for(tail, estimate);
        let chunk = &mut self.chunks[index as usize];
        let before = chunk.memory();
        let start = chunk.bytes.len();
        write(&mut chunk.bytes);
        let end = chunk.bytes.len();
        assert!(end >= start, "an encoder only appends");
        if end > start {
            chunk.end_frame(label);
        }
        self.memory += chunk.memory();
        self.memory -= before;
        (end > start).then_some(Range { chunk: index, start: start as u32, end: end as u32 })
    }

    /// Copies one session's ranges into a chunk of their own. Takes one reference.
    pub(crate) fn relocate(&mut self, ranges: &[Range]) -> Range {
        let length: usize = ranges.iter().map(|range| range.len() as usize).sum();
        let mut chunk = Chunk { bytes: Vec::with_capacity(length), refs: 1, ..Chunk::default() };
        for range in ranges {
            for frame in self.frames(*range) {
                chunk.bytes.extend_from_slice(self.bytes(frame.range));
                chunk.end_frame(if frame.whole { frame.label } else { FrameLabel::PARTIAL });
            }
        }
        self.ranges += 1;
        self.memory += chunk.memory();
        let index = self.vacant();
        self.chunks[index as usize] = chunk;
        Range { chunk: index, start: 0, end: length as u32 }
    }

    pub(crate) fn bytes(&self, range: Range) -> &[u8] {
        &self.chunks[range.chunk as usize].bytes[range.start as usize..range.end as usize]
    }

    /// The frames of a range, oldest first. Only the first can be partly sent.
    pub(crate) fn frames(&self, range: Range) -> impl Iterator<Item = Frame<'_>> {
        let chunk = &self.chunks[range.chunk as usize];
        let records = &chunk.records;
        let first = records.partition_point(|record| record.end <= range.start);
        let last = records.partition_point(|record| record.end <= range.end);
        (first..last).map(move |at| {
            let begin = if at == 0 { 0 } else { records[at - 1].end };
            let start = begin.max(range.start);
            let range = Range { chunk: range.chunk, start, end: records[at].end };
            let label = chunk.label(&records[at]);
            Frame { range, label, whole: start == begin && label.kind != FrameKind::Partial }
        })
    }

    /// Adds `count` references to `chunk`.
    pub(crate) fn retain(&mut self, chunk: u32, count: u64) {
        self.chunks[chunk as usize].refs += count;
        self.ranges += count;
    }

    /// Drops `count` references. A chunk without references is reused.
    pub(crate) fn release(&mut self, chunk: u32, count: u64) {
        let record = &mut self.chunks[chunk as usize];
        assert!(record.refs >= count, "every range was retained");
        record.refs -= count;
        self.ranges -= count;
        if record.refs == 0 && !record.current {
            self.recycle(chunk);
        }
    }

    fn chunk_for(&mut self, tail: usize, estimate: usize) -> u32 {
        let index = self.tails[tail];
        if index != NO_CHUNK {
            let chunk = &mut self.chunks[index as usize];
            if chunk.refs == 0 {
                let before = chunk.memory();
                chunk.clear();
                self.memory -= before - chunk.memory();
                return index;
            }
            if chunk.bytes.len() + estimate <= CHUNK_BYTES {
                return index;
            }
            chunk.current = false;
        }
        let index = self.vacant();
        let chunk = &mut self.chunks[index as usize];
        chunk.current = true;
        chunk.bytes.reserve(estimate.max(CHUNK_BYTES));
        self.memory += chunk.memory();
        self.tails[tail] = index;
        index
    }

    fn vacant(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::default());
            self.chunks.len() as u32 - 1
        })
    }

    fn recycle(&mut self, index: u32) {
        let chunk = &mut self.chunks[index as usize];
        self.memory -= chunk.memory();
        chunk.clear();
        if chunk.bytes.capacity() < CHUNK_BYTES {
            // A copied chunk's odd size is of no use as a tail.
            *chunk = Chunk::default();
        }
        self.free.push(index);
        if let Some(surplus) = self.free.len().checked_sub(SPARE_MAX + 1) {
            let surplus = self.free[surplus];
            self.chunks[surplus as usize] = Chunk::default();
        }
    }

    /// All references, for tests that look for leaks.
    #[cfg(test)]
    pub(crate) fn ranges(&self) -> u64 {
        self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(log: &mut FrameLog, tail: usize, text: &[u8]) -> Range {
        log.append(tail, text.len(), FrameLabel::KEPT, |out| out.extend_from_slice(text))
            .expect("something was written")
    }

    #[test]
    fn frames_of_a_session_queue_lie_side_by_side() {
        let mut log = FrameLog::new();
        let one = put(&mut log, 0, b"one");
        log.retain(one.chunk, 1);
        put(&mut log, 1, b"another encoding");
        let two = put(&mut log, 0, b"two");
        assert_eq!((one.chunk, one.end), (two.chunk, two.start));
        let both = Range { end: two.end, ..one };
        assert_eq!(log.bytes(both), b"onetwo");
        let cut = Range { start: 1, ..both };
        let frames: Vec<_> =
            log.frames(cut).map(|frame| (frame.range.start, frame.whole)).collect();
        assert_eq!(frames, [(1, false), (3, true)]);
    }

    #[test]
    fn memory_comes_back_when_the_last_range_goes() {
        let mut log = FrameLog::new();
        let first = put(&mut log, 0, &[7; 1000]);
        log.retain(first.chunk, 1);
        let idle = log.memory();
        let mut held = vec![];
        for _ in 0..1000 {
            let range = put(&mut log, 0, &[8; 1000]);
            log.retain(range.chunk, 1);
            held.push(range);
        }
        assert!(log.memory() > 1_000_000);
        held.into_iter().for_each(|range| log.release(range.chunk, 1));
        log.release(first.chunk, 1);
        assert!(log.memory() <= idle + 4096, "{} > {idle}", log.memory());
        assert!(log.chunks.iter().filter(|chunk| chunk.memory() > 0).count() <= SPARE_MAX + 1);
    }

    #[test]
    fn an_idle_session_queue_uses_its_first_bytes_over_and_over() {
        let mut log = FrameLog::new();
        for _ in 0..10_000 {
            let range = put(&mut log, 3, &[1; 100]);
            assert_eq!((range.chunk, range.start), (0, 0));
            log.retain(range.chunk, 5);
            log.release(range.chunk, 5);
        }
    }

    #[test]
    fn a_frame_larger_than_a_chunk_is_whole() {
        let mut log = FrameLog::new();
        let big = put(&mut log, 0, &vec![9; 3 * CHUNK_BYTES]);
        log.retain(big.chunk, 1);
        let next = put(&mut log, 0, b"next");
        assert_ne!(big.chunk, next.chunk);
        assert_eq!(log.bytes(big).len(), 3 * CHUNK_BYTES);
    }

    #[test]
    fn relocated_bytes_keep_their_frames() {
        let mut log = FrameLog::new();
        let one = put(&mut log, 0, b"one");
        log.retain(one.chunk, 1);
        put(&mut log, 0, b"for someone else");
        let two = put(&mut log, 0, b"two");
        let own = log.relocate(&[Range { start: 1, ..one }, two]);
        log.release(one.chunk, 1);
        assert_eq!(log.bytes(own), b"netwo");
        let frames: Vec<_> = log.frames(own).map(|frame| (frame.range.end, frame.whole)).collect();
        assert_eq!(frames, [(2, false), (5, true)], "it still knows what was cut");
        log.release(own.chunk, 1);
        assert_eq!(log.ranges(), 0);
    }
}
