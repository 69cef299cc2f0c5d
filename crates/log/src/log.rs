//! The log: what is appended, where it stands, and how far it has got.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::disk::{Disk, DiskFile};
use crate::error::AppendError;
use crate::identity::Identity;
use crate::limits::Limits;
use crate::record::{
    Checksums, Header, Jump, Keep, Kind, NAME_BYTES_MAX, NUMBERS_END, header_bytes,
};
use crate::segment::{HEAD_BYTES, position, segment_of};
use crate::streams::{NameHash, Stream, Streams};

/// A chunk of this size is closed, and the next record begins another.
const CHUNK_BYTES: usize = 1 << 20;
/// A record at a multiple of this offset has a jump to the one before at such an offset.
const JUMP: u64 = 64;
/// And at a multiple of this, a jump to the one before at such an offset.
const LONG_JUMP: u64 = 4096;
/// The most streams whose last jumps are remembered.
const HOT_STREAMS_MAX: usize = 1 << 16;

/// A record to append.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The stream, which is created if there is none.
    pub stream: &'a str,
    /// The record's contents.
    pub body: &'a [u8],
    /// When it expires, Unix time in milliseconds.
    pub expires_ms: u64,
    /// Milliseconds for which the stream's epoch and offset are known beyond that.
    pub keep_ms: u64,
    /// Somebody waits until it is synced.
    pub sync: bool,
}

/// The place of an appended record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The id of its stream, see [`Log::epoch`].
    pub stream: u64,
    /// Its offset in the stream, from 1 without gaps.
    pub offset: u64,
    /// It is written, or synced, once [`Log::written`] or [`Log::synced`] has reached this.
    pub end: u64,
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// Its id, which no other stream of this log has, whatever its name. See [`Log::epoch`].
    pub id: u64,
    /// The offset of its last record; 0 if it never had one.
    pub top: u64,
}

/// What a log has done and holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Streams.
    pub streams: u64,
    /// Bytes of memory for them.
    pub streams_bytes: u64,
    /// Bytes of all segments, reserved ones among them.
    pub disk_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes that wait to be written.
    pub buffered_bytes: u64,
    /// Records appended since the log was opened.
    pub appended: u64,
    /// Appends refused since then.
    pub refused: u64,
    /// Groups synced since then.
    pub syncs: u64,
    /// Segments dropped since then, expired or for room.
    pub dropped_segments: u64,
    /// The segments of these that had not expired.
    pub dropped_early: u64,
    /// Damaged records found since then.
    pub damaged: u64,
}

/// Many streams in one log on a disk.
///
/// Any thread may append: a record is numbered and encoded into a buffer, and nothing waits. Whoever has threads for the disk
/// calls [`Log::write`], [`Log::sync`] and [`Log::maintain`]; [`Threads`](crate::Threads) does. A record survives the process
/// when [`Log::written`] has reached its end, and a loss of power when [`Log::synced`] has.
///
/// Files are opened, read and closed by the methods [`Log::write`], [`Log::sync`], [`Log::maintain`], [`Log::read`] and
/// [`Log::close`] alone; [`Log::append`] and whatever else takes no I/O error can be called by a thread with a descriptor table
/// of its own.
pub struct Log {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) limits: Limits,
    pub(crate) checksums: Checksums,
    pub(crate) identity: Identity,
    pub(crate) core: Mutex<Core>,
    /// There is something to write, or the log closes.
    pub(crate) work: Condvar,
    /// There is something to sync or to prepare, or the log closes.
    pub(crate) sync_work: Condvar,
    /// `written`, `synced` or `failed` has changed.
    pub(crate) progressed: Condvar,
    written: AtomicU64,
    synced: AtomicU64,
    failed: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    /// Held by whoever prepares, seals or drops segments.
    pub(crate) maintenance: Mutex<()>,
}

/// Called by the log's threads when something was written or synced.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// What appending changes.
pub(crate) struct Core {
    pub(crate) streams: Streams,
    /// Positions of the last records with jumps, by stream.
    hot: HashMap<u64, Hot, RandomState>,
    pub(crate) next_id: u64,
    pub(crate) current: Current,
    /// The segment that follows, on the disk and reserved.
    pub(crate) next: Option<u32>,
    /// Why there is no next one.
    pub(crate) full: Option<Arc<str>>,
    pub(crate) segments: BTreeMap<u32, Segment>,
    pub(crate) pending: VecDeque<Chunk>,
    pub(crate) writing: Option<Arc<Chunk>>,
    pub(crate) buffered: usize,
    pub(crate) sync_wanted: u64,
    /// Files written since the last sync.
    pub(crate) dirty: BTreeMap<u32, Arc<dyn DiskFile>>,
    pub(crate) failure: Option<Arc<str>>,
    pub(crate) closing: bool,
    /// Threads write and sync.
    pub(crate) is_threaded: bool,
    /// The last record says that everything before it is synced.
    pub(crate) is_marked: bool,
    pub(crate) stats: LogStats,
}

