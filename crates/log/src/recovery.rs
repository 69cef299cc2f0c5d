//! Opening a log: whose it is, where it ends, and what of it is damaged.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::identity::{self, Identity, VERSION};
use crate::limits::Limits;
use crate::log::{Core, Current, Log, Sealed, Segment};
use crate::read::Damage;
use crate::record::{Checksums, Kind};
use crate::segment::{
    self, Found, HEAD_BYTES, Head, file_name, numbered, place_of, position, read_head, segment_of,
};
use crate::streams::{NameHash, Stream, Streams};
use crate::summary::Summary;

const SEGMENT_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=1 << 30;
/// Most damaged records that a recovery names; others are counted.
const NAMED_MAX: usize = 10_000;

/// Whose log it is, and how large it may become.
#[derive(Clone, Debug, Default)]
pub struct LogConfig {
    /// Its limits.
    pub limits: Limits,
    /// The node. A log of another one is refused. Empty: any.
    pub owner: String,
    /// Identifies the time since the machine was booted, see [`boot_id`](crate::boot_id). If it has changed, records that were
    /// written and not synced may be lost. Empty: always.
    pub boot: String,
}

/// What opening a log has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Streams.
    pub streams: u64,
    /// Segments.
    pub segments: u64,
    /// Records that were read, because their segment has no summary.
    pub scanned: u64,
    /// Bytes cut from the end: records that were not synced, torn by a loss of power or by the end of the process.
    pub cut_bytes: u64,
    /// Offsets that were seen may have been lost, and epochs have changed, see [`Log::epoch`].
    pub may_have_lost: bool,
    /// Damaged records; their names, up to 10,000.
    pub damaged: Vec<Damage>,
    /// Files that are not the log's, and segments that are missing.
    pub warnings: Vec<String>,
}

/// A segment that is to be read.
struct Unsealed {
    number: u32,
    bytes: Vec<u8>,
}

/// What was found in the segments without a summary, before any of it is believed.
#[derive(Default)]
struct Survey {
    /// Everything before this is known to have been synced.
    synced: u64,
    /// Where something is wrong, in order.
    wrong: Vec<u64>,
    /// The last place with a record that is whole.
    last_whole: u64,
}

impl Log {
    /// Opens the log on a disk, or begins one.
    ///
    /// # Errors
    /// The disk cannot be used, or what is on it is not this log. Damaged records are no error: [`Recovery`] names them.
    pub fn open(disk: Arc<dyn Disk>, config: &LogConfig) -> Result<(Log, Recovery), OpenError> {
        let limits = config.limits;
        if !SEGMENT_BYTES.contains(&limits.segment_bytes) {
            return Err(OpenError::Limits("a segment has 64 KiB to 1 GiB"));
        }
        if limits.bytes_max < 2 * u64::from(limits.segment_bytes) {
            return Err(OpenError::Limits("a log has room for two segments at least"));
        }
        let mut recovery = Recovery::default();
        let numbers = files(&*disk, &mut recovery)?;
        let known = Identity::read(&*disk)?;
        let identity = match known {
            Some(known) => known,
            None if !numbers.is_empty() => {
                return Err(OpenError::NoIdentity { file: identity::FILE, reason: "missing" });
            }
            None => begin_identity(config)?,
        };
        if !config.owner.is_empty() && !identity.owner.is_empty() && config.owner != identity.owner
        {
            let (owner, this) = (identity.owner, config.owner.clone());
            return Err(OpenError::OtherNode { owner, this });
        }
        Opening { disk, config, identity, recovery, streams: Streams::default(), next_id: 1 }
            .run(&numbers)
    }
}

/// The numbers of all segments. Removes what an earlier run has left half done.
fn files(disk: &dyn Disk, recovery: &mut Recovery) -> Result<Vec<u32>, OpenError> {
    let names = disk.list()?;
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| numbered(name, ".segment")).collect();
    numbers.sort_unstable();
    for name in &names {
        let is_known = name == identity::FILE || numbered(name, ".segment").is_some();
        let summary = numbered(name, ".summary");
        let is_left = name == identity::NEW_FILE
            || numbered(name, ".summary.new").is_some()
            || summary.is_some_and(|number| numbers.binary_search(&number).is_err());
        if is_left {
            disk.remove(name)?;
        } else if !is_known && summary.is_none() {
            recovery.warnings.push(format!("{name} is not a file of the log; move it away"));
        }
    }
    // A gap between the numbers is no damage: segments expire in any order.
    Ok(numbers)
}

