//! The snapshot file: magic, version, checksum and length of the rest, then the whole configuration as JSON.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Config;
use crate::edit::Part;
use crate::store::record::Started;
use crate::store::{Disk, Origin, Revision, RevisionKind};

const MAGIC: &[u8; 8] = b"dunlinsn";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 8 + 4 + 4 + 8;

/// The content of a snapshot file.
#[derive(Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) revision: u64,
    pub(super) previous: u64,
    #[serde(alias = "how")]
    pub(super) kind: RevisionKind,
    pub(super) origin: Origin,
    /// The file that the settings were begun with.
    pub(super) start: Started,
    /// The values that differ from the defaults.
    config: Value,
}

impl Contents {
    pub(super) fn of(revision: &Revision, start: &Started) -> Contents {
        Contents {
            revision: revision.snapshot.revision,
            previous: revision.previous,
            kind: revision.kind,
            origin: revision.origin.clone(),
            start: start.clone(),
            config: revision.snapshot.config.sparse(),
        }
    }

    pub(super) fn config(&mut self) -> Result<Config, String> {
        config(self.config.take())
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        // Writing to memory cannot fail, and every key is a string.
        let written = serde_json::to_writer(&mut bytes, self);
        debug_assert!(written.is_ok());
        let length = (bytes.len() - HEAD_BYTES) as u64;
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// # Errors
    /// Why the file cannot be trusted.
    pub(super) fn read(bytes: &[u8]) -> Result<Contents, String> {
        let head = bytes.get(..HEAD_BYTES).ok_or("it is shorter than its head")?;
        if !head.starts_with(MAGIC) {
            return Err("it is no snapshot of settings".into());
        }
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        if number(8) != VERSION {
            return Err("it is of another version".into());
        }
        let length = u64::from(number(16)) | u64::from(number(20)) << 32;
        if length != (bytes.len() - HEAD_BYTES) as u64 || checksum(bytes) != number(12) {
            return Err("its checksum is wrong".into());
        }
        serde_json::from_slice(&bytes[HEAD_BYTES..])
            .map_err(|error| format!("it cannot be understood: {error}"))
    }
}

/// Builds a configuration from the values that differ from the defaults.
pub(super) fn config(sparse: Value) -> Result<Config, String> {
    Config::from_value(sparse).map_err(|failure| format!("{failure:?}"))
}

/// Computes the checksum over the length and the content.
fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(&bytes[16..])
}

/// Writes a snapshot atomically: to a temporary file that is renamed after a sync.
pub(super) fn write(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.new");
    let file = disk.create(&temporary)?;
    let written = file
        .write_at(0, bytes)
        .and_then(|()| file.sync())
        .and_then(|()| disk.rename(&temporary, name))
        .and_then(|()| disk.sync());
    if written.is_err() {
        // A partial file only takes space, so an error of its removal is ignored.
        let _ = disk.remove(&temporary);
    }
    written
}

/// Names a pair's snapshot; names sort by revision.
pub(super) fn name(revision: u64) -> String {
    format!("{revision:020}.snapshot")
}

pub(super) fn log_name(revision: u64) -> String {
    format!("{revision:020}.log")
}

/// Parses a file name: the revision, and whether it is a snapshot.
pub(super) fn read_name(name: &str) -> Option<(u64, bool)> {
    let (revision, kind) = name.split_once('.')?;
    let is_snapshot = match kind {
        "snapshot" => true,
        "log" => false,
        _ => return None,
    };
    (revision.len() == 20).then(|| revision.parse().ok().map(|revision| (revision, is_snapshot)))?
}
