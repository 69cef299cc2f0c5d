//! Reading a stream: from its end back along the positions that its records carry.

use std::io;
use std::sync::Arc;

use crate::disk::DiskFile;
use crate::error::ReadError;
use crate::log::{Log, StreamState};
use crate::record::{HEADER_BYTES_MAX, Jump, Kind, number};
use crate::segment::{self, HEAD_BYTES, place_of, position, segment_of};
use crate::streams::NameHash;
use crate::summary::Summary;

/// Most records of one read.
pub const READ_RECORDS_MAX: usize = 10_000;
/// Bytes read before a record, because those before it in its stream may be there.
const BACK_BYTES: u32 = 12 << 10;

/// Most damaged records that are named for one place.
const DAMAGED_MAX: usize = 1_000;

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRange {
    /// Records after this offset.
    pub after: u64,
    /// Records before this offset.
    pub before: u64,
    /// Most records; at most [`READ_RECORDS_MAX`].
    pub limit: usize,
    /// Most bytes of their bodies. The first record is always returned.
    pub bytes_max: usize,
    /// Begins with the newest.
    pub newest_first: bool,
}

impl ReadRange {
    /// Everything, oldest first, up to the limits of a read.
    pub const ALL: ReadRange = ReadRange {
        after: 0,
        before: u64::MAX,
        limit: READ_RECORDS_MAX,
        bytes_max: usize::MAX,
        newest_first: false,
    };
}

/// A record as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// Its offset.
    pub offset: u64,
    /// When it expires, Unix time in milliseconds.
    pub expires_ms: u64,
    /// Its contents.
    pub body: Vec<u8>,
}

/// A record that was found damaged. Others of its stream are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its stream; empty if not even that can be known.
    pub stream: String,
    /// Its offset in the stream; 0 if unknown.
    pub offset: u64,
    /// The file.
    pub file: String,
    /// The place in the file.
    pub at: u64,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Damage { stream, offset, file, at } = self;
        write!(f, "record {offset} of `{stream}` is damaged ({file}, byte {at})")
    }
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadResult {
    /// The stream; `None` if there is none.
    pub stream: Option<StreamState>,
    /// The records, in the order that was asked for. Offsets have gaps where records are damaged, and nowhere else.
    pub records: Vec<StoredRecord>,
    /// Earlier records that were asked for, up to before this offset, have expired or were trimmed; 0 if there are none.
    pub trimmed_before: u64,
    /// Records in between that cannot be read.
    pub damaged: Vec<Damage>,
}

/// A record's header, and where its body is.
#[derive(Clone, Copy)]
struct Step {
    kind: Kind,
    position: u64,
    offset: u64,
    previous: u64,
    jump: Option<Jump>,
    expires_ms: u64,
    body_at: u32,
    body_bytes: u32,
    body_checksum: u32,
}

impl Log {
    /// Reads a part of a stream. Call it on a thread that may wait for the disk.
    ///
    /// # Errors
    /// The disk refuses. A damaged record is no error, see [`ReadResult::damaged`].
    pub fn read(
        &self,
        stream: &str,
        range: &ReadRange,
        now_ms: u64,
    ) -> Result<ReadResult, ReadError> {
        let hash = NameHash::new(&self.identity.key, stream);
        let Some(known) = self.core().streams.get(hash) else { return Ok(ReadResult::default()) };
        let mut walk = Walk {
            log: self,
            name: stream,
            id: known.id,
            now_ms,
            end: (known.position, known.top),
            window: None,
            damaged: Vec::new(),
        };
        let mut result = ReadResult {
            stream: Some(StreamState { id: known.id, top: known.top }),
            ..ReadResult::default()
        };
        let limit = range.limit.min(READ_RECORDS_MAX) as u64;
        let last = known.top.min(range.before.saturating_sub(1));
        if limit == 0 || last <= range.after {
            return Ok(result);
        }
        let least = match range.newest_first {
            true => (range.after + 1).max((last + 1).saturating_sub(limit)),
            false => range.after + 1,
        };
        let first = walk.seek(least)?;
        let Some(first) = first.filter(|first| first.offset <= last) else {
            result.trimmed_before = last + 1;
            result.damaged = walk.damaged;
            return Ok(result);
        };
        let is_damaged = |offset| walk.damaged.iter().any(|damage| damage.offset == offset);
        if (least..first.offset).any(|offset| !is_damaged(offset)) {
            result.trimmed_before = first.offset;
        }
        let last = last.min(first.offset + limit - 1);
        let mut steps = walk.between(first.offset, last)?;
        if !range.newest_first {
            steps.reverse();
        }
        let mut room = range.bytes_max;
        for step in steps {
            if room == 0 {
                break;
            }
            let body = walk.body(&step)?;
            room = room.saturating_sub(step.body_bytes as usize);
            match body {
                Some(body) => {
                    let Step { offset, expires_ms, .. } = step;
                    result.records.push(StoredRecord { offset, expires_ms, body });
                }
                None => walk.damage(step.offset, step.position),
            }
        }
        result.damaged = walk.damaged;
        result.damaged.sort_unstable_by_key(|damage| damage.offset);
        result.damaged.dedup();
        self.core().stats.damaged += result.damaged.len() as u64;
        Ok(result)
    }