#[derive(Clone, Copy, Default)]
struct Hot {
    short: u64,
    short_offset: u64,
    long: u64,
    long_offset: u64,
}

/// The segment that is appended to.
pub(crate) struct Current {
    pub(crate) number: u32,
    /// The place of the next record.
    pub(crate) end: u32,
    /// Bytes that are reserved.
    pub(crate) capacity: u32,
    pub(crate) data: u32,
    pub(crate) expires_ms: u64,
}

/// A segment on the disk.
pub(crate) struct Segment {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) bytes: u64,
    /// The place behind its last record, once nothing more is appended.
    pub(crate) end: Option<u32>,
    /// It has a summary, and how much it holds.
    pub(crate) sealed: Option<Sealed>,
}

#[derive(Clone, Copy)]
pub(crate) struct Sealed {
    pub(crate) data: u32,
    pub(crate) expires_ms: u64,
    pub(crate) keep_until_ms: u64,
    pub(crate) next_check_ms: u64,
}

/// Records that are not written yet.
pub(crate) struct Chunk {
    pub(crate) segment: u32,
    pub(crate) at: u32,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) bytes: Vec<u8>,
}

impl Chunk {
    pub(crate) fn end(&self) -> u64 {
        position(self.segment, self.at + self.bytes.len() as u32)
    }
}

/// A record before it has a place.
pub(crate) struct Put<'a> {
    pub(crate) kind: Kind,
    pub(crate) name: &'a str,
    pub(crate) hash: NameHash,
    pub(crate) body: &'a [u8],
    pub(crate) body_checksum: u32,
    pub(crate) expires_ms: u64,
    pub(crate) keep: Keep,
}

