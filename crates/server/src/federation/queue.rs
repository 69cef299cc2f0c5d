//! What of links survives the process: messages to peers, and how far the streams from peers were taken.

use std::path::Path;
use std::sync::Arc;

use dunlin_log::{
    Append, AppendError, Directory, Limits, Log, LogConfig, ReadRange, Threads, Trim, Waker,
    WhenFull, boot_id,
};

/// How long a stream is known that nothing is appended to.
const KEEP_MS: u64 = 90 * 86_400_000;
/// How much longer than a message its record is kept, so that a message which expired while the process was gone is answered.
const GRACE_MS: u64 = 86_400_000;
/// The most bytes on the disk. Beyond it the oldest records go: what is in the queue is in memory, too.
const BYTES_MAX: u64 = 10 << 30;
const SEGMENT_BYTES: u32 = 16 << 20;
const EXPIRES_BYTES: usize = 8;
const CURSOR_BYTES: usize = 16;

/// The log of all peers.
pub(super) struct Queue {
    log: Arc<Log>,
    threads: Threads,
}

/// What was stored of a peer.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) stream: u64,
    pub(super) base: u64,
    /// How far the peer's stream was taken: its id, and the number.
    pub(super) taken: (u64, u64),
    pub(super) messages: Vec<RestoredMessage>,
}

#[derive(Debug)]
pub(super) struct RestoredMessage {
    pub(super) seq: u64,
    pub(super) body: Box<[u8]>,
    pub(super) expires_unix_ms: u64,
}

fn outbound(peer: &str) -> String {
    format!("out/{peer}")
}

fn inbound(peer: &str) -> String {
    format!("in/{peer}")
}

impl Queue {
    /// Opens the log in a state directory. `wake` is called when something was written.
    ///
    /// # Errors
    /// A sentence that names the fix.
    pub(super) fn open(
        state_dir: &Path,
        wake: Waker,
        report: &mut Vec<String>,
    ) -> Result<Queue, String> {
        let path = state_dir.join("federation");
        let disk = Directory::open(&path)
            .map_err(|error| format!("{}: {error}; let this user write to it", path.display()))?;
        let limits = Limits {
            segment_bytes: SEGMENT_BYTES,
            bytes_max: BYTES_MAX,
            when_full: WhenFull::DropOldest,
            ..Limits::default()
        };
        let config = LogConfig { limits, owner: String::new(), boot: boot_id() };
        let in_directory = |error: String| format!("{}: {error}", path.display());
        let (log, recovery) =
            Log::open(Arc::new(disk), &config).map_err(|error| in_directory(error.to_string()))?;
        for damage in &recovery.damaged {
            tracing::error!("messages to peers: {damage}");
        }
        report.push(format!("{} streams of peers in {}", recovery.streams, path.display()));
        let log = Arc::new(log);
        log.add_waker(wake);
        let threads =
            Threads::start(Arc::clone(&log)).map_err(|error| in_directory(error.to_string()))?;
        Ok(Queue { log, threads })
    }

    /// Reads what is stored of a peer.
    pub(super) fn restore(&self, peer: &str, now_unix_ms: u64) -> Result<Restored, String> {
        let name = outbound(peer);
        let state = self.log.create(&name, now_unix_ms, KEEP_MS).map_err(|e| e.to_string())?;
        let mut restored = Restored {
            stream: self.log.epoch(state.id, false),
            base: state.top + 1,
            ..Restored::default()
        };
        let mut after = 0;
        loop {
            let range = ReadRange { after, ..ReadRange::ALL };
            let read = self.log.read(&name, &range, now_unix_ms).map_err(|e| e.to_string())?;
            let Some(last) = read.records.last() else { break };
            after = last.offset;
            for record in read.records {
                let Some((expires, body)) = record.body.split_first_chunk::<EXPIRES_BYTES>() else {
                    continue;
                };
                restored.messages.push(RestoredMessage {
                    seq: record.offset,
                    body: body.into(),
                    expires_unix_ms: u64::from_be_bytes(*expires),
                });
            }
        }
        if let Some(first) = restored.messages.first() {
            restored.base = first.seq;
        }
        let newest = ReadRange { limit: 1, newest_first: true, ..ReadRange::ALL };
        let read =
            self.log.read(&inbound(peer), &newest, now_unix_ms).map_err(|e| e.to_string())?;
        if let Some(record) = read.records.first()
            && let Some((stream, taken)) = record.body.split_first_chunk::<8>()
            && let Ok(taken) = <[u8; 8]>::try_from(taken)
        {
            restored.taken = (u64::from_be_bytes(*stream), u64::from_be_bytes(taken));
        }
        Ok(restored)
    }

    /// Appends a message. Returns its number, and up to where the log must be written.
    pub(super) fn append(
        &self,
        peer: &str,
        message: &[u8],
        expires_unix_ms: u64,
    ) -> Result<(u64, u64), AppendError> {
        let mut body = Vec::with_capacity(EXPIRES_BYTES + message.len());
        body.extend_from_slice(&expires_unix_ms.to_be_bytes());
        body.extend_from_slice(message);
        let appended = self.log.append(&Append {
            stream: &outbound(peer),
            body: &body,
            expires_ms: expires_unix_ms.saturating_add(GRACE_MS),
            keep_ms: KEEP_MS,
            sync: false,
        })?;
        Ok((appended.offset, appended.end))
    }

    /// Appends how far a peer's stream was taken. Returns up to where the log must be written.
    pub(super) fn append_taken(
        &self,
        peer: &str,
        (stream, taken): (u64, u64),
        now_unix_ms: u64,
    ) -> Result<u64, AppendError> {
        let mut body = [0; CURSOR_BYTES];
        body[..8].copy_from_slice(&stream.to_be_bytes());
        body[8..].copy_from_slice(&taken.to_be_bytes());
        let appended = self.log.append(&Append {
            stream: &inbound(peer),
            body: &body,
            expires_ms: now_unix_ms.saturating_add(KEEP_MS),
            keep_ms: KEEP_MS,
            sync: false,
        })?;
        Ok(appended.end)
    }

    /// Drops the messages before a number: they are settled.
    pub(super) fn trim(&self, peer: &str, before: u64, now_unix_ms: u64) {
        let stream = &outbound(peer);
        let trim = Trim { stream, before, now_ms: now_unix_ms, keep_ms: KEEP_MS, sync: false };
        // What is not trimmed is sent again after a restart, and the peer drops it.
        let _ = self.log.trim(&trim);
    }

    /// Returns up to where the log survives the end of the process.
    pub(super) fn written(&self) -> u64 {
        self.log.written()
    }

    /// Why nothing is stored any more.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.log.failure()
    }

    pub(super) fn close(self) {
        if let Err(error) = self.threads.close() {
            tracing::error!(%error, "the log of messages to peers could not be closed");
        }
    }
}
