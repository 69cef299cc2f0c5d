#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod directory;
mod disk;
mod error;
mod identity;
mod limits;
mod log;
mod read;
mod record;
mod recovery;
mod segment;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
mod streams;
mod summary;
mod threads;
mod work;

pub use directory::Directory;
pub use disk::{Disk, DiskFile};
pub use error::{AppendError, OpenError, ReadError};
pub use limits::{Limits, WhenFull};
pub use log::{Append, Appended, Log, LogStats, StreamState, Trim, Waker};
pub use read::{Damage, READ_RECORDS_MAX, ReadRange, ReadResult, StoredRecord};
pub use record::NAME_BYTES_MAX;
pub use recovery::{LogConfig, Recovery, boot_id};
pub use threads::{ReadDone, Reads, Threads};
