//! Steps of a commit at which a test kills the whole process.
//!
//! With the feature `crash-points`, which the tests of the command line alone ask for, every step counts and may be
//! the last: `DUNLIN_CRASH_AT=confirm>write-half:2` kills the process as `kill -9` does when it comes to that step for
//! the second time, `DUNLIN_CRASH_TRACE=FILE` writes down each step it comes to. In any other build [`reach`] is
//! empty, the directory is the directory, and those variables are ignored.

#[cfg(feature = "crash-points")]
pub(crate) use self::armed::{directory, reach};
#[cfg(not(feature = "crash-points"))]
pub(crate) use self::unarmed::{directory, reach};

/// Whether a worker must refuse this configuration, so that a test observes a rollback.
#[inline(always)]
pub(crate) fn is_refused(worker: usize, config: &dunlin_config::Config) -> bool {
    cfg!(any(test, feature = "crash-points"))
        && worker == 1
        && config.server.name == "refused by worker 1"
}

#[cfg(not(feature = "crash-points"))]
mod unarmed {
    use dunlin_config::store::{Directory, Disk};

    /// Does nothing in this build.
    #[inline(always)]
    pub(crate) fn reach(_: &'static str) {}

    pub(crate) fn directory(directory: Directory) -> Box<dyn Disk> {
        Box::new(directory)
    }
}

#[cfg(feature = "crash-points")]
mod armed {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::fs::OpenOptions;
    use std::io::{self, Write};
    use std::path::PathBuf;
    use std::sync::{Arc, LazyLock, Mutex, PoisonError};

    use dunlin_config::store::{Directory, Disk, DiskFile};
    use rustix::process::{Signal, getpid, kill_process};

    /// The plan of the environment variables; `None` without them.
    static PLAN: LazyLock<Option<Plan>> = LazyLock::new(Plan::of_environment);

    thread_local! {
        /// The step this thread reached last; its disk operations belong to that step.
        static STEP: Cell<&'static str> = const { Cell::new("start") };
    }

    struct Plan {
        at: Option<(String, u32)>,
        /// Opened each time: a worker has its own descriptor table, where another thread's descriptors are invalid.
        trace: Option<PathBuf>,
        reached: Mutex<HashMap<String, u32>>,
    }

    impl Plan {
        fn of_environment() -> Option<Plan> {
            let at = std::env::var("DUNLIN_CRASH_AT").ok().and_then(|at| {
                let (step, time) = at.rsplit_once(':')?;
                Some((step.to_owned(), time.parse().ok()?))
            });
            let trace = std::env::var_os("DUNLIN_CRASH_TRACE").map(PathBuf::from);
            if at.is_none() && trace.is_none() {
                return None;
            }
            tracing::warn!(?at, "this process counts the steps of its commits, and may die of one");
            Some(Plan { at, trace, reached: Mutex::default() })
        }

        fn reach(&self, step: &str) {
            // Held until the end, so that no thread continues while this one dies.
            let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
            let times = reached.entry(step.to_owned()).or_default();
            *times += 1;
            if let Some(path) = &self.trace {
                // The test detects a missing line.
                let trace = OpenOptions::new().create(true).append(true).open(path);
                let _ = trace.and_then(|mut trace| writeln!(trace, "{step}"));
            }
            if self.at.as_ref().is_some_and(|(at, time)| at == step && time == times) {
                // Nothing is flushed, dropped or logged.
                let _ = kill_process(getpid(), Signal::KILL);
                loop {
                    std::thread::park();
                }
            }
        }
    }

    /// A step is reached.
    pub(crate) fn reach(step: &'static str) {
        STEP.set(step);
        if let Some(plan) = &*PLAN {
            plan.reach(step);
        }
    }

    /// A step within the one this thread reached last.
    fn reach_within(what: &str) {
        if let Some(plan) = &*PLAN {
            plan.reach(&format!("{}>{what}", STEP.get()));
        }
    }

    /// The directory, each of whose steps counts.
    pub(crate) fn directory(directory: Directory) -> Box<dyn Disk> {
        Box::new(Deadly(directory))
    }

    struct Deadly(Directory);

    struct DeadlyFile(Arc<dyn DiskFile>);

    fn deadly(file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(DeadlyFile(file))
    }

    impl Disk for Deadly {
        fn list(&self) -> io::Result<Vec<String>> {
            self.0.list()
        }

        fn read(&self, name: &str) -> io::Result<Vec<u8>> {
            self.0.read(name)
        }

        fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
            reach_within("create");
            self.0.create(name).map(deadly)
        }

        fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
            self.0.open(name).map(deadly)
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            reach_within("rename");
            self.0.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            reach_within("remove");
            self.0.remove(name)
        }

        fn sync(&self) -> io::Result<()> {
            reach_within("sync-names");
            self.0.sync()
        }
    }

    impl DiskFile for DeadlyFile {
        fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            let (half, rest) = bytes.split_at(bytes.len() / 2);
            reach_within("write");
            self.0.write_at(offset, half)?;
            reach_within("write-half");
            self.0.write_at(offset + half.len() as u64, rest)
        }

        fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read_at(offset, bytes)
        }

        fn reserve(&self, bytes: u64) -> io::Result<()> {
            reach_within("reserve");
            self.0.reserve(bytes)
        }

        fn truncate(&self, bytes: u64) -> io::Result<()> {
            reach_within("truncate");
            self.0.truncate(bytes)
        }

        fn sync(&self) -> io::Result<()> {
            reach_within("sync");
            self.0.sync()
        }
    }
}