    /// Bytes of a segment, from the buffer if they are not written yet.
    fn fetch(&self, at: u64, bytes: usize) -> io::Result<Option<Vec<u8>>> {
        let (segment, place) = (segment_of(at), place_of(at));
        let file: Arc<dyn DiskFile> = {
            let core = self.core();
            let buffered = core.writing.as_deref().into_iter().chain(&core.pending);
            for chunk in buffered.filter(|chunk| chunk.segment == segment) {
                let from = place.checked_sub(chunk.at).map(|from| from as usize);
                if let Some(from) = from.filter(|from| *from < chunk.bytes.len()) {
                    let to = chunk.bytes.len().min(from + bytes);
                    return Ok(Some(chunk.bytes[from..to].to_vec()));
                }
            }
            match core.segments.get(&segment) {
                Some(segment) => Arc::clone(&segment.file),
                None => return Ok(None),
            }
        };
        let mut read = vec![0; bytes];
        let length = file.read_at(u64::from(place), &mut read)?;
        read.truncate(length);
        Ok(Some(read))
    }

    fn has_segment(&self, number: u32) -> bool {
        self.core().segments.contains_key(&number)
    }

    /// Calls `visit` with the name and the state of every stream. Reads all segments.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn streams(&self, mut visit: impl FnMut(&str, StreamState)) -> Result<(), ReadError> {
        let numbers: Vec<u32> = self.core().segments.keys().copied().collect();
        for number in numbers {
            let bytes = match self.disk.read(&segment::file_name(number)) {
                Ok(bytes) => bytes,
                // It has expired meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            let mut names = Vec::new();
            segment::scan(&bytes, self.checksums, number, HEAD_BYTES, |found| {
                if let segment::Found::Record { header, .. } = found
                    && let Some(name) = header.name
                {
                    names.push((header.id, name.to_owned()));
                }
            });
            for (id, name) in names {
                let hash = NameHash::new(&self.identity.key, &name);
                let stream = self.core().streams.get(hash);
                // Each is reported with the segment that has its last record.
                if let Some(stream) = stream
                    && stream.id == id
                    && segment_of(stream.position) == number
                {
                    visit(&name, StreamState { id, top: stream.top });
                }
            }
        }
        Ok(())
    }
}

/// A walk along one stream.
struct Walk<'a> {
    log: &'a Log,
    name: &'a str,
    id: u64,
    now_ms: u64,
    /// Position and offset of the last record.
    end: (u64, u64),
    /// Bytes of a segment from a position on.
    window: Option<(u64, Vec<u8>)>,
    damaged: Vec<Damage>,
}

