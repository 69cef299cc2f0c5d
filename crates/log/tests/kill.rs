//! A process that appends is killed at any moment, and what it was answered is there.

#![allow(clippy::unwrap_used)]

mod kit;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use dunlin_log::simulated::Random;
use dunlin_log::{AppendError, Directory, Log, Threads};
use kit::{body, config, record};

const DIRECTORY: &str = "DUNLIN_LOG_KILLED";
/// What so many processes append stays below the bound of the log.
const KILLS_A_LOG: usize = 100;

fn open(path: &Path) -> Log {
    // The lock is free once the kernel has ended the process.
    let disk = (0..200).find_map(|_| {
        let disk = Directory::open(path).ok();
        if disk.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        disk
    });
    let (log, recovery) = Log::open(Arc::new(disk.expect("a lock")), &config("boot")).unwrap();
    assert!(recovery.damaged.is_empty() && !recovery.may_have_lost, "{recovery:?}");
    log
}

/// The process: appends, and says what is written and what is synced.
#[test]
fn appends_until_it_is_killed() {
    let Some(path) = std::env::var_os(DIRECTORY) else { return };
    let threads = Threads::start(Arc::new(open(Path::new(&path)))).unwrap();
    let log = Arc::clone(threads.log());
    let mut random = Random::new(std::process::id().into());
    let mut waiting = std::collections::VecDeque::new();
    let mut out = std::io::stdout().lock();
    loop {
        let stream = format!("stream-{}", random.below(50));
        let offset = log.stream(&stream).map_or(0, |stream| stream.top) + 1;
        match log.append(&record(&stream, &body(&stream, offset, &mut random))) {
            Ok(appended) => waiting.push_back((appended.end, stream, appended.offset)),
            Err(AppendError::Busy) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
        let written = log.written();
        let mut said = String::new();
        while let Some((_, stream, offset)) = waiting.pop_front_if(|(end, ..)| *end <= written) {
            said.push_str(&format!("answered {stream} {offset}\n"));
        }
        if out.write_all(said.as_bytes()).is_err() {
            return;
        }
    }
}

/// Kills a process in each of these rounds, all of them over one log.
fn kill_often(rounds: std::ops::Range<u64>) {
    let (first, last) = (rounds.start, rounds.end - 1);
    let directory = tempfile::tempdir().unwrap();
    let mut answered = std::collections::BTreeMap::<String, u64>::new();
    for round in rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "appends_until_it_is_killed", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines_max = 1 + Random::new(round).below(3_000);
        let mut seen = 0;
        for line in lines.map_while(Result::ok) {
            let Some(line) = line.strip_prefix("answered ") else { continue };
            let Some((stream, offset)) = line.split_once(' ') else { continue };
            // The last line may be cut.
            let Ok(offset) = offset.parse::<u64>() else { continue };
            let top = answered.entry(stream.to_owned()).or_default();
            *top = offset.max(*top);
            seen += 1;
            if seen == lines_max {
                // SIGKILL.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= lines_max, "the process ended by itself");
        let log = open(directory.path());
        for (stream, top) in &answered {
            let state = log.stream(stream).expect("a stream that was answered");
            assert!(state.top >= *top, "round {round}: {stream} ends at {}, not {top}", state.top);
        }
        if (round - first) % 10 == 0 || round == last {
            for (stream, top) in &answered {
                let bodies = kit::bodies(&log, stream, 500);
                assert!(bodies.len() as u64 >= *top, "round {round}: {stream}");
                for (offset, body) in bodies {
                    assert!(body.starts_with(format!("{stream}/{offset}/").as_bytes()));
                }
            }
        }
    }
}

#[test]
fn log_of_a_process_killed_twenty_times_has_all_that_was_answered() {
    if std::env::var_os(DIRECTORY).is_none() {
        // A soak test sets more: DUNLIN_LOG_KILLS=1000.
        let kills = std::env::var("DUNLIN_LOG_KILLS").ok().and_then(|kills| kills.parse().ok());
        let kills = kills.unwrap_or(20);
        for first in (0..kills).step_by(KILLS_A_LOG) {
            kill_often(first..kills.min(first + KILLS_A_LOG as u64));
        }
    }
}
