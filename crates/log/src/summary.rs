//! What a segment holds of each stream. A segment that is complete has a file of it, so that a start reads these and not
//! all records.

use std::io::{self, ErrorKind};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::disk::Disk;
use crate::identity::VERSION;
use crate::record::{Header, Kind, number};
use crate::segment::position;
use crate::streams::NameHash;

const MAGIC: &[u8; 8] = b"dunlinsm";
const HEAD_BYTES: usize = 8 + 4 + 4 + 8 + 4 + 4 + 6 + 6 + 5 + 5;
const ENTRY_BYTES: usize = 5 + NameHash::BYTES + 5 + 4 + 1 + 6;

/// The end of a stream in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// Unknown if the record with the name is damaged.
    pub(crate) name: Option<NameHash>,
    pub(crate) top: u64,
    pub(crate) position: u64,
    pub(crate) is_removed: bool,
    /// Until when the stream is remembered.
    pub(crate) keep_until_ms: u64,
}

/// A segment in short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The place behind its last record.
    pub(crate) end: u32,
    /// How many records have a body that expires.
    pub(crate) data: u32,
    /// When the last of them has expired.
    pub(crate) expires_ms: u64,
    /// When the last state has expired.
    pub(crate) keep_until_ms: u64,
    /// The id of the next stream, as far as this segment knows.
    pub(crate) next_id: u64,
    pub(crate) streams: HashMap<u64, Ending, RandomState>,
}

impl Summary {
    /// Adds the next record. The body is that of a [`Kind::Mark`].
    pub(crate) fn add(
        &mut self,
        at: u64,
        header: &Header<'_>,
        name: Option<NameHash>,
        body: &[u8],
    ) {
        if header.kind == Kind::Mark {
            if body.len() == 8 {
                self.next_id = self.next_id.max(number(body, 0, 8));
            }
            return;
        }
        self.next_id = self.next_id.max(header.id + 1);
        if header.kind == Kind::Data {
            self.data = self.data.saturating_add(1);
            self.expires_ms = self.expires_ms.max(header.expiry_ms);
        }
        let keep_until_ms = header.keep_until_ms().min((1 << 48) - 1);
        self.keep_until_ms = self.keep_until_ms.max(keep_until_ms);
        let ending = Ending {
            name,
            top: header.offset,
            position: at,
            is_removed: header.kind == Kind::Remove,
            keep_until_ms,
        };
        self.streams
            .entry(header.id)
            .and_modify(|of| *of = Ending { name: name.or(of.name), ..ending })
            .or_insert(ending);
    }

    pub(crate) fn file_name(segment: u32) -> String {
        format!("{segment:08x}.summary")
    }

    /// Writes the file of a segment; it survives a loss of power.
    pub(crate) fn write(&self, disk: &dyn Disk, log: u64, segment: u32) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.streams.len() * ENTRY_BYTES + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&segment.to_le_bytes());
        bytes.extend_from_slice(&log.to_le_bytes());
        bytes.extend_from_slice(&self.end.to_le_bytes());
        bytes.extend_from_slice(&self.data.to_le_bytes());
        bytes.extend_from_slice(&self.expires_ms.to_le_bytes()[..6]);
        bytes.extend_from_slice(&self.keep_until_ms.to_le_bytes()[..6]);
        bytes.extend_from_slice(&self.next_id.to_le_bytes()[..5]);
        bytes.extend_from_slice(&(self.streams.len() as u64).to_le_bytes()[..5]);
        for (id, ending) in &self.streams {
            bytes.extend_from_slice(&id.to_le_bytes()[..5]);
            // A stream whose name is unknown here is known by an earlier segment, or by none.
            let name = ending.name.map_or([0xff; NameHash::BYTES], NameHash::to_bytes);
            bytes.extend_from_slice(&name);
            bytes.extend_from_slice(&ending.top.to_le_bytes()[..5]);
            bytes.extend_from_slice(&ending.position.to_le_bytes()[..4]);
            bytes.push(u8::from(ending.is_removed));
            bytes.extend_from_slice(&ending.keep_until_ms.to_le_bytes()[..6]);
        }
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        let name = Summary::file_name(segment);
        let new = format!("{name}.new");
        let file = disk.create(&new)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        disk.rename(&new, &name)?;
        disk.sync()
    }

    /// Reads the file of a segment; `None` if there is none, or it is damaged or of another version: the segment
    /// itself says the same.
    pub(crate) fn read(disk: &dyn Disk, log: u64, segment: u32) -> io::Result<Option<Summary>> {
        match disk.read(&Summary::file_name(segment)) {
            Ok(bytes) => Ok(Summary::parse(&bytes, log, segment)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(bytes: &[u8], log: u64, segment: u32) -> Option<Summary> {
        let (bytes, checksum) = bytes.split_last_chunk::<4>()?;
        let is_whole = crc32fast::hash(bytes) == u32::from_le_bytes(*checksum);
        let is_it = bytes.len() >= HEAD_BYTES
            && bytes.starts_with(MAGIC)
            && number(bytes, 8, 4) == u64::from(VERSION)
            && number(bytes, 12, 4) == u64::from(segment)
            && number(bytes, 16, 8) == log;
        if !is_whole || !is_it {
            return None;
        }
        let entries = bytes[HEAD_BYTES..].chunks_exact(ENTRY_BYTES);
        let streams = entries.map(|entry| {
            let name = &entry[5..5 + NameHash::BYTES];
            let ending = Ending {
                name: (*name != [0xff; NameHash::BYTES]).then(|| NameHash::from_bytes(name)),
                top: number(entry, 14, 5),
                position: position(segment, number(entry, 19, 4) as u32),
                is_removed: entry[23] == 1,
                keep_until_ms: number(entry, 24, 6),
            };
            (number(entry, 0, 5), ending)
        });
        Some(Summary {
            end: number(bytes, 24, 4) as u32,
            data: number(bytes, 28, 4) as u32,
            expires_ms: number(bytes, 32, 6),
            keep_until_ms: number(bytes, 38, 6),
            next_id: number(bytes, 44, 5),
            streams: streams.collect(),
        })
    }

    /// The streams that are removed here or of which `is_last` says that no later record exists.
    pub(crate) fn endings(&self) -> impl Iterator<Item = (u64, &Ending)> {
        self.streams.iter().map(|(id, ending)| (*id, ending))
    }
}

const _: () = assert!(ENTRY_BYTES == 30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::segment_of;
    use crate::simulated::SimulatedDisk;

    #[test]
    fn summary_written_is_read_back_and_a_damaged_one_is_none() {
        let disk = SimulatedDisk::default();
        let mut summary =
            Summary { end: 99, data: 2, expires_ms: 5, keep_until_ms: 7, ..Summary::default() };
        for (id, name) in [(3, "a"), (4, "b")] {
            let ending = Ending {
                name: Some(NameHash::new(&[1; 16], name)),
                top: 8,
                position: position(2, 40),
                is_removed: id == 4,
                keep_until_ms: 6,
            };
            summary.streams.insert(id, ending);
        }
        summary.write(&disk, 77, 2).expect("room");
        assert_eq!(Summary::read(&disk, 77, 2).expect("it"), Some(summary));
        assert_eq!(Summary::read(&disk, 78, 2).expect("it"), None);
        disk.flip(&Summary::file_name(2), 300);
        assert_eq!(Summary::read(&disk, 77, 2).expect("it"), None);
        assert_eq!(segment_of(position(2, 40)), 2);
    }
}
