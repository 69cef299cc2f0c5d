//! A thread that waits for the disk in place of the admin thread.
//!
//! One fsync is in flight at a time. Everything confirmed before it began is durable when it ends; changes that arrive
//! meanwhile share the next (group commit).

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use dunlin_config::store::{Compaction, SyncHandle};
use dunlin_net::Remote;

use super::{Admin, Cx};
use crate::crash;

/// Handle of the thread.
pub(super) struct Sync {
    jobs: SyncSender<Job>,
    in_flight: bool,
    compacting: bool,
    _thread: JoinHandle<()>,
}

enum Job {
    Sync,
    Compact(Box<Compaction>),
}

impl Sync {
    pub(super) fn start(handle: SyncHandle, remote: Remote<Admin>) -> io::Result<Sync> {
        // At most one job of each kind is in flight.
        let (jobs, wanted) = sync_channel(2);
        let thread = std::thread::Builder::new()
            .name("dunlin-disk".into())
            .spawn(move || run(&handle, &remote, &wanted))?;
        Ok(Sync { jobs, in_flight: false, compacting: false, _thread: thread })
    }
}

fn run(handle: &SyncHandle, remote: &Remote<Admin>, wanted: &Receiver<Job>) {
    while let Ok(job) = wanted.recv() {
        let delivered = match job {
            Job::Sync => {
                crash::reach("sync");
                let outcome = handle.sync();
                crash::reach("synced");
                remote.run(move |admin, cx| admin.synced(cx, outcome))
            }
            Job::Compact(compaction) => {
                crash::reach("compact");
                let outcome = compaction.run();
                crash::reach("compacted");
                if let Some(error) = outcome.error() {
                    tracing::warn!(%error, "the log of the configuration could not be compacted");
                }
                remote.run(move |admin, _| {
                    if let Some(sync) = &mut admin.sync {
                        sync.compacting = false;
                    }
                    admin.store.handle_compacted(outcome);
                })
            }
        };
        if delivered.is_err() {
            return;
        }
    }
}

impl Admin {
    /// Begins an fsync if a response waits for one.
    pub(super) fn sync_if_wanted(&mut self) {
        if self.awaits_disk() {
            self.sync_now();
        }
    }

    /// Makes changes durable that no response waits for. Called once a second.
    pub(super) fn sync_rest(&mut self) {
        if self.durable < self.store.head().revision {
            self.sync_now();
        }
    }

    fn sync_now(&mut self) {
        if let Some(sync) = &mut self.sync
            && !sync.in_flight
        {
            sync.in_flight = sync.jobs.try_send(Job::Sync).is_ok();
        }
    }

    fn synced(&mut self, cx: &mut Cx, outcome: io::Result<u64>) {
        if let Some(sync) = &mut self.sync {
            sync.in_flight = false;
        }
        match outcome {
            Ok(revision) => {
                self.durable = self.durable.max(revision);
                self.handle_synced(cx);
                self.sync_if_wanted();
            }
            Err(error) => {
                tracing::error!(%error, "the log could not be synced");
                self.handle_sync_error(cx, &error);
            }
        }
    }

    pub(super) fn compact_if_due(&mut self) {
        let Some(sync) = &mut self.sync else { return };
        crash::reach("compaction");
        if !sync.compacting
            && let Some(compaction) = self.store.poll_compaction()
        {
            sync.compacting = sync.jobs.try_send(Job::Compact(Box::new(compaction))).is_ok();
        }
    }
}
