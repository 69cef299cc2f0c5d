//! The memory that this process may use, and the bounds in bytes that follow from it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use dunlin_config::Limits;

/// The largest bound that follows from the memory; more is set in the configuration.
const SHARE_MAX: u64 = 1 << 30;
/// The smallest.
const SHARE_MIN: u64 = 1 << 20;
/// Messages, commands and calls of proxies that wait have a bound of `pending_bytes_max` each.
const PENDING: usize = 3;

/// The memory that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The memory of the machine, or the least limit of the control groups that the process is in.
    pub bytes_max: u64,
    /// What is left below the limits of the control groups; `None` if there is no limit.
    pub bytes_left: Option<u64>,
    /// What the limit is that of.
    pub limited_by: MemoryLimit,
}

/// What limits the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The machine has no more.
    Machine,
    /// A control group, as of a container or a unit of systemd.
    ControlGroup,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryLimit::Machine => "this machine",
            MemoryLimit::ControlGroup => "its control group",
        })
    }
}

impl Memory {
    /// Reads the memory of the machine and the limits of control groups, version 1 and 2, of this process and of those above
    /// it. `None` if the kernel does not tell.
    pub fn read() -> Option<Memory> {
        Memory::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Option<Memory> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let total = total.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
        let mut memory =
            Memory { bytes_max: total, bytes_left: None, limited_by: MemoryLimit::Machine };
        for group in control_groups(root) {
            let number =
                |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
            // Beyond `memory.high` a group is slowed down until it is of no use.
            let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
            // Version 1 writes a number larger than any memory for "no limit"; version 2 writes "max".
            let limit = limits.iter().filter_map(|file| number(file)).min();
            let Some(limit) = limit.filter(|limit| *limit < total) else { continue };
            let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"));
            let left = limit.saturating_sub(used.unwrap_or(0));
            memory.bytes_left = Some(memory.bytes_left.map_or(left, |least| least.min(left)));
            if limit < memory.bytes_max {
                memory.bytes_max = limit;
                memory.limited_by = MemoryLimit::ControlGroup;
            }
        }
        Some(memory)
    }
}

/// Returns the directories of the control groups of this process that limit memory: its own and those above, as far as they
/// are visible.
fn control_groups(root: &Path) -> Vec<PathBuf> {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (own, mounts) = (text("proc/self/cgroup"), text("proc/self/mountinfo"));
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        for (mounted, mount_point) in mounts.lines().filter_map(|line| mount_of(line, is_v2)) {
            let mount_point = root.join(mount_point.trim_start_matches('/'));
            // A container may see its own group as the root of the mount, while the path is that of the host.
            let below = path.strip_prefix(mounted.trim_end_matches('/')).unwrap_or_default();
            let mut group = mount_point.join(below.trim_start_matches('/'));
            while group.starts_with(&mount_point) {
                groups.push(group.clone());
                if !group.pop() {
                    break;
                }
            }
        }
    }
    groups
}

/// Returns the root and the mount point of a line of `mountinfo` (proc(5)), if it is the hierarchy that limits memory.
fn mount_of(line: &str, is_v2: bool) -> Option<(&str, &str)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (root, mount_point) = (fields.next()?, fields.next()?);
    let mut filesystem = filesystem.split(' ');
    let kind = filesystem.next()?;
    let is_it = match is_v2 {
        true => kind == "cgroup2",
        false => kind == "cgroup" && filesystem.nth(1)?.split(',').any(|name| name == "memory"),
    };
    is_it.then_some((root, mount_point))
}

/// The bounds of the settings that are 0 there, because they follow from the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// `limits.history_bytes_max`.
    pub history_bytes_max: usize,
    /// `limits.pending_bytes_max`.
    pub pending_bytes_max: usize,
    /// `limits.buffered_bytes_max`.
    pub buffered_bytes_max: usize,
    /// `limits.buffered_bytes_per_address_max`.
    pub buffered_bytes_per_address_max: usize,
}

impl MemoryBounds {
    /// Derives the bounds from the memory of this process, which is read once.
    pub(crate) fn of(limits: &Limits) -> MemoryBounds {
        static MEMORY: OnceLock<Option<u64>> = OnceLock::new();
        let bytes_max = *MEMORY.get_or_init(|| Memory::read().map(|memory| memory.bytes_max));
        MemoryBounds::within(limits, bytes_max.unwrap_or(u64::MAX))
    }

    /// Derives the bounds from this many bytes of memory.
    pub fn within(limits: &Limits, bytes_max: u64) -> MemoryBounds {
        let share = |set: usize, part: u64, needed: usize| match set {
            0 => {
                let share = (bytes_max / part).clamp(SHARE_MIN, SHARE_MAX);
                usize::try_from(share).unwrap_or(usize::MAX).max(needed)
            }
            set => set,
        };
        let buffered_bytes_max = share(limits.buffered_bytes_max, 8, limits.body_bytes_max);
        MemoryBounds {
            history_bytes_max: share(limits.history_bytes_max, 4, limits.publication_bytes_max),
            pending_bytes_max: share(limits.pending_bytes_max, 8, limits.outbox_bytes_max),
            buffered_bytes_max,
            buffered_bytes_per_address_max: match limits.buffered_bytes_per_address_max {
                0 => buffered_bytes_max / 4,
                set => set,
            },
        }
    }

