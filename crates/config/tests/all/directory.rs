//! The store on a real directory: one process at a time, a process that is killed, a file that may not grow.

#![allow(clippy::unwrap_used)]

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::kit::{begin, commit, origin, put};
use dunlin_config::Config;
use dunlin_config::store::{Directory, Disk, DiskFile, Store};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;

/// One test at a time: a child that another one is starting holds this one's lock until it is begun.
static ALONE: Mutex<()> = Mutex::new(());

/// Says what the child is to do; without it, it is no child.
const ROLE: &str = "DUNLIN_TEST_ROLE";
const PATH: &str = "DUNLIN_TEST_PATH";

fn open(path: &Path) -> Store {
    let disk = Directory::open(path).expect("a directory");
    let (store, recovery) = Store::open(Some(Box::new(disk)), begin(Config::default()), 0).unwrap();
    // A record may be torn, or not be confirmed; a snapshot is there whole or not at all.
    let snapshot = recovery.warnings.iter().find(|warning| !warning.file.ends_with(".log"));
    assert_eq!(snapshot, None);
    store
}

#[test]
fn a_directory_belongs_to_one_process_at_a_time() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = tempfile::tempdir().unwrap();
    let mut store = open(path.path());
    commit(&mut store, &put("/server/name", json!("a")));
    let second = Directory::open(path.path()).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::WouldBlock);
    assert!(second.to_string().contains("is in use by another process"));
    store.sync_handle().unwrap().sync().unwrap();
    drop(store);
    assert_eq!(&*open(path.path()).head().config.server.name, "a");
}

/// Keys stand in it: it is made for its owner alone, and so are the files.
#[test]
fn a_directory_that_is_made_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("state/of/dunlin");
    let mut store = open(&path);
    commit(&mut store, &put("/server/name", json!("a")));
    store.sync_handle().unwrap().sync().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let files: Vec<_> =
        std::fs::read_dir(&path).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 1, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// A directory whose process is killed at one of its steps, or between two.
struct Deadly {
    directory: Directory,
    steps: Arc<Steps>,
}

struct Steps {
    left: AtomicUsize,
}

impl Steps {
    fn step<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SIGKILL: nothing is flushed, dropped or reported.
            kill_process(getpid(), Signal::KILL)?;
        }
        work()
    }
}

struct File {
    file: Arc<dyn DiskFile>,
    steps: Arc<Steps>,
}

impl Deadly {
    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(File { file, steps: Arc::clone(&self.steps) })
    }
}

impl Disk for Deadly {
    fn list(&self) -> io::Result<Vec<String>> {
        self.directory.list()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.directory.read(name)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.steps.step(|| self.directory.create(name)).map(|file| self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.directory.open(name).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.steps.step(|| self.directory.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.steps.step(|| self.directory.remove(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.steps.step(|| self.directory.sync())
    }
}

impl DiskFile for File {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // Killed before it, or with half of it written.
        let half = bytes.len() / 2;
        self.steps.step(|| self.file.write_at(offset, &bytes[..half]))?;
        self.steps.step(|| self.file.write_at(offset + half as u64, &bytes[half..]))
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, bytes)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.steps.step(|| self.file.reserve(bytes))
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.steps.step(|| self.file.truncate(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.steps.step(|| self.file.sync())
    }
}

/// The other process; run by the tests below, and nothing without them.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = std::env::var(PATH).unwrap();
    match role.parse::<usize>() {
        Ok(step) => child_that_dies(Path::new(&path), step),
        Err(_) => child_that_may_not_write_much(Path::new(&path)),
    }
}

fn report(what: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "\nreported {what}").and_then(|()| out.flush()).unwrap();
}

/// Four changes, each reported once it is durable; the number is the state.
fn child_that_dies(path: &Path, step: usize) {
    let steps = Arc::new(Steps { left: AtomicUsize::new(step) });
    let disk = Deadly { directory: Directory::open(path).unwrap(), steps };
    let (mut store, _) = Store::open(Some(Box::new(disk)), begin(Config::default()), 0).unwrap();
    let sync = store.sync_handle().unwrap();
    for number in 1..=4_u64 {
        commit(&mut store, &put("/limits/connections_max", json!(number)));
        assert_eq!(sync.sync().unwrap(), store.head().revision);
        report(&number.to_string());
    }
    report("done");
}

/// Changes until one is refused; then looks whether serving could go on.
fn child_that_may_not_write_much(path: &Path) {
    let mut store = open(path);
    let text = "x".repeat(100_000);
    for number in 1.. {
        let account =
            json!({"project_id": number.to_string(), "client_email": "e", "private_key": text});
        let change = put("/push/fcm/app", json!({"service_account": account.to_string()}));
        let prepared = store.head().prepare(&change, None).unwrap();
        match store.append(&[(prepared, origin("ada"))]) {
            Ok(()) => drop(store.confirm()),
            Err(error) => {
                assert!(error.to_string().contains("cannot be written to the log"), "{error}");
                break;
            }
        }
    }
    assert_eq!(store.failure(), None);
    // What was reserved takes the small ones even now, and what was refused is nowhere.
    let back = store.roll_back("a worker refused", 5);
    report(&back.revision.to_string());
    report("done");
}

/// Runs the child and gives what it reported.
fn run(role: &str, path: &Path, limit: Option<u32>) -> Vec<String> {
    let test = std::env::current_exe().unwrap();
    let mut command = match limit {
        None => Command::new(&test),
        Some(blocks) => {
            // An ignored signal stays ignored over exec: the write fails in the place of the process.
            let mut shell = Command::new("sh");
            let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
            shell.args(["-c", &script]).arg(&test);
            shell
        }
    };
    let mut child = command
        .args(["--exact", "directory::child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(PATH, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reported = lines
        .map_while(Result::ok)
        .filter_map(|line| Some(line.strip_prefix("reported ")?.to_owned()));
    let reported = reported.collect();
    child.wait().unwrap();
    reported
}

#[test]
fn a_process_killed_at_any_step_leaves_what_it_acknowledged_or_the_change_under_way() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut finished = false;
    for step in 1..100 {
        let path = tempfile::tempdir().unwrap();
        let reported = run(&step.to_string(), path.path(), None);
        finished = reported.last().is_some_and(|last| last == "done");
        let acknowledged =
            reported.iter().filter_map(|reported| reported.parse().ok()).max().unwrap_or(0);
        let store = open(path.path());
        let default = Config::default().limits.connections_max;
        let found = match store.head().config.limits.connections_max {
            none if none == default => 0,
            number => number,
        };
        assert!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "step {step}: {reported:?}, {found}"
        );
        if finished {
            assert_eq!(found, 4);
            break;
        }
    }
    assert!(finished, "a hundred steps are more than there are");
}

#[test]
fn where_a_file_may_not_grow_the_change_is_refused_and_the_rest_stands() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = tempfile::tempdir().unwrap();
    let reported = run("limit", path.path(), Some(4_096));
    assert_eq!(reported.last().map(String::as_str), Some("done"), "{reported:?}");
    let mut store = open(path.path());
    assert_eq!(reported[0], store.head().revision.to_string());
    let revisions = commit(&mut store, &put("/server/name", json!("later")));
    assert_eq!(open_again(store, path.path()).head().revision, revisions);
}

fn open_again(store: Store, path: &Path) -> Store {
    drop(store);
    open(path)
}