fn begin_identity(config: &LogConfig) -> Result<Identity, OpenError> {
    let mut random = [0; 24];
    getrandom::fill(&mut random).map_err(|error| OpenError::Io(io::Error::other(error)))?;
    let (log, key) = random.split_at(8);
    Ok(Identity {
        log: u64::from_le_bytes(log.try_into().unwrap_or_default()),
        key: key.try_into().unwrap_or_default(),
        generation: 0,
        is_closed: true,
        owner: config.owner.clone(),
        boot: config.boot.clone(),
    })
}

/// Creates a segment of which every byte is reserved, and which survives a loss of power.
pub(crate) fn begin_segment(
    disk: &dyn Disk,
    log: u64,
    number: u32,
    bytes: u32,
) -> io::Result<Segment> {
    let file = disk.create(&file_name(number))?;
    file.write_at(0, &segment::head(log, number))?;
    file.reserve(u64::from(bytes))?;
    file.sync()?;
    disk.sync()?;
    Ok(Segment { file, bytes: u64::from(bytes), end: None, sealed: None })
}

/// A log that is being opened.
struct Opening<'a> {
    disk: Arc<dyn Disk>,
    config: &'a LogConfig,
    identity: Identity,
    recovery: Recovery,
    streams: Streams,
    next_id: u64,
}

