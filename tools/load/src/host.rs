//! The machine and the day of a measurement.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Where and when a result was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Model of the CPU.
    pub cpu: String,
    /// Cores of the whole machine.
    pub cores: usize,
    /// Rounded to whole GiB.
    pub memory_gib: u64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Day of the run, UTC, as YYYY-MM-DD.
    pub day: String,
    /// The command that was run.
    pub command: String,
    /// Commit the program was built from, if the script that ran it set `DUNLIN_BENCH_COMMIT`.
    pub commit: Option<String>,
}

impl Host {
    /// Describes this machine, the current day and this process' command.
    pub fn now() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find(|line| line.starts_with("model name"))
            .and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
            .unwrap_or_else(|| "unknown CPU".into());
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = meminfo
            .lines()
            .find(|line| line.starts_with("MemTotal:"))
            .and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .unwrap_or(0);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let seconds =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            cpu,
            // Cores of the machine, not those that this thread is pinned to.
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_gib: (kib + (1 << 19)) >> 20,
            kernel: format!("Linux {}", kernel.trim()),
            day: day(seconds),
            command: command(std::env::args()),
            commit: std::env::var("DUNLIN_BENCH_COMMIT").ok(),
        }
    }
}

/// Returns the command line as a person would type it: the program without its directory, words quoted where needed.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let words = arguments.enumerate().map(|(index, word)| {
        let word = match index {
            0 => word.rsplit('/').next().unwrap_or_default().to_owned(),
            _ => word,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Formats the UTC date of a Unix time.
fn day(unix_seconds: u64) -> String {
    let time = i64::try_from(unix_seconds).ok().and_then(|s| Timestamp::from_second(s).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use super::{command, day};

    #[test]
    fn a_command_can_be_typed_again() {
        let words = ["target/release/dunlin", "bench", "--cmd", "dunlin serve --workers 1", "it's"];
        let typed = command(words.map(str::to_owned).into_iter());
        assert_eq!(typed, r"dunlin bench --cmd 'dunlin serve --workers 1' 'it'\''s'");
    }

    #[test]
    fn days_of_the_calendar() {
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400), "2000-02-29");
        assert_eq!(day(1_767_225_599), "2025-12-31");
    }
}
