//! A disk in memory that fills up, loses power between two steps and forgets what was not synced.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use dunlin_config::store::{Disk, DiskFile, InitialConfig, Origin, Recovery, Store};
use dunlin_config::{Change, Config, Pointer};

/// The file system of a machine.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<Machine>>);

#[derive(Default)]
struct Machine {
    files: BTreeMap<String, Arc<Mutex<Contents>>>,
    /// What the directory would list after a loss of power.
    synced_names: BTreeMap<String, Arc<Mutex<Contents>>>,
    /// Bytes there is room for; `None`: any number.
    room: Option<usize>,
    /// Steps until the process dies; each write, sync, create, rename and remove is one.
    steps_left: Option<usize>,
    steps: usize,
    syncs_fail: bool,
}

#[derive(Clone, Default)]
struct Contents {
    bytes: Vec<u8>,
    synced: Vec<u8>,
}

impl Memory {
    pub fn with_room(bytes: usize) -> Memory {
        let disk = Memory::default();
        disk.machine().room = Some(bytes);
        disk
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().expect("no test panics with it")
    }

    pub fn set_room(&self, bytes: Option<usize>) {
        self.machine().room = bytes;
    }

    pub fn set_syncs_fail(&self, fail: bool) {
        self.machine().syncs_fail = fail;
    }

    pub fn used(&self) -> usize {
        self.machine().files.values().map(|file| file.lock().unwrap().bytes.len()).sum()
    }

    /// Dies after so many steps; everything is refused from then on.
    pub fn die_after(&self, steps: usize) {
        self.machine().steps_left = Some(steps);
    }

    pub fn steps(&self) -> usize {
        self.machine().steps
    }

    /// The machine after the process was killed: what was written is there.
    pub fn after_kill(&self) -> Memory {
        self.copy(|contents| contents.bytes.clone(), false)
    }

    /// The machine after a loss of power: only what was synced is there, of the names too.
    pub fn after_power_loss(&self) -> Memory {
        self.copy(|contents| contents.synced.clone(), true)
    }

    fn copy(&self, bytes: impl Fn(&Contents) -> Vec<u8>, synced: bool) -> Memory {
        let machine = self.machine();
        let files = if synced { &machine.synced_names } else { &machine.files };
        let copy = |file: &Arc<Mutex<Contents>>| {
            let bytes = bytes(&file.lock().unwrap());
            Arc::new(Mutex::new(Contents { synced: bytes.clone(), bytes }))
        };
        let files: BTreeMap<_, _> =
            files.iter().map(|(name, file)| (name.clone(), copy(file))).collect();
        let synced_names = files.clone();
        Memory(Arc::new(Mutex::new(Machine { files, synced_names, ..Machine::default() })))
    }

    pub fn names(&self) -> Vec<String> {
        self.machine().files.keys().cloned().collect()
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.machine().files[name].lock().unwrap().bytes.clone()
    }

    pub fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        let contents = Contents { synced: bytes.clone(), bytes };
        self.machine().files.insert(name.to_owned(), Arc::new(Mutex::new(contents)));
    }
}

impl Machine {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        match &mut self.steps_left {
            Some(0) => Err(io::Error::other("the process is dead")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn room_for(&self, more: usize) -> io::Result<()> {
        let used: usize = self.files.values().map(|file| file.lock().unwrap().bytes.len()).sum();
        match self.room {
            Some(room) if used + more > room => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

struct File {
    machine: Memory,
    contents: Arc<Mutex<Contents>>,
}

impl Disk for Memory {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        match self.machine().files.get(name) {
            Some(file) => Ok(file.lock().unwrap().bytes.clone()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut machine = self.machine();
        machine.step()?;
        let contents = Arc::new(Mutex::new(Contents::default()));
        machine.files.insert(name.to_owned(), Arc::clone(&contents));
        Ok(Arc::new(File { machine: self.clone(), contents }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let machine = self.machine();
        let contents = machine.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(File { machine: self.clone(), contents: Arc::clone(contents) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut machine = self.machine();
        machine.step()?;
        let file = machine.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        machine.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut machine = self.machine();
        machine.step()?;
        machine.files.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        let mut machine = self.machine();
        machine.step()?;
        machine.synced_names = machine.files.clone();
        Ok(())
    }
}

impl DiskFile for File {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut machine = self.machine.machine();
        let dead = machine.step();
        let offset = offset as usize;
        let length = self.contents.lock().unwrap().bytes.len();
        let grows = (offset + bytes.len()).saturating_sub(length);
        let room = machine.room_for(grows);
        let mut contents = self.contents.lock().unwrap();
        // Whoever dies or finds no room has written the first half.
        let whole = dead.is_ok() && room.is_ok();
        let written = if whole { bytes } else { &bytes[..bytes.len() / 2] };
        let end = (offset + written.len()).max(length);
        if room.is_ok() || end <= length {
            contents.bytes.resize(end, 0);
            contents.bytes[offset..offset + written.len()].copy_from_slice(written);
        }
        dead.and(room)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut machine = self.machine.machine();
        machine.step()?;
        let length = self.contents.lock().unwrap().bytes.len();
        machine.room_for((bytes as usize).saturating_sub(length))?;
        let mut contents = self.contents.lock().unwrap();
        contents.bytes.resize(length.max(bytes as usize), 0);
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.machine.machine().step()?;
        self.contents.lock().unwrap().bytes.truncate(bytes as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut machine = self.machine.machine();
        machine.step()?;
        if machine.syncs_fail {
            return Err(io::Error::other("the disk does not answer"));
        }
        let mut contents = self.contents.lock().unwrap();
        contents.synced = contents.bytes.clone();
        Ok(())
    }
}

pub fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).expect("a pointer")
}

pub fn put(at: &str, value: serde_json::Value) -> Change {
    Change::Put { pointer: pointer(at), value }
}

pub fn origin(who: &str) -> Origin {
    Origin { who: who.into(), from: "127.0.0.1:1".into(), at_unix_ms: 1_000, ..Origin::default() }
}

pub fn begin(config: Config) -> InitialConfig {
    InitialConfig { config: Ok(config), name: "dunlin.toml".into(), judge: |_, _, _| {} }
}

pub fn open(disk: &Memory) -> (Store, Recovery) {
    open_with(disk, Config::default())
}

pub fn open_with(disk: &Memory, config: Config) -> (Store, Recovery) {
    Store::open(Some(Box::new(disk.clone())), begin(config), 500).expect("a store")
}

/// Prepares, appends and confirms one change; gives its revision.
pub fn commit(store: &mut Store, change: &Change) -> u64 {
    let prepared = store.head().prepare(change, None).expect("a valid change");
    if prepared.is_unchanged() {
        return store.head().revision;
    }
    store.append(&[(prepared, origin("ada"))]).expect("room in the log");
    store.confirm().revision
}