impl Log {
    pub(crate) fn new(disk: Arc<dyn Disk>, limits: Limits, identity: Identity, core: Core) -> Log {
        let end = position(core.current.number, core.current.end);
        Log {
            disk,
            limits,
            checksums: Checksums::new(identity.log),
            identity,
            core: Mutex::new(core),
            work: Condvar::new(),
            sync_work: Condvar::new(),
            progressed: Condvar::new(),
            written: AtomicU64::new(end),
            synced: AtomicU64::new(end),
            failed: AtomicBool::new(false),
            wakers: Mutex::default(),
            maintenance: Mutex::default(),
        }
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record at the end of its stream.
    ///
    /// # Errors
    /// Why it was not appended.
    pub fn append(&self, record: &Append<'_>) -> Result<Appended, AppendError> {
        let mut results = Vec::with_capacity(1);
        self.append_all(std::slice::from_ref(record), &mut results);
        results.pop().unwrap_or(Err(AppendError::Closed))
    }

    /// Appends records, and adds a result for each.
    pub fn append_all(
        &self,
        records: &[Append<'_>],
        results: &mut Vec<Result<Appended, AppendError>>,
    ) {
        // What takes time is done before others have to wait.
        let prepared: Vec<_> = records
            .iter()
            .map(|record| {
                let hash = NameHash::new(&self.identity.key, record.stream);
                (hash, crc32fast::hash(record.body))
            })
            .collect();
        let mut core = self.core();
        let (mut wanted, mut appended) = (0, 0);
        for (record, (hash, body_checksum)) in records.iter().zip(prepared) {
            let put = Put {
                kind: Kind::Data,
                name: record.stream,
                hash,
                body: record.body,
                body_checksum,
                expires_ms: record.expires_ms,
                keep: Keep::of_ms(record.keep_ms),
            };
            let result = self.put(&mut core, &put, false);
            if let Ok(place) = &result {
                appended += 1;
                if record.sync {
                    wanted = place.end;
                }
            }
            results.push(result);
        }
        core.stats.appended += appended;
        core.stats.refused += records.len() as u64 - appended;
        core.sync_wanted = core.sync_wanted.max(wanted);
        drop(core);
        if appended > 0 {
            self.work.notify_one();
        }
    }

    /// Drops the records of a stream before an offset, as after a cumulative acknowledgement. They are not read any more; their
    /// segments go when they expire. The stream's offsets continue.
    ///
    /// # Errors
    /// Why it was not trimmed.
    pub fn trim(&self, trim: &Trim<'_>) -> Result<Appended, AppendError> {
        self.change(trim, Kind::Trim)
    }

    /// Removes a stream. One of the same name that is appended to later has another id, and begins at offset 1. The records
    /// are not read any more; their segments go when they expire.
    ///
    /// # Errors
    /// Why it was not removed.
    pub fn remove(&self, stream: &str, sync: bool) -> Result<Appended, AppendError> {
        self.change(&Trim { stream, before: 0, now_ms: 0, keep_ms: 0, sync }, Kind::Remove)
    }

    /// Returns a stream, and begins an empty one if there is none. It is known for `keep_ms` if nothing is appended.
    ///
    /// # Errors
    /// Why it was not begun.
    pub fn create(
        &self,
        name: &str,
        now_ms: u64,
        keep_ms: u64,
    ) -> Result<StreamState, AppendError> {
        let hash = NameHash::new(&self.identity.key, name);
        let mut core = self.core();
        if let Some(stream) = core.streams.get(hash) {
            return Ok(StreamState { id: stream.id, top: stream.top });
        }
        let put = Put {
            kind: Kind::State,
            name,
            hash,
            body: &[],
            body_checksum: crc32fast::hash(&[]),
            expires_ms: now_ms,
            keep: Keep::of_ms(keep_ms),
        };
        let begun = self.put(&mut core, &put, false)?;
        drop(core);
        self.work.notify_one();
        Ok(StreamState { id: begun.stream, top: begun.offset })
    }

    fn change(&self, trim: &Trim<'_>, kind: Kind) -> Result<Appended, AppendError> {
        let hash = NameHash::new(&self.identity.key, trim.stream);
        let mut core = self.core();
        let stream = core.streams.get(hash).ok_or(AppendError::NoStream)?;
        let before = trim.before.min(stream.top + 1).to_le_bytes();
        let body = if kind == Kind::Trim { &before[..] } else { &[] };
        let put = Put {
            kind,
            name: trim.stream,
            hash,
            body,
            body_checksum: crc32fast::hash(body),
            expires_ms: trim.now_ms,
            keep: Keep::of_ms(trim.keep_ms),
        };
        let appended = self.put(&mut core, &put, false)?;
        core.hot.remove(&stream.id);
        if kind == Kind::Remove {
            core.streams.remove(hash);
        }
        if trim.sync {
            core.sync_wanted = core.sync_wanted.max(appended.end);
        }
        drop(core);
        self.work.notify_one();
        Ok(appended)
    }

    /// Numbers and encodes a record. One of the log itself may use the room at the end of the last segment.
    pub(crate) fn put(
        &self,
        core: &mut Core,
        put: &Put<'_>,
        is_internal: bool,
    ) -> Result<Appended, AppendError> {
        if put.name.is_empty() != (put.kind == Kind::Mark) || put.name.len() > NAME_BYTES_MAX {
            return Err(AppendError::Name);
        }
        let bytes_max = self.limits.segment_bytes as usize / 4;
        let bytes = header_bytes(Some(put.name.len()), true) + put.body.len();
        if bytes > bytes_max {
            return Err(AppendError::TooLarge { bytes, bytes_max });
        }
        let known = if put.kind == Kind::Mark { None } else { core.streams.get(put.hash) };
        let Stream { id, top, position: previous } = match (known, put.kind) {
            (Some(stream), _) => stream,
            (None, Kind::Mark) => Stream { id: 0, top: 0, position: 0 },
            (None, _) => Stream { id: core.next_id, top: 0, position: 0 },
        };
        let offset = top + u64::from(put.kind == Kind::Data);
        if id + 1 >= NUMBERS_END || offset >= NUMBERS_END {
            return Err(AppendError::Exhausted);
        }
        self.make_room(core, bytes, is_internal)?;
        let at = core.current.end;
        let place = position(core.current.number, at);
        let is_named = put.kind != Kind::Mark
            && (segment_of(previous) != core.current.number || put.kind == Kind::Remove);
        let synced = self.synced();
        let header = Header {
            kind: put.kind,
            name: is_named.then_some(put.name),
            jump: if put.kind == Kind::Data { core.jump(id, offset, place) } else { None },
            keep: put.keep,
            id,
            offset,
            previous: if put.kind == Kind::State { 0 } else { previous },
            expiry_ms: put.expires_ms.min((1 << 48) - 1),
            synced: if segment_of(synced) == core.current.number { synced as u32 } else { 0 },
            body_bytes: put.body.len() as u32,
            body_checksum: put.body_checksum,
        };
        let checksums = self.checksums;
        let out = core.buffer();
        let before = out.len();
        checksums.encode(out, place, &header);
        out.extend_from_slice(put.body);
        let bytes = out.len() - before;
        core.buffered += bytes;
        core.current.end += bytes as u32;
        core.is_marked = put.kind == Kind::Mark;
        if put.kind == Kind::Data {
            core.current.data += 1;
            core.current.expires_ms = core.current.expires_ms.max(header.expiry_ms);
        }
        if put.kind != Kind::Mark {
            core.next_id = core.next_id.max(id + 1);
            core.streams.set(put.hash, &Stream { id, top: offset, position: place });
        }
        let end = position(core.current.number, core.current.end);
        Ok(Appended { stream: id, offset, end })
    }

    /// Whether a record of so many bytes has room, in the next segment if need be.
    fn make_room(
        &self,
        core: &mut Core,
        bytes: usize,
        is_internal: bool,
    ) -> Result<(), AppendError> {
        if let Some(failure) = &core.failure {
            return Err(AppendError::Failed(Arc::clone(failure)));
        }
        if core.closing && !is_internal {
            return Err(AppendError::Closed);
        }
        if !is_internal && core.buffered + bytes > self.limits.buffer_bytes_max {
            return Err(AppendError::Busy);
        }
        // The end of the last segment belongs to what lets an older one go.
        let spared = match core.next {
            None if !is_internal => self.limits.segment_bytes / 16,
            _ => 0,
        };
        let end = core.current.end as usize + bytes;
        if end + spared as usize <= core.current.capacity as usize {
            return Ok(());
        }
        if core.next.is_none() {
            return Err(match &core.full {
                Some(full) => AppendError::Full(Arc::clone(full)),
                None => AppendError::Busy,
            });
        }
        self.roll(core);
        Ok(())
    }

    /// Continues in the next segment.
    pub(crate) fn roll(&self, core: &mut Core) {
        let Some(next) = core.next.take() else { return };
        let Current { number, end, .. } = core.current;
        if let Some(segment) = core.segments.get_mut(&number) {
            segment.end = Some(end);
        }
        core.current = Current {
            number: next,
            end: HEAD_BYTES,
            capacity: self.limits.segment_bytes,
            data: 0,
            expires_ms: 0,
        };
        self.mark(core);
        self.sync_work.notify_one();
    }

    /// Appends the id of the next stream, so that none is used twice, and up to where the segment is synced.
    pub(crate) fn mark(&self, core: &mut Core) {
        let body = core.next_id.to_le_bytes();
        let put = Put {
            kind: Kind::Mark,
            name: "",
            hash: NameHash::new(&self.identity.key, ""),
            body: &body,
            body_checksum: crc32fast::hash(&body),
            expires_ms: 0,
            keep: Keep::default(),
        };
        // There is room for it, or the segment goes without.
        let _ = self.put(core, &put, true);
    }

    /// Up to here everything survives the end of the process.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Up to here everything survives a loss of power.
    pub fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// Why nothing is written any more.
    pub fn failure(&self) -> Option<Arc<str>> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.core().failure.clone()
    }

    /// Why nothing is appended for the moment, though the disk has not failed.
    pub fn full(&self) -> Option<Arc<str>> {
        self.core().full.clone()
    }

    pub(crate) fn advance_written(&self, end: u64) {
        self.written.store(end, Ordering::Release);
        self.progressed.notify_all();
        self.wake();
    }

    pub(crate) fn advance_synced(&self, end: u64) {
        self.synced.store(end, Ordering::Release);
        self.progressed.notify_all();
        self.wake();
    }

    /// Ends all writing. What is not on the disk by now may be lost, and is readable until the log is closed.
    pub(crate) fn fail(&self, core: &mut Core, reason: &str) {
        core.failure.get_or_insert_with(|| reason.into());
        self.failed.store(true, Ordering::Release);
        self.progressed.notify_all();
        self.work.notify_all();
        self.sync_work.notify_all();
        self.wake();
    }

    fn wake(&self) {
        let wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.iter().for_each(|wake| wake());
    }

    /// The next segment is missing, and nothing says that there is no room for it.
    pub(crate) fn needs_maintenance(&self) -> bool {
        let core = self.core();
        core.next.is_none() && core.full.is_none() && core.failure.is_none()
    }

    /// Calls `wake` from now on whenever something was written or synced, or the log has failed.
    pub fn add_waker(&self, wake: Waker) {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }

    /// Has everything that was appended synced, without waiting. Returns its end.
    pub fn request_sync(&self) -> u64 {
        let mut core = self.core();
        let end = position(core.current.number, core.current.end);
        core.sync_wanted = core.sync_wanted.max(end);
        drop(core);
        self.work.notify_one();
        self.sync_work.notify_one();
        end
    }

    /// Waits until everything up to `end` is synced, or the log has failed, or for `timeout`. Returns whether it is synced.
    pub fn wait_synced(&self, end: u64, timeout: Duration) -> bool {
        let mut core = self.core();
        core.sync_wanted = core.sync_wanted.max(end);
        self.sync_work.notify_one();
        let waits = |core: &mut Core| self.synced() < end && core.failure.is_none();
        let waited = self.progressed.wait_timeout_while(core, timeout, waits);
        drop(waited);
        self.synced() >= end
    }

    /// Returns the end of a stream.
    pub fn stream(&self, name: &str) -> Option<StreamState> {
        let hash = NameHash::new(&self.identity.key, name);
        let stream = self.core().streams.get(hash)?;
        Some(StreamState { id: stream.id, top: stream.top })
    }

    /// A number that stands for one stream of one log, whatever its name, and is the same after every restart.
    ///
    /// If the machine may have lost power before all was synced, offsets that were seen may be given again. With
    /// `only_synced` nobody has seen those. Without, the number changes after such a loss.
    pub fn epoch(&self, id: u64, only_synced: bool) -> u64 {
        let generation = if only_synced { 0 } else { u64::from(self.identity.generation) + 1 };
        // SplitMix64's finalizer: a permutation, so that no two streams share an epoch.
        let mut epoch = self.identity.log ^ id.rotate_left(20) ^ generation.rotate_left(56);
        epoch = (epoch ^ (epoch >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        epoch = (epoch ^ (epoch >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (epoch ^ (epoch >> 31)).clamp(1, u64::MAX - 1)
    }

    /// What it has done and holds.
    pub fn stats(&self) -> LogStats {
        let core = self.core();
        LogStats {
            streams: core.streams.len() as u64,
            streams_bytes: core.streams.bytes() as u64,
            disk_bytes: core.segments.values().map(|segment| segment.bytes).sum(),
            segments: core.segments.len() as u64,
            buffered_bytes: core.buffered as u64,
            ..core.stats
        }
    }
}

/// What of a stream is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Trim<'a> {
    /// The stream.
    pub stream: &'a str,
    /// Records before this offset are dropped.
    pub before: u64,
    /// Unix time in milliseconds.
    pub now_ms: u64,
    /// Milliseconds for which the stream's epoch and offset are known from now on, if no record follows.
    pub keep_ms: u64,
    /// Somebody waits until this is synced.
    pub sync: bool,
}

impl Core {
    /// The jump of the record at `place`, which is remembered for the next one.
    fn jump(&mut self, id: u64, offset: u64, place: u64) -> Option<Jump> {
        if !offset.is_multiple_of(JUMP) {
            return None;
        }
        if self.hot.len() >= HOT_STREAMS_MAX && !self.hot.contains_key(&id) {
            // Streams at work are back after 64 records.
            self.hot.clear();
        }
        let hot = self.hot.entry(id).or_default();
        let mut jump = (hot.short, hot.short_offset);
        if offset.is_multiple_of(LONG_JUMP) {
            if hot.long > 0 {
                jump = (hot.long, hot.long_offset);
            }
            (hot.long, hot.long_offset) = (place, offset);
        }
        (hot.short, hot.short_offset) = (place, offset);
        let by = u16::try_from(offset - jump.1).ok()?;
        (jump.0 > 0).then_some(Jump { position: jump.0, by })
    }

    /// The buffer in which the next record of the current segment is encoded.
    fn buffer(&mut self) -> &mut Vec<u8> {
        let Current { number, end, .. } = self.current;
        let fits = self
            .pending
            .back()
            .is_some_and(|chunk| chunk.segment == number && chunk.bytes.len() < CHUNK_BYTES);
        if !fits {
            let file = Arc::clone(&self.segments[&number].file);
            self.pending.push_back(Chunk { segment: number, at: end, file, bytes: Vec::new() });
        }
        let last = self.pending.len() - 1;
        &mut self.pending[last].bytes
    }

    pub(crate) fn empty(current: Current, next_id: u64, streams: Streams) -> Core {
        Core {
            streams,
            hot: HashMap::default(),
            next_id,
            current,
            next: None,
            full: None,
            segments: BTreeMap::new(),
            pending: VecDeque::new(),
            writing: None,
            buffered: 0,
            sync_wanted: 0,
            dirty: BTreeMap::new(),
            failure: None,
            closing: false,
            is_threaded: false,
            is_marked: false,
            stats: LogStats::default(),
        }
    }
}