impl Opening<'_> {
    fn run(mut self, numbers: &[u32]) -> Result<(Log, Recovery), OpenError> {
        let checksums = Checksums::new(self.identity.log);
        let mut segments = BTreeMap::new();
        let mut unsealed = Vec::new();
        for &number in numbers {
            let is_last = numbers.last() == Some(&number);
            if let Some(segment) = self.read_sealed(number, is_last)? {
                segments.insert(number, segment);
            } else if let Some(bytes) = self.read_unsealed(number, is_last)? {
                unsealed.push(Unsealed { number, bytes });
            }
        }
        let mut survey = survey(&unsealed, checksums);
        if self.identity.is_closed {
            survey.synced = u64::MAX;
        }
        let cut = survey.wrong.iter().copied().find(|at| *at >= survey.synced);
        // A process that is killed leaves no hole before records that are whole; a loss of power does.
        let mut may_have_lost = cut.is_some_and(|cut| survey.last_whole > cut);
        for Unsealed { number, bytes } in &unsealed {
            let number = *number;
            let cut = cut.filter(|cut| segment_of(*cut) <= number);
            if cut.is_some_and(|cut| segment_of(cut) < number) {
                let written = bytes.iter().rposition(|byte| *byte != 0).unwrap_or_default();
                self.recovery.cut_bytes += written as u64;
                self.disk.remove(&file_name(number))?;
                continue;
            }
            let bytes = match cut {
                Some(cut) => {
                    let kept = &bytes[..place_of(cut) as usize];
                    let rest = &bytes[kept.len()..];
                    let written = rest.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
                    self.recovery.cut_bytes += written as u64;
                    kept
                }
                None => &bytes[..],
            };
            let (summary, is_unknown) = self.fold(number, bytes, checksums);
            may_have_lost |= is_unknown;
            let file = self.settle(number, bytes, summary.end, survey.synced)?;
            self.apply(&summary);
            let bytes = u64::from(summary.end);
            segments.insert(number, Segment { file, bytes, end: Some(summary.end), sealed: None });
        }
        let is_new_boot = self.config.boot.is_empty() || self.config.boot != self.identity.boot;
        may_have_lost |= is_new_boot && !self.identity.is_closed && !segments.is_empty();
        self.finish(segments, may_have_lost)
    }

    /// Takes a segment's summary, if it has one.
    fn read_sealed(&mut self, number: u32, is_last: bool) -> Result<Option<Segment>, OpenError> {
        if is_last {
            // It may have been continued after its summary was written, by a run that has lost what followed.
            let _ = self.disk.remove(&Summary::file_name(number));
            return Ok(None);
        }
        let Some(summary) = Summary::read(&*self.disk, self.identity.log, number)? else {
            return Ok(None);
        };
        let file = self.disk.open(&file_name(number))?;
        let mut head = [0; HEAD_BYTES as usize];
        let length = file.read_at(0, &mut head)?;
        self.judge_head(number, &head[..length])?;
        self.apply(&summary);
        let sealed = Some(Sealed::from(&summary));
        let bytes = u64::from(summary.end);
        Ok(Some(Segment { file, bytes, end: Some(summary.end), sealed }))
    }

    /// Reads a segment without a summary; `None` if nothing was ever written to it.
    fn read_unsealed(&mut self, number: u32, is_last: bool) -> Result<Option<Vec<u8>>, OpenError> {
        let bytes = self.disk.read(&file_name(number))?;
        match self.judge_head(number, &bytes)? {
            Head::Unwritten => {
                if !is_last {
                    self.recovery.warnings.push(format!("{} is empty", file_name(number)));
                }
                self.disk.remove(&file_name(number))?;
                Ok(None)
            }
            _ => Ok(Some(bytes)),
        }
    }

    fn judge_head(&mut self, number: u32, bytes: &[u8]) -> Result<Head, OpenError> {
        let file = || file_name(number);
        let head = read_head(bytes, self.identity.log, number);
        match head {
            Head::Foreign(reason) => return Err(OpenError::Foreign { file: file(), reason }),
            Head::Newer(version) => {
                return Err(OpenError::Newer { file: file(), version, known: VERSION });
            }
            Head::Damaged => {
                self.recovery.warnings.push(format!("the head of {} is damaged", file()));
            }
            Head::Ours | Head::Unwritten => {}
        }
        Ok(head)
    }

    /// Sums up a segment and names what is damaged in it. Also returns whether something is damaged whose stream cannot be known.
    fn fold(&mut self, number: u32, bytes: &[u8], checksums: Checksums) -> (Summary, bool) {
        let key = self.identity.key;
        let mut summary = Summary::default();
        let mut scanned = 0;
        // Stream, offset and place of each damaged record; ranges of which nothing can be read.
        let (mut damaged, mut ranges) = (Vec::new(), Vec::new());
        summary.end = segment::scan(bytes, checksums, number, HEAD_BYTES, |found| match found {
            Found::Record { at, header, body, is_corrected } => {
                scanned += 1;
                let name = header.name.map(|name| NameHash::new(&key, name));
                if (body.is_none() || is_corrected) && header.kind != Kind::Mark {
                    damaged.push((header.id, header.offset, at));
                }
                summary.add(position(number, at), &header, name, body.unwrap_or_default());
            }
            Found::Damaged { at, end } => ranges.push((at, end)),
        });
        self.recovery.scanned += scanned;
        if damaged.is_empty() && ranges.is_empty() {
            return (summary, false);
        }
        // A record that cannot be read at all is named by the one that follows it in its stream.
        let (mut named, mut names) = (vec![false; ranges.len()], BTreeMap::new());
        segment::scan(bytes, checksums, number, HEAD_BYTES, |found| {
            let Found::Record { header, .. } = found else { return };
            if let Some(name) = header.name {
                names.insert(header.id, name.to_owned());
            }
            let previous = header.previous;
            let range = ranges.iter().position(|(at, end)| {
                segment_of(previous) == number && (*at..*end).contains(&place_of(previous))
            });
            if let Some(range) = range {
                named[range] = true;
                let before = header.offset - u64::from(header.kind == Kind::Data);
                damaged.push((header.id, before, place_of(previous)));
            }
        });
        for (id, offset, at) in damaged {
            let stream = names.get(&id).cloned().unwrap_or_default();
            self.name(Damage { stream, offset, file: file_name(number), at: u64::from(at) });
        }
        let unknown = ranges.iter().zip(&named).filter(|(_, named)| !**named);
        let mut is_unknown = false;
        for ((at, _), _) in unknown {
            is_unknown = true;
            let (stream, file) = (String::new(), file_name(number));
            self.name(Damage { stream, offset: 0, file, at: u64::from(*at) });
        }
        (summary, is_unknown)
    }

    fn name(&mut self, damage: Damage) {
        if self.recovery.damaged.len() < NAMED_MAX {
            self.recovery.damaged.push(damage);
        }
    }

    /// Cuts a segment at its end, and writes what may not be on the disk once more: a sync that failed before the restart may have
    /// dropped it, and would not be repeated.
    fn settle(
        &self,
        number: u32,
        bytes: &[u8],
        end: u32,
        synced: u64,
    ) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(&file_name(number))?;
        file.truncate(u64::from(end))?;
        let from = match segment_of(synced).cmp(&number) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => place_of(synced).min(end),
            std::cmp::Ordering::Greater => end,
        };
        if from < end {
            file.write_at(u64::from(from), &bytes[from as usize..end as usize])?;
        }
        file.sync()?;
        Ok(file)
    }

    fn apply(&mut self, summary: &Summary) {
        self.next_id = self.next_id.max(summary.next_id);
        for (id, ending) in summary.endings() {
            let Some(hash) = ending.name.or_else(|| self.streams.name_of(id)) else { continue };
            let known = self.streams.get(hash);
            if ending.is_removed {
                if known.is_some_and(|known| known.id == id) {
                    self.streams.remove(hash);
                }
            } else if known.is_none_or(|known| known.position < ending.position) {
                let stream = Stream { id, top: ending.top, position: ending.position };
                self.streams.set(hash, &stream);
            }
        }
    }

    /// Continues in the last segment, or begins the first one.
    fn finish(
        mut self,
        mut segments: BTreeMap<u32, Segment>,
        may_have_lost: bool,
    ) -> Result<(Log, Recovery), OpenError> {
        let limits = self.config.limits;
        let was_empty = segments.is_empty();
        self.identity.generation += u32::from(may_have_lost);
        self.identity.is_closed = false;
        self.identity.boot.clone_from(&self.config.boot);
        if self.identity.owner.is_empty() {
            self.identity.owner.clone_from(&self.config.owner);
        }
        self.identity.write(&*self.disk)?;
        if was_empty {
            let first = begin_segment(&*self.disk, self.identity.log, 1, limits.segment_bytes)?;
            segments.insert(1, first);
        }
        let Some((&number, last)) = segments.iter_mut().next_back() else {
            return Err(OpenError::Limits("a log has one segment at least"));
        };
        let end = last.end.take().unwrap_or(HEAD_BYTES);
        // Without room the log is full from the start, and is read nevertheless.
        let is_reserved = last.file.reserve(u64::from(limits.segment_bytes)).is_ok();
        let capacity = if is_reserved { limits.segment_bytes.max(end) } else { end };
        last.bytes = u64::from(capacity);
        let summary = match was_empty {
            true => Summary::default(),
            false => self.summary_of(number)?,
        };
        let (data, expires_ms) = (summary.data, summary.expires_ms);
        let current = Current { number, end, capacity, data, expires_ms };
        self.recovery.streams = self.streams.len() as u64;
        self.recovery.segments = segments.len() as u64;
        self.recovery.may_have_lost = may_have_lost;
        let mut core = Core::empty(current, self.next_id, self.streams);
        core.segments = segments;
        core.stats.damaged = self.recovery.damaged.len() as u64;
        Ok((Log::new(self.disk, limits, self.identity, core), self.recovery))
    }

    fn summary_of(&self, number: u32) -> io::Result<Summary> {
        let checksums = Checksums::new(self.identity.log);
        let bytes = self.disk.read(&file_name(number))?;
        let mut summary = Summary::default();
        segment::scan(&bytes, checksums, number, HEAD_BYTES, |found| {
            if let Found::Record { at, header, .. } = found {
                summary.add(position(number, at), &header, None, &[]);
            }
        });
        Ok(summary)
    }
}

/// Looks at all records that may not have been synced.
fn survey(unsealed: &[Unsealed], checksums: Checksums) -> Survey {
    let mut survey = Survey::default();
    for Unsealed { number, bytes } in unsealed {
        segment::scan(bytes, checksums, *number, HEAD_BYTES, |found| match found {
            Found::Record { at, header, body, is_corrected } => {
                let place = position(*number, at);
                if header.synced > 0 && !is_corrected {
                    survey.synced = survey.synced.max(position(*number, header.synced));
                }
                match body {
                    Some(_) if !is_corrected => survey.last_whole = place,
                    _ => survey.wrong.push(place),
                }
            }
            Found::Damaged { at, .. } => survey.wrong.push(position(*number, at)),
        });
    }
    survey
}

/// Identifies the time since the machine was booted; empty where Linux does not say.
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
