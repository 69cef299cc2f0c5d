//! What a log does with its disk: writes, syncs, and takes care of its segments.

use std::io;
use std::sync::Arc;

use crate::error::AppendError;
use crate::limits::WhenFull;
use crate::log::{Append, Core, Log, Put, Sealed};
use crate::record::{Keep, Kind};
use crate::segment::{self, Found, HEAD_BYTES, position, segment_of};
use crate::streams::NameHash;
use crate::summary::Summary;

/// States forwarded under one lock.
const FORWARDED_PER_LOCK: usize = 256;
/// Milliseconds between two looks at a segment of states of which most may be superseded.
const STATES_CHECK_MS: u64 = 600_000;

impl Log {
    /// Writes what was appended, one chunk. Returns whether there was any. One thread at a time may call this.
    pub fn write(&self) -> bool {
        let chunk = {
            let mut core = self.core();
            if core.failure.is_some() {
                return false;
            }
            let Some(chunk) = core.pending.pop_front() else { return false };
            let chunk = Arc::new(chunk);
            core.writing = Some(Arc::clone(&chunk));
            chunk
        };
        let written = chunk.file.write_at(u64::from(chunk.at), &chunk.bytes);
        let mut core = self.core();
        match written {
            Ok(()) => {
                core.writing = None;
                core.buffered -= chunk.bytes.len();
                core.dirty.insert(chunk.segment, Arc::clone(&chunk.file));
                let is_awaited = core.sync_wanted > self.synced();
                drop(core);
                self.advance_written(chunk.end());
                if is_awaited {
                    self.sync_work.notify_one();
                }
                true
            }
            Err(error) => {
                // The chunk stays where reads find it.
                self.fail(&mut core, &error.to_string());
                false
            }
        }
    }

    /// Syncs what was written. Returns whether there was any. One thread at a time may call this.
    ///
    /// # Errors
    /// The log has failed. A sync is not repeated: the pages that it was for may be gone, and a second one would say
    /// nothing about them.
    pub fn sync(&self) -> io::Result<bool> {
        let (written, files) = {
            let mut core = self.core();
            if let Some(failure) = &core.failure {
                return Err(io::Error::other(failure.to_string()));
            }
            let written = self.written();
            if written <= self.synced() {
                return Ok(false);
            }
            (written, std::mem::take(&mut core.dirty))
        };
        if let Err(error) = files.values().try_for_each(|file| file.sync()) {
            self.fail(&mut self.core(), &error.to_string());
            return Err(error);
        }
        self.core().stats.syncs += 1;
        self.advance_synced(written);
        Ok(true)
    }

    /// Takes care of the segments: prepares the next one, summarizes those that are complete, and drops those that have expired.
    ///
    /// # Errors
    /// The error of the disk. The log goes on, and the next call tries again.
    pub fn maintain(&self, now_ms: u64) -> io::Result<()> {
        let _alone = self.maintenance.lock();
        {
            let mut core = self.core();
            if core.failure.is_some() {
                return Ok(());
            }
            // What has expired in the last segment goes too, if nothing follows for long.
            let current = &core.current;
            if current.data > 0 && current.expires_ms < now_ms && core.next.is_some() {
                self.roll(&mut core);
                self.work.notify_one();
            }
            // So that a damaged record is distinguished from one that did not reach the disk.
            if !core.is_marked && self.written() == self.synced() && core.pending.is_empty() {
                self.mark(&mut core);
                self.work.notify_one();
            }
        }
        let prepared = self.prepare();
        self.seal()?;
        self.drop_expired(now_ms)?;
        let (is_prepared, error) = match prepared {
            Ok(is_prepared) => (is_prepared, None),
            Err(error) => (false, Some(error)),
        };
        if !is_prepared && error.is_none() && self.limits.when_full == WhenFull::DropOldest {
            self.drop_oldest(now_ms)?;
            self.prepare()?;
        }
        error.map_or(Ok(()), Err)
    }

    /// Creates the next segment, if there is none and the log may have one. Returns whether there is one.
    fn prepare(&self) -> io::Result<bool> {
        let number = {
            let mut core = self.core();
            if core.next.is_some() {
                return Ok(true);
            }
            let bytes: u64 = core.segments.values().map(|segment| segment.bytes).sum();
            if bytes + u64::from(self.limits.segment_bytes) > self.limits.bytes_max {
                let reason = format!("it has reached `bytes_max`, {} bytes", self.limits.bytes_max);
                core.full = Some(reason.into());
                return Ok(false);
            }
            core.current.number + 1
        };
        match self.begin(number) {
            Ok(segment) => {
                let mut core = self.core();
                core.segments.insert(number, segment);
                core.next = Some(number);
                core.full = None;
                Ok(true)
            }
            Err(error) => {
                let _ = self.disk.remove(&segment::file_name(number));
                self.core().full = Some(error.to_string().into());
                Err(error)
            }
        }
    }