impl Walk<'_> {
    fn damage(&mut self, offset: u64, at: u64) {
        self.damaged.push(Damage {
            stream: self.name.to_owned(),
            offset,
            file: segment::file_name(segment_of(at)),
            at: u64::from(place_of(at)),
        });
    }

    /// The bytes at a position, at least a header if the segment has as many.
    fn bytes(&mut self, at: u64) -> io::Result<Option<&[u8]>> {
        let has = |window: &(u64, Vec<u8>)| {
            let from = at.checked_sub(window.0)? as usize;
            let length = window.1.len();
            (segment_of(window.0) == segment_of(at) && from + HEADER_BYTES_MAX <= length)
                .then_some(from)
        };
        let from = match self.window.as_ref().and_then(has) {
            Some(from) => from,
            None => {
                let back = place_of(at).saturating_sub(HEAD_BYTES).min(BACK_BYTES);
                let begin = at - u64::from(back);
                let written = self.log.written();
                let whole = back as usize + HEADER_BYTES_MAX;
                // What is not written yet is in the buffer, from the record on.
                let is_written = at < written;
                let begin = if is_written { begin } else { at };
                let bytes = if is_written { whole } else { HEADER_BYTES_MAX };
                let Some(mut read) = self.log.fetch(begin, bytes)? else { return Ok(None) };
                if is_written && segment_of(written) == segment_of(begin) {
                    // Behind it were zeros, and are records by now.
                    read.truncate((written - begin) as usize);
                }
                let from = (at - begin) as usize;
                if read.len() < from {
                    return Ok(None);
                }
                self.window = Some((begin, read));
                from
            }
        };
        Ok(self.window.as_ref().and_then(|window| window.1.get(from..)))
    }

    /// The record of this stream at a position; `None` if there is none, or it is damaged.
    fn load(&mut self, at: u64) -> io::Result<Option<Step>> {
        let (checksums, id) = (self.log.checksums, self.id);
        let Some(bytes) = self.bytes(at)? else { return Ok(None) };
        let corrected;
        let header = match checksums.parse(bytes, at) {
            Some(header) => header,
            None => match checksums.correct(bytes, at) {
                Some(bytes) => {
                    corrected = bytes;
                    match checksums.parse(&corrected, at) {
                        Some(header) => header,
                        None => return Ok(None),
                    }
                }
                None => return Ok(None),
            },
        };
        Ok((header.id == id && header.kind != Kind::Mark).then(|| Step {
            kind: header.kind,
            position: at,
            offset: header.offset,
            previous: header.previous,
            jump: header.jump,
            expires_ms: header.expiry_ms,
            body_at: place_of(at) + header.bytes() as u32,
            body_bytes: header.body_bytes,
            body_checksum: header.body_checksum,
        }))
    }

    /// Loads the record at a position, or the newest one before it if that is damaged, which is then named with the offset that it
    /// must have.
    fn step(&mut self, mut at: u64, mut offset: u64) -> io::Result<Option<Step>> {
        while at != 0 && self.log.has_segment(segment_of(at)) {
            if let Some(step) = self.load(at)? {
                return Ok(Some(step));
            }
            // It may have been dropped meanwhile.
            if !self.log.has_segment(segment_of(at)) {
                return Ok(None);
            }
            let before = self.before(at)?;
            let least = before.map_or(offset, |(_, offset)| offset + 1);
            for offset in (least..=offset).take(DAMAGED_MAX) {
                self.damage(offset, at);
            }
            let Some((before, its_offset)) = before else { return Ok(None) };
            (at, offset) = (before, its_offset);
        }
        Ok(None)
    }

    /// The newest record before a damaged one, found by looking through segments.
    fn before(&self, at: u64) -> io::Result<Option<(u64, u64)>> {
        let segments: Vec<u32> = {
            let core = self.log.core();
            core.segments.range(..=segment_of(at)).map(|(number, _)| *number).rev().collect()
        };
        for number in segments {
            if number < segment_of(at) {
                let summary = Summary::read(&*self.log.disk, self.log.identity.log, number)?;
                if summary.is_some_and(|of| !of.streams.contains_key(&self.id)) {
                    continue;
                }
            }
            let bytes = match self.log.disk.read(&segment::file_name(number)) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let found = segment::last_before(&bytes, self.log.checksums, number, self.id, at);
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The record with the least offset from `least` on that has neither expired nor been trimmed, and before which none is missing
    /// up to the end.
    fn seek(&mut self, least: u64) -> io::Result<Option<Step>> {
        let (mut least, mut first) = (least, None);
        let (mut at, mut offset) = self.end;
        while let Some(step) = self.step(at, offset)? {
            match step.kind {
                Kind::Trim => {
                    let before = self.body(&step)?.filter(|body| body.len() == 8);
                    // One that cannot be read trims everything: what was acknowledged does not come again.
                    least = least.max(before.map_or(step.offset + 1, |body| number(&body, 0, 8)));
                    (at, offset) = (step.previous, step.offset);
                    continue;
                }
                Kind::Data if step.offset >= least && step.expires_ms > self.now_ms => {}
                _ => break,
            }
            first = Some(step);
            if step.offset == least {
                break;
            }
            let jump = step.jump.filter(|jump| step.offset - u64::from(jump.by) >= least);
            let target = match jump.filter(|jump| self.log.has_segment(segment_of(jump.position))) {
                Some(jump) => self.load(jump.position)?.filter(|target| {
                    target.offset == step.offset - u64::from(jump.by)
                        && target.expires_ms > self.now_ms
                }),
                None => None,
            };
            (at, offset) = match target {
                Some(target) => (target.position, target.offset),
                None => (step.previous, step.offset - 1),
            };
        }
        Ok(first)
    }

    /// The records of these offsets, the newest first.
    fn between(&mut self, first: u64, last: u64) -> io::Result<Vec<Step>> {
        let mut steps = Vec::new();
        let mut next = self.seek(last)?;
        if next.is_none() {
            // The record itself is damaged.
            next = self.step(self.end.0, self.end.1)?;
        }
        while let Some(step) = next {
            if step.kind == Kind::Data && step.offset <= last {
                steps.push(step);
            }
            // A trim has the offset of the record before it.
            let is_first = step.offset == first && step.kind == Kind::Data;
            if is_first || step.offset < first || step.kind == Kind::State {
                break;
            }
            let offset = step.offset - u64::from(step.kind == Kind::Data);
            next = self.step(step.previous, offset)?;
        }
        steps.retain(|step| step.offset >= first);
        Ok(steps)
    }

    /// The body of a record; `None` if it is damaged.
    fn body(&mut self, step: &Step) -> io::Result<Option<Vec<u8>>> {
        let at = position(segment_of(step.position), step.body_at);
        let body = match self.window.as_ref() {
            Some((begin, bytes)) if *begin <= at => {
                let from = (at - begin) as usize;
                bytes.get(from..from + step.body_bytes as usize).map(<[u8]>::to_vec)
            }
            _ => None,
        };
        let body = match body {
            Some(body) => body,
            None if step.body_bytes == 0 => Vec::new(),
            None => self.log.fetch(at, step.body_bytes as usize)?.unwrap_or_default(),
        };
        let is_whole =
            body.len() == step.body_bytes as usize && crc32fast::hash(&body) == step.body_checksum;
        Ok(is_whole.then_some(body))
    }
}
