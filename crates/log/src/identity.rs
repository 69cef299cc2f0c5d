//! The file that says whose log it is.

use std::io::{self, ErrorKind};

use crate::disk::Disk;
use crate::error::OpenError;
use crate::record::number;

/// The name of the file.
pub(crate) const FILE: &str = "identity";
/// What is written before it replaces the file.
pub(crate) const NEW_FILE: &str = "identity.new";
const MAGIC: &[u8; 8] = b"dunlinlg";
/// The version of all formats of a log.
pub(crate) const VERSION: u32 = 1;
const FIXED_BYTES: usize = 8 + 4 + 8 + 16 + 4 + 1;

/// What is known of a log before any of its segments is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// A random number.
    pub(crate) log: u64,
    /// The key of the names' hashes.
    pub(crate) key: [u8; 16],
    /// How often records may have been lost that were not synced, see [`Log::epoch`](crate::Log::epoch).
    pub(crate) generation: u32,
    /// It was closed, and all of it is synced.
    pub(crate) is_closed: bool,
    pub(crate) owner: String,
    /// The boot of the machine that has opened it last.
    pub(crate) boot: String,
}

impl Identity {
    /// Reads the file; `None` if there is none.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Identity>, OpenError> {
        let bytes = match disk.read(FILE) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if bytes.starts_with(MAGIC) && bytes.len() >= 12 {
            let version = number(&bytes, 8, 4) as u32;
            if version > VERSION {
                return Err(OpenError::Newer { file: FILE.to_owned(), version, known: VERSION });
            }
        }
        let damaged = OpenError::NoIdentity { file: FILE, reason: "damaged" };
        Identity::parse(&bytes).map(Some).ok_or(damaged)
    }

    fn parse(bytes: &[u8]) -> Option<Identity> {
        let (bytes, checksum) = bytes.split_last_chunk::<4>()?;
        let is_whole = crc32fast::hash(bytes) == u32::from_le_bytes(*checksum);
        if !is_whole || !bytes.starts_with(MAGIC) || bytes.len() < FIXED_BYTES {
            return None;
        }
        let mut texts = bytes[FIXED_BYTES..].split(|byte| *byte == 0);
        let mut text = || Some(str::from_utf8(texts.next()?).ok()?.to_owned());
        Some(Identity {
            log: number(bytes, 12, 8),
            key: bytes[20..36].try_into().ok()?,
            generation: number(bytes, 36, 4) as u32,
            is_closed: bytes[40] == 1,
            owner: text()?,
            boot: text()?,
        })
    }

    /// Replaces the file; it survives a loss of power.
    pub(crate) fn write(&self, disk: &dyn Disk) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.log.to_le_bytes());
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.push(u8::from(self.is_closed));
        bytes.extend_from_slice(self.owner.replace('\0', "").as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(self.boot.replace('\0', "").as_bytes());
        bytes.push(0);
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        let file = disk.create(NEW_FILE)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        disk.rename(NEW_FILE, FILE)?;
        disk.sync()
    }
}