    /// What all of it may take at once.
    pub fn total(&self) -> u64 {
        let pending = self.pending_bytes_max.saturating_mul(PENDING);
        let bounds = [self.history_bytes_max, pending, self.buffered_bytes_max];
        bounds.into_iter().map(|bytes| bytes as u64).fold(0, u64::saturating_add)
    }
}

impl fmt::Display for MemoryBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [history, pending, buffered] =
            [self.history_bytes_max, self.pending_bytes_max, self.buffered_bytes_max]
                .map(|bytes| mebibytes(bytes as u64));
        write!(
            f,
            "{history} for history, {pending} for each kind of what waits, {buffered} for buffers"
        )
    }
}

/// Formats a number of bytes.
fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// The sentences about memory that an operator should know at the start. The second is there if the settings permit more
/// than there is.
pub(crate) fn report(bounds: &MemoryBounds, memory: &Memory) -> (String, Option<String>) {
    let (has, whose) = (mebibytes(memory.bytes_max), memory.limited_by);
    let total = bounds.total();
    let too_much = (total > memory.bytes_max).then(|| {
        format!(
            "limits.history_bytes_max, pending_bytes_max and buffered_bytes_max permit {} together, and the process \
             would be killed at {has}: lower them, or set them to 0",
            mebibytes(total)
        )
    });
    (format!("at most {bounds}, of the {has} of {whose}"), too_much)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine of 8 GiB with these files.
    fn machine(files: &[(&str, &str)]) -> Memory {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Memory::read_below(root.path()).unwrap()
    }

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn without_a_limit_a_process_has_the_memory_of_the_machine() {
        let whole =
            Memory { bytes_max: 8192 * MIB, bytes_left: None, limited_by: MemoryLimit::Machine };
        assert_eq!(machine(&[]), whole);
        let v2 = [
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
        ];
        assert_eq!(machine(&v2), whole);
        let v1 = [
            (
                "proc/self/mountinfo",
                "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("proc/self/cgroup", "9:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(machine(&v1), whole);
    }

    #[test]
    fn the_least_limit_of_nested_groups_counts() {
        let nested = machine(&[
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/system.slice/dunlin.service\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "268435456\n"),
            ("sys/fs/cgroup/system.slice/memory.current", "67108864\n"),
            ("sys/fs/cgroup/system.slice/dunlin.service/memory.max", "536870912\n"),
            ("sys/fs/cgroup/system.slice/dunlin.service/memory.current", "33554432\n"),
        ]);
        assert_eq!(nested.bytes_max, 256 * MIB);
        assert_eq!(nested.bytes_left, Some(192 * MIB));
        assert_eq!(nested.limited_by, MemoryLimit::ControlGroup);
        let slowed = machine(&[
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
            ("sys/fs/cgroup/memory.high", "134217728\n"),
        ]);
        assert_eq!(slowed.bytes_max, 128 * MIB);
    }

    #[test]
    fn a_container_of_version_1_sees_its_own_group_as_the_root() {
        let container = machine(&[
            (
                "proc/self/mountinfo",
                "1 0 0:1 / / rw - overlay overlay rw\n\
                 604 602 0:30 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:14 - cgroup cgroup rw,memory\n\
                 605 602 0:31 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
            ),
            ("proc/self/cgroup", "10:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/system\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n"),
        ]);
        assert_eq!((container.bytes_max, container.bytes_left), (256 * MIB, Some(255 * MIB)));
    }

    #[test]
    fn bounds_that_are_not_set_leave_room_in_a_small_container_and_set_ones_stay() {
        let limits = Limits::default();
        let bounds = |mib: u64| MemoryBounds::within(&limits, mib * MIB);
        let small = bounds(256);
        assert_eq!(small.history_bytes_max as u64, 64 * MIB);
        assert_eq!(small.pending_bytes_max as u64, 32 * MIB);
        assert_eq!(small.buffered_bytes_max as u64, 32 * MIB);
        assert_eq!(small.total(), 192 * MIB, "the rest of the server has room beside it");
        let large = bounds(65_536);
        assert_eq!((large.history_bytes_max, large.pending_bytes_max), (1 << 30, 1 << 30));
        assert_eq!(large.buffered_bytes_per_address_max, 256 << 20);
        let tiny = bounds(1);
        assert!(tiny.history_bytes_max >= limits.publication_bytes_max);
        assert!(tiny.pending_bytes_max >= limits.outbox_bytes_max);

        let set = Limits { history_bytes_max: 5 << 30, ..Limits::default() };
        let set = MemoryBounds::within(&set, 256 * MIB);
        assert_eq!(set.history_bytes_max, 5 << 30);
        let memory = Memory {
            bytes_max: 256 * MIB,
            bytes_left: None,
            limited_by: MemoryLimit::ControlGroup,
        };
        let (sentence, too_much) = report(&set, &memory);
        assert!(sentence.contains("5120 MiB for history"), "{sentence}");
        assert!(sentence.ends_with("of the 256 MiB of its control group"), "{sentence}");
        assert!(too_much.is_some_and(|sentence| sentence.contains("set them to 0")));
        assert_eq!(report(&small, &memory).1, None);
    }
}