    /// Creates a segment of which every byte is reserved.
    fn begin(&self, number: u32) -> io::Result<crate::log::Segment> {
        crate::recovery::begin_segment(
            &*self.disk,
            self.identity.log,
            number,
            self.limits.segment_bytes,
        )
    }

    /// Summarizes the segments that are complete and synced.
    fn seal(&self) -> io::Result<()> {
        loop {
            let found = {
                let core = self.core();
                let synced = segment_of(self.synced());
                let mut segments = core.segments.range(..synced);
                segments.find_map(|(number, segment)| match (segment.end, segment.sealed) {
                    (Some(end), None) => Some((*number, end, Arc::clone(&segment.file))),
                    _ => None,
                })
            };
            let Some((number, end, file)) = found else { return Ok(()) };
            file.truncate(u64::from(end))?;
            let summary = self.summarize(number)?;
            summary.write(&*self.disk, self.identity.log, number)?;
            if let Some(segment) = self.core().segments.get_mut(&number) {
                segment.bytes = u64::from(end);
                segment.sealed = Some(Sealed::from(&summary));
            }
        }
    }

    /// Reads a whole segment for its summary.
    pub(crate) fn summarize(&self, number: u32) -> io::Result<Summary> {
        let bytes = self.disk.read(&segment::file_name(number))?;
        let mut summary = Summary::default();
        summary.end = segment::scan(&bytes, self.checksums, number, HEAD_BYTES, |found| {
            if let Found::Record { at, header, body, .. } = found {
                let name = header.name.map(|name| NameHash::new(&self.identity.key, name));
                summary.add(position(number, at), &header, name, body.unwrap_or_default());
            }
        });
        Ok(summary)
    }

    fn summary(&self, number: u32) -> io::Result<Summary> {
        match Summary::read(&*self.disk, self.identity.log, number)? {
            Some(summary) => Ok(summary),
            None => self.summarize(number),
        }
    }

    fn drop_expired(&self, now_ms: u64) -> io::Result<()> {
        let sealed: Vec<(u32, Sealed)> = {
            let core = self.core();
            let all = core.segments.iter();
            all.filter_map(|(number, segment)| Some((*number, segment.sealed?))).collect()
        };
        for (number, sealed) in sealed {
            let is_expired = match sealed.data {
                0 => sealed.keep_until_ms < now_ms || self.is_superseded(number, sealed, now_ms)?,
                _ => sealed.expires_ms < now_ms,
            };
            if is_expired {
                self.drop_segment(number, now_ms)?;
            }
        }
        Ok(())
    }

    /// Whether three quarters of the states in a segment have later ones elsewhere.
    fn is_superseded(&self, number: u32, sealed: Sealed, now_ms: u64) -> io::Result<bool> {
        if sealed.next_check_ms > now_ms {
            return Ok(false);
        }
        let summary = self.summary(number)?;
        let mut core = self.core();
        let live = summary
            .endings()
            .filter(|(id, ending)| core.is_last(*id, ending.name, ending.position));
        let is_superseded = live.count() * 4 < summary.streams.len().max(1);
        if let Some(Some(sealed)) = core.segments.get_mut(&number).map(|it| &mut it.sealed) {
            sealed.next_check_ms = now_ms + STATES_CHECK_MS;
        }
        Ok(is_superseded)
    }

    fn drop_oldest(&self, now_ms: u64) -> io::Result<()> {
        let oldest = {
            let mut core = self.core();
            let oldest = core.segments.iter().next();
            let oldest = oldest.filter(|(_, segment)| segment.sealed.is_some());
            let Some(number) = oldest.map(|(number, _)| *number) else { return Ok(()) };
            core.stats.dropped_early += 1;
            number
        };
        self.drop_segment(oldest, now_ms)
    }

    /// Removes a segment. The state of each stream that has no later record goes to the end of the log first, until it has expired.
    fn drop_segment(&self, number: u32, now_ms: u64) -> io::Result<()> {
        let summary = self.summary(number)?;
        let is_oldest = self.core().segments.keys().next() == Some(&number);
        let mut forwarded = self.synced();
        let names = self.names_of(number, &summary)?;
        let endings: Vec<_> = summary.endings().collect();
        for endings in endings.chunks(FORWARDED_PER_LOCK) {
            let mut core = self.core();
            for (id, ending) in endings {
                let Some(hash) = ending.name else { continue };
                let is_last = core.is_last(*id, ending.name, ending.position);
                let kind = match ending.is_removed {
                    // Earlier segments still have records of it.
                    true if !is_oldest => Kind::Remove,
                    false if is_last && ending.keep_until_ms > now_ms => Kind::State,
                    false if is_last => {
                        core.streams.remove(hash);
                        continue;
                    }
                    _ => continue,
                };
                let name = names.get(id).map(String::as_str);
                match self.forward(&mut core, kind, (*id, hash), name, ending.keep_until_ms) {
                    Some(end) => forwarded = end,
                    // There is no room for it: the stream is forgotten, and begins anew with another id.
                    None if kind == Kind::State => core.streams.remove(hash),
                    None => {}
                }
            }
        }
        // Two threads share this work; with one, both steps are done here.
        if self.synced() < forwarded {
            self.catch_up(forwarded)?;
        }
        let gone = {
            let mut core = self.core();
            core.stats.dropped_segments += 1;
            core.segments.remove(&number)
        };
        drop(gone);
        self.disk.remove(&segment::file_name(number))?;
        let _ = self.disk.remove(&Summary::file_name(number));
        Ok(())
    }

