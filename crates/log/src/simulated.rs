//! A [`Disk`] in memory for tests. It loses power between two steps and forgets what was not synced, page by page and in
//! any order; it tears pages, flips bits, fills up, refuses to sync, and is mounted read-only.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};

/// What a disk writes at once, or loses at once.
const PAGE_BYTES: usize = 512;

/// The file system of a machine. Clones are the same one.
#[derive(Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<Machine>>);

#[derive(Default)]
struct Machine {
    files: Names,
    /// The names after a loss of power, unless a later change of them happens to have reached the disk.
    synced_names: Names,
    /// Bytes there is room for; `None`: any number.
    room: Option<usize>,
    /// Steps until the process dies; each write, sync, create, rename, truncation and removal is one.
    steps_left: Option<usize>,
    steps: usize,
    syncs_fail: bool,
    is_read_only: bool,
}

type Names = BTreeMap<String, Arc<Mutex<Contents>>>;

#[derive(Clone, Default)]
struct Contents {
    bytes: Vec<u8>,
    synced: Vec<u8>,
    /// Pages written since the last sync.
    dirty: BTreeSet<usize>,
}

impl Contents {
    fn whole(bytes: Vec<u8>) -> Arc<Mutex<Contents>> {
        Arc::new(Mutex::new(Contents { synced: bytes.clone(), bytes, dirty: BTreeSet::new() }))
    }

    fn touch(&mut self, from: usize, to: usize) {
        self.dirty.extend(from / PAGE_BYTES..to.div_ceil(PAGE_BYTES));
    }

    /// What is left of the file: each page that was not synced is there, or as before, or a part of both.
    fn after_power_cut(&self, random: &mut Random) -> Vec<u8> {
        let length = match random.below(2) {
            0 => self.synced.len(),
            _ => self.bytes.len(),
        };
        let mut left = self.synced.clone();
        left.resize(length, 0);
        for page in &self.dirty {
            let begin = page * PAGE_BYTES;
            let end = (begin + PAGE_BYTES).min(self.bytes.len()).min(length);
            let torn = match random.below(4) {
                0 | 1 => begin,
                2 => end,
                _ => begin + random.below(PAGE_BYTES),
            };
            if begin < end {
                let torn = torn.min(end);
                left[begin..torn].copy_from_slice(&self.bytes[begin..torn]);
            }
        }
        left
    }
}

/// Numbers that follow from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % end as u64) as usize
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimulatedDisk {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        lock(&self.0)
    }

    /// Has room for so many bytes; `None`: any number.
    pub fn set_room(&self, bytes: Option<usize>) {
        self.machine().room = bytes;
    }

    /// Whether syncs fail. A sync that fails drops what was to be synced, as Linux does, and a later one succeeds.
    pub fn set_syncs_fail(&self, fail: bool) {
        self.machine().syncs_fail = fail;
    }

    /// Whether it is mounted read-only.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.machine().is_read_only = is_read_only;
    }

    /// Dies after so many more steps; everything is refused from then on.
    pub fn die_after(&self, steps: usize) {
        self.machine().steps_left = Some(steps);
    }

    /// The steps so far.
    pub fn steps(&self) -> usize {
        self.machine().steps
    }

    /// The bytes of all files.
    pub fn used(&self) -> usize {
        self.machine().used()
    }

    /// The machine after the process was killed: what was written is there.
    pub fn after_kill(&self) -> SimulatedDisk {
        let files = self.machine().files.clone();
        Self::of(files.iter().map(|(name, file)| (name.clone(), lock(file).bytes.clone())))
    }

    /// The machine after a loss of power: what was synced is there, and by lot some of the rest.
    pub fn after_power_cut(&self, random: &mut Random) -> SimulatedDisk {
        let machine = self.machine();
        let all: BTreeSet<&String> =
            machine.files.keys().chain(machine.synced_names.keys()).collect();
        let left = all.into_iter().filter_map(|name| {
            let names = match random.below(2) {
                0 => &machine.files,
                _ => &machine.synced_names,
            };
            Some((name.clone(), lock(names.get(name)?).after_power_cut(random)))
        });
        Self::of(left.collect::<Vec<_>>())
    }

    fn of(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> SimulatedDisk {
        let files: Names =
            files.into_iter().map(|(name, bytes)| (name, Contents::whole(bytes))).collect();
        let synced_names = files.clone();
        SimulatedDisk(Arc::new(Mutex::new(Machine { files, synced_names, ..Machine::default() })))
    }

    /// The names of all files.
    pub fn names(&self) -> Vec<String> {
        self.machine().files.keys().cloned().collect()
    }

    /// The contents of a file; empty if there is none.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.machine().files.get(name).map_or_else(Vec::new, |file| lock(file).bytes.clone())
    }

    /// Replaces a file behind the back of whoever uses the disk. Open files are not affected.
    pub fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        let mut machine = self.machine();
        let contents = Contents::whole(bytes);
        machine.synced_names.insert(name.to_owned(), Arc::clone(&contents));
        machine.files.insert(name.to_owned(), contents);
    }

    /// Flips a bit of a file, which open files see.
    pub fn flip(&self, name: &str, bit: usize) {
        if let Some(file) = self.machine().files.get(name) {
            let mut contents = lock(file);
            contents.bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(byte) = contents.synced.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }
}

