//! Metrics of the process, named as by the client libraries of Prometheus, and what program it is.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use dunlin_metrics::{Collector, DescriptorEncoder, Family, Kind};

/// The metrics that have no prefix of the program.
#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    started_unix_s: f64,
}

impl ProcessMetrics {
    pub(crate) fn new(uptime_s: u64) -> ProcessMetrics {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ProcessMetrics { started_unix_s: (now.as_secs_f64() - uptime_s as f64).max(0.0) }
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let gauge = |name, help| Family { name, help, kind: Kind::Gauge };
        let cpu = Family {
            name: "process_cpu_seconds_total",
            help: "Time of all cores that the process has used, in user mode and in the kernel.",
            kind: Kind::Counter,
        };
        cpu.encode_one_f64(&mut encoder, cpu_ns() as f64 / 1e9)?;
        gauge("process_start_time_seconds", "When the process started, in Unix time.")
            .encode_one_f64(&mut encoder, self.started_unix_s)?;
        let [virtual_bytes, resident_bytes] = memory_bytes();
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Memory of the process in RAM.", resident_bytes),
            (
                "process_virtual_memory_bytes",
                "Memory of the process in its address space.",
                virtual_bytes,
            ),
            (
                "process_open_fds",
                "Open file descriptors; of several tables of descriptors, those of the fullest.",
                open_fds(),
            ),
            ("process_max_fds", "Most file descriptors of a table.", max_fds()),
        ] {
            gauge(name, help).encode_one(&mut encoder, value)?;
        }
        Ok(())
    }
}

/// `build_info`.
#[derive(Debug)]
pub(crate) struct BuildInfo;

impl Collector for BuildInfo {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("arch", std::env::consts::ARCH),
            ("os", std::env::consts::OS),
        ];
        let family =
            Family { name: "build_info", help: "1: the version that runs.", kind: Kind::Gauge };
        family.encode(&mut encoder, [(labels, 1)])
    }
}

/// CPU time of the process.
pub(crate) fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Virtual and resident memory of the process; 0 if the kernel does not tell.
pub(crate) fn memory_bytes() -> [u64; 2] {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = statm.split(' ').map(|pages| pages.parse::<u64>().unwrap_or(0));
    [(); 2].map(|()| pages.next().unwrap_or(0) * rustix::param::page_size() as u64)
}

/// Descriptors in the fullest table; workers may have tables of their own. Linux tells their number from 6.2 on; before, those of
/// the calling thread are counted.
fn open_fds() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let counted = tasks.filter_map(|task| fs::metadata(task.path().join("fd")).ok());
    match counted.map(|fds| fds.len()).max() {
        None | Some(0) => fs::read_dir("/proc/thread-self/fd").map_or(0, Iterator::count) as u64,
        Some(most) => most,
    }
}

fn max_fds() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_tells_of_memory_descriptors_and_time() {
        let [virtual_bytes, resident_bytes] = memory_bytes();
        assert!(virtual_bytes > resident_bytes && resident_bytes > 1 << 20);
        let before = open_fds();
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/statm").unwrap()).collect();
        assert!(open_fds() >= before.min(files.len() as u64));
        assert!(open_fds() >= 50 && max_fds() >= open_fds());
        assert!(cpu_ns() > 0);
    }
}
