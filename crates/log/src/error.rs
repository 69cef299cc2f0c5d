//! What can go wrong, and what to do about it.

use std::io;
use std::sync::Arc;

/// Why a log could not be opened. Nothing on the disk has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory cannot be read or written; a read-only file system, for example.
    #[error("the log's directory cannot be used: {0}; give one that this user may write to")]
    Io(#[source] io::Error),
    /// The file was written by a later version.
    #[error(
        "{file} has version {version} of the log's format, this program knows {known}; start the version that wrote it, or move the directory away"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its version.
        version: u32,
        /// The newest version that is known here.
        known: u32,
    },
    /// The log was begun by another node.
    #[error(
        "the log belongs to node `{owner}`, this is `{this}`; start that node with it, or move the directory away to begin an empty log"
    )]
    OtherNode {
        /// Who began it.
        owner: String,
        /// Who opens it.
        this: String,
    },
    /// A file is called as a segment and belongs to another log, or to none.
    #[error("{file} is not of this log: {reason}; move it away")]
    Foreign {
        /// The file.
        file: String,
        /// How that is known.
        reason: &'static str,
    },
    /// There are segments, but the file that says whose they are is missing or damaged.
    #[error(
        "{file} is {reason}, but there are segments; restore it from a backup, or move the directory away to begin an empty log"
    )]
    NoIdentity {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The limits of the log contradict each other.
    #[error("{0}")]
    Limits(&'static str),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::Io(error)
    }
}

/// Why a record was not appended. The log is as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The disk has no room for another segment, or the log has reached its bound. Reads go on; appends are accepted
    /// again once there is room.
    #[error("the log is full: {0}")]
    Full(Arc<str>),
    /// The disk has failed. Reads go on; the log has to be opened again, because what failed to reach the disk may be
    /// lost even if a second attempt succeeds.
    #[error("the log cannot be written any more: {0}; check the disk and restart")]
    Failed(Arc<str>),
    /// More records wait for the disk than the buffer has room for.
    #[error("the disk is too slow for what is appended; the log's buffer is full")]
    Busy,
    /// The record is larger than a quarter of a segment.
    #[error("the record has {bytes} bytes, more than {bytes_max}; use larger segments")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// Most bytes of a record.
        bytes_max: usize,
    },
    /// The stream's name is empty or longer than [`NAME_BYTES_MAX`](crate::NAME_BYTES_MAX).
    #[error("a stream's name has 1 to 4096 bytes")]
    Name,
    /// The stream does not exist: there is nothing to trim or to remove.
    #[error("there is no such stream")]
    NoStream,
    /// A trillion streams, or a trillion records of one stream.
    #[error("the log has run out of numbers; move its directory away to begin an empty one")]
    Exhausted,
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

/// Why a stream could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The disk refused.
    #[error("the log cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The queue of reads is full, or its thread has ended.
    #[error("too many reads wait for the disk")]
    Busy,
}