impl Machine {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        if self.is_read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        match &mut self.steps_left {
            Some(0) => Err(io::Error::other("the process is dead")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn used(&self) -> usize {
        self.files.values().map(|file| lock(file).bytes.len()).sum()
    }

    fn room_for(&self, more: usize) -> io::Result<()> {
        match self.room {
            Some(room) if more > 0 && self.used() + more > room => {
                Err(ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

struct File {
    disk: SimulatedDisk,
    contents: Arc<Mutex<Contents>>,
}

impl Disk for SimulatedDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        match self.machine().files.get(name) {
            Some(file) => Ok(lock(file).bytes.clone()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut machine = self.machine();
        machine.step()?;
        let contents = Arc::new(Mutex::new(Contents::default()));
        machine.files.insert(name.to_owned(), Arc::clone(&contents));
        Ok(Arc::new(File { disk: self.clone(), contents }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let machine = self.machine();
        if machine.is_read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        let contents = Arc::clone(machine.files.get(name).ok_or(ErrorKind::NotFound)?);
        Ok(Arc::new(File { disk: self.clone(), contents }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut machine = self.machine();
        machine.step()?;
        let file = machine.files.remove(from).ok_or(ErrorKind::NotFound)?;
        machine.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut machine = self.machine();
        machine.step()?;
        machine.files.remove(name).map(drop).ok_or(ErrorKind::NotFound.into())
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
        let mut machine = self.disk.machine();
        let dead = machine.step();
        let offset = offset as usize;
        let length = lock(&self.contents).bytes.len();
        let room = machine.room_for((offset + bytes.len()).saturating_sub(length));
        let mut contents = lock(&self.contents);
        // Whoever dies or finds no room has written the first half.
        let whole = dead.is_ok() && room.is_ok();
        let written = if whole { bytes } else { &bytes[..bytes.len() / 2] };
        let end = (offset + written.len()).max(length);
        if !machine.is_read_only && (room.is_ok() || end <= length) {
            contents.bytes.resize(end, 0);
            contents.bytes[offset..offset + written.len()].copy_from_slice(written);
            contents.touch(offset, offset + written.len());
        }
        dead.and(room)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let contents = lock(&self.contents);
        let rest = contents.bytes.get(offset as usize..).unwrap_or_default();
        let read = rest.len().min(bytes.len());
        bytes[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut machine = self.disk.machine();
        machine.step()?;
        let length = lock(&self.contents).bytes.len();
        machine.room_for((bytes as usize).saturating_sub(length))?;
        let mut contents = lock(&self.contents);
        contents.bytes.resize(length.max(bytes as usize), 0);
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.disk.machine().step()?;
        let mut contents = lock(&self.contents);
        contents.bytes.truncate(bytes as usize);
        contents.dirty.retain(|page| page * PAGE_BYTES < bytes as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut machine = self.disk.machine();
        machine.step()?;
        let mut contents = lock(&self.contents);
        contents.dirty.clear();
        if machine.syncs_fail {
            return Err(io::Error::other("the disk does not answer"));
        }
        contents.synced = contents.bytes.clone();
        Ok(())
    }
}
