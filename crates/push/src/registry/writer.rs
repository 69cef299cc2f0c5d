//! Group commit for changes of many callers: all changes that arrive while a group is being written share the next
//! transaction and its sync.

use std::sync::Arc;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Change, Registry, RegistryError};

/// Capacity of the queue; further callers wait for space in it.
const WAITING_MAX: usize = 4_096;
/// A group with this many devices is full, so that no caller waits for seconds for the changes of others.
const GROUP_DEVICES_MAX: usize = 8_192;

/// Waits for the result of a change.
type Done = oneshot::Sender<Result<usize, RegistryError>>;

/// Takes changes from many callers. It ends with its runtime, or when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Writer {
    waiting: mpsc::Sender<(Change, Option<Done>)>,
    judged: Arc<Notify>,
}

impl Writer {
    /// Starts to write, on blocking threads of the current `tokio` runtime.
    ///
    /// # Panics
    /// Outside of a `tokio` runtime.
    pub fn start(registry: Arc<Registry>) -> Writer {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let judged = Arc::new(Notify::new());
        tokio::spawn(write_groups(registry, receiver, Arc::clone(&judged)));
        Writer { waiting: sender, judged }
    }

    /// Writes a change and waits until it is on the disk. Returns its result from [`Registry::apply`].
    ///
    /// # Errors
    /// Those of [`Registry::apply`].
    pub async fn write(&self, change: Change) -> Result<usize, RegistryError> {
        let (done, answer) = oneshot::channel();
        let sent = self.waiting.send((change, Some(done))).await;
        sent.map_err(|_| RegistryError::Closed)?;
        answer.await.unwrap_or(Err(RegistryError::Closed))
    }

    /// Queues a change; waits only for space in the queue.
    pub async fn submit(&self, change: Change) {
        // The writer ends only with the process.
        let _ = self.waiting.send((change, None)).await;
    }

    /// Returns a future that ends after the next write of an entry: the feed may have something new.
    pub fn next(&self) -> Notified<'_> {
        self.judged.notified()
    }

    /// Wakes those that wait for the next entry.
    pub fn wake(&self) {
        self.judged.notify_waiters();
    }
}

async fn write_groups(
    registry: Arc<Registry>,
    mut waiting: mpsc::Receiver<(Change, Option<Done>)>,
    judged: Arc<Notify>,
) {
    while let Some((change, done)) = waiting.recv().await {
        let mut devices = change.devices();
        let (mut group, mut callers) = (vec![change], vec![done]);
        while devices < GROUP_DEVICES_MAX
            && let Ok((change, done)) = waiting.try_recv()
        {
            devices += change.devices();
            group.push(change);
            callers.push(done);
        }
        let feeds = group.iter().any(|change| matches!(change, Change::Invalidate(_)));
        let registry = Arc::clone(&registry);
        let applied = tokio::task::spawn_blocking(move || registry.apply(&group)).await;
        let applied = applied.unwrap_or(Err(RegistryError::Closed));
        if let Err(error) = &applied {
            tracing::error!(%error, changes = callers.len(), "changes of the device registry are lost");
        }
        let mut answers = applied.map(Vec::into_iter);
        for caller in callers {
            let answer = match &mut answers {
                Ok(answers) => answers.next().unwrap_or(Err(RegistryError::Closed)),
                Err(error) => Err(error.clone()),
            };
            if let Some(caller) = caller {
                // The caller may have been dropped.
                let _ = caller.send(answer);
            }
        }
        if feeds {
            judged.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, Platform};
    use super::*;
    use crate::store::disk::Disk;

    fn open(disk: &Disk) -> Registry {
        Registry::with(disk.open(super::super::make).unwrap()).unwrap()
    }

    fn register(n: usize) -> Change {
        let app = "com.example.app".to_owned();
        let devices = vec![Device { platform: Platform::Apns, app, token: format!("{n:064x}") }];
        Change::Register { user: format!("user-{n}"), devices, now_ms: 1 }
    }

    #[tokio::test]
    async fn all_that_wait_share_one_wait_for_the_disk() {
        let disk = Disk::default();
        let registry = Arc::new(open(&disk));
        let before = disk.syncs();
        registry.apply(&[register(1_000)]).unwrap();
        let syncs_of_one = disk.syncs() - before;
        let writer = Writer::start(Arc::clone(&registry));
        let before = disk.syncs();
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..500 {
            let writer = writer.clone();
            callers.spawn(async move { writer.write(register(n)).await.unwrap() });
        }
        assert_eq!(callers.join_all().await.into_iter().sum::<usize>(), 500);
        // The first change may have been written alone.
        assert!(disk.syncs() - before <= 2 * syncs_of_one, "{} syncs", disk.syncs() - before);
        assert_eq!(registry.len().unwrap(), 501);
    }

    #[tokio::test]
    async fn what_has_been_answered_is_there_after_a_power_cut() {
        let disk = Disk::default();
        let registry = Arc::new(open(&disk));
        let writer = Writer::start(registry);
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..30 {
            let (writer, disk) = (writer.clone(), disk.clone());
            callers.spawn(async move {
                // Spreads the changes over several groups.
                for _ in 0..n % 5 {
                    tokio::task::yield_now().await;
                }
                writer.write(register(n)).await.unwrap();
                let left = open(&disk.after_power_cut());
                assert_eq!(left.devices(&format!("user-{n}")).unwrap().len(), 1);
            });
        }
        callers.join_all().await;
    }

    #[tokio::test]
    async fn a_full_disk_refuses_changes_and_takes_them_again_once_it_has_room() {
        let disk = Disk::default();
        let registry = Arc::new(open(&disk));
        let writer = Writer::start(Arc::clone(&registry));
        writer.write(register(1)).await.unwrap();
        disk.set_full(true);
        for n in 2..4 {
            let refused = writer.write(register(n)).await.unwrap_err();
            assert!(matches!(refused, RegistryError::Store(_)), "{refused}");
        }
        disk.set_full(false);
        assert_eq!(writer.write(register(4)).await.unwrap(), 1);
        assert_eq!(registry.len().unwrap(), 2);
    }

    #[tokio::test]
    async fn a_change_that_is_invalid_is_refused_and_the_others_of_its_group_are_written() {
        let registry = Arc::new(Registry::in_memory().unwrap());
        let writer = Writer::start(Arc::clone(&registry));
        let nobody = Change::Register { user: String::new(), devices: Vec::new(), now_ms: 1 };
        let (one, none, two) = tokio::join!(
            writer.write(register(1)),
            writer.write(nobody),
            writer.write(register(2))
        );
        assert!(one.is_ok() && two.is_ok());
        assert!(matches!(none, Err(RegistryError::Invalid(why)) if why.starts_with("user")));
        assert_eq!(registry.len().unwrap(), 2);
    }
}