    /// Waits until the log is synced up to `end`.
    fn catch_up(&self, end: u64) -> io::Result<()> {
        self.work.notify_one();
        while self.written() < end {
            if let Some(failure) = self.failure() {
                return Err(io::Error::other(failure.to_string()));
            }
            let core = self.core();
            if core.writing.is_none() && !core.pending.is_empty() && !core.is_threaded {
                drop(core);
                self.write();
                continue;
            }
            let wait = std::time::Duration::from_millis(20);
            drop(self.progressed.wait_timeout(core, wait));
        }
        self.sync().map(drop)
    }

    fn forward(
        &self,
        core: &mut Core,
        kind: Kind,
        (id, hash): (u64, NameHash),
        name: Option<&str>,
        keep_until_ms: u64,
    ) -> Option<u64> {
        let (known, next_id) = (core.streams.get(hash), core.next_id);
        let name = name?;
        if kind == Kind::Remove {
            // The id is that of the removed stream, whatever stream has the name now.
            core.streams.remove(hash);
            core.next_id = id;
        }
        let put = Put {
            kind,
            name,
            hash,
            body: &[],
            body_checksum: crc32fast::hash(&[]),
            expires_ms: keep_until_ms,
            keep: Keep::default(),
        };
        let result = self.put(core, &put, true);
        if kind == Kind::Remove {
            core.streams.remove(hash);
            if let Some(known) = known {
                core.streams.set(hash, &known);
            }
            core.next_id = next_id;
        }
        result.ok().map(|appended| appended.end)
    }

    /// The names of the streams in a segment.
    fn names_of(
        &self,
        number: u32,
        summary: &Summary,
    ) -> io::Result<std::collections::HashMap<u64, String>> {
        let bytes = self.disk.read(&segment::file_name(number))?;
        let mut names = std::collections::HashMap::new();
        segment::scan(&bytes, self.checksums, number, HEAD_BYTES, |found| {
            if let Found::Record { header, .. } = found
                && let Some(name) = header.name
                && summary.streams.contains_key(&header.id)
            {
                names.insert(header.id, name.to_owned());
            }
        });
        Ok(names)
    }

    /// Writes and syncs everything, and ends the log: nothing is appended any more.
    ///
    /// # Errors
    /// The error of the disk; what was not synced before may be lost.
    pub fn close(&self) -> io::Result<()> {
        {
            let mut core = self.core();
            core.closing = true;
            if core.failure.is_none() {
                self.mark(&mut core);
            }
        }
        self.work.notify_all();
        self.sync_work.notify_all();
        while self.write() {}
        self.sync()?;
        let (file, end) = {
            let core = self.core();
            (Arc::clone(&core.segments[&core.current.number].file), core.current.end)
        };
        file.truncate(u64::from(end))?;
        file.sync()?;
        // The mark says so for everything before it; the identity for the mark.
        crate::identity::Identity { is_closed: true, ..self.identity.clone() }.write(&*self.disk)
    }

    /// Appends and returns once it is synced, for a caller that has no threads for the log.
    ///
    /// # Errors
    /// Why it was not appended.
    pub fn append_synced(&self, record: &Append<'_>) -> Result<crate::Appended, AppendError> {
        let appended = self.append(record)?;
        while self.write() {}
        match self.sync() {
            Ok(_) => Ok(appended),
            Err(error) => Err(AppendError::Failed(error.to_string().into())),
        }
    }
}

impl Core {
    /// Whether this is the last record of its stream.
    fn is_last(&self, id: u64, name: Option<NameHash>, at: u64) -> bool {
        let stream = name.and_then(|name| self.streams.get(name));
        stream.is_some_and(|stream| stream.id == id && stream.position == at)
    }
}

impl From<&Summary> for Sealed {
    fn from(summary: &Summary) -> Sealed {
        Sealed {
            data: summary.data,
            expires_ms: summary.expires_ms,
            keep_until_ms: summary.keep_until_ms,
            next_check_ms: 0,
        }
    }
}
