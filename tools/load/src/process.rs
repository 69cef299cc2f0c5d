//! The server under test as seen by the operating system: its memory and CPU time, and the kernel's memory.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::Serialize;

use crate::{Context, Error};

/// Time limits for a server to start listening, and to exit.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A server under observation: started by us, or already running.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    child: Option<Child>,
    /// Keeps the thread alive that started the child; see [`spawn`].
    _keeper: Option<Sender<()>>,
}

impl Process {
    /// Attaches to a running server.
    pub fn running(pid: u32) -> Self {
        Self { pid, child: None, _keeper: None }
    }

    /// Starts `command` (a shell command line) on `cores` and waits until it listens at `address`.
    pub fn start(
        command: &str,
        cores: &[usize],
        address: SocketAddr,
        log: Option<&Path>,
    ) -> Result<Self, Error> {
        if TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok() {
            return Err(Error::new(format!(
                "something listens on {address} already: stop it, or measure it with --server-pid instead of --cmd"
            )));
        }
        let (child, keeper) = spawn(command, cores, log)?;
        let mut process = Self { pid: child.id(), child: Some(child), _keeper: Some(keeper) };
        let start = Instant::now();
        while TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_err() {
            if let Some(status) = process.exited() {
                return Err(Error::new(format!(
                    "`{command}` ended with {status} before it listened on {address}"
                )));
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(Error::new(format!(
                    "`{command}` does not listen on {address} after {START_TIMEOUT:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        // The baseline, taken before the connections, must include children and threads that start after the listener.
        std::thread::sleep(Duration::from_millis(500));
        Ok(process)
    }

    fn exited(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Sends a signal; STOP and CONT simulate a machine that hangs.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.as_ref().map(Pid::from_child) {
            // Fails only if the process has exited.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(mut self) {
        if let Some(child) = &mut self.child {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Samples memory and CPU time of the process and its descendants.
    pub fn sample(&self) -> Sample {
        let mut sample = Sample::default();
        for pid in tree(self.pid) {
            let memory = memory(pid).unwrap_or_default();
            sample.pss_bytes += memory.pss_bytes;
            sample.file_bytes += memory.file_bytes;
            sample.cpu_ns += cpu_ns(pid);
            sample.processes += 1;
        }
        sample
    }

    /// Returns CPU time only: `smaps_rollup` of a big process is slow to read, and stops the process meanwhile.
    pub fn cpu_ns(&self) -> u64 {
        tree(self.pid).into_iter().map(cpu_ns).sum()
    }

    /// Returns the user part of the CPU time; /proc/PID/stat counts it in ticks, usually of 10 ms.
    pub fn user_ns(&self) -> u64 {
        let ticks = |pid| stat_field(pid, 11)?.parse::<u64>().ok();
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        tree(self.pid).into_iter().filter_map(ticks).sum::<u64>() * (1_000_000_000 / hertz)
    }

    /// Returns the resident memory of the process itself, without descendants: the current and the peak value.
    pub fn resident_bytes(&self) -> (u64, u64) {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let of = |name| kib_line(&text, name).unwrap_or(0) * 1024;
        (of("VmRSS:"), of("VmHWM:"))
    }

    /// Returns the CPU time of the threads with this name.
    pub fn thread_cpu_ns(&self, name: &str) -> u64 {
        let named = |task: &Path| {
            let text = fs::read_to_string(task.join("comm"));
            // The kernel keeps 15 bytes of a thread's name.
            text.is_ok_and(|comm| comm.trim_end() == &name[..name.len().min(15)])
        };
        tree(self.pid)
            .into_iter()
            .flat_map(tasks)
            .filter(|task| named(task))
            .map(|task| task_cpu_ns(&task))
            .sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        // The process may have exited already, or is killed next: an error needs no action.
        let _ = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
        let start = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if start.elapsed() > STOP_TIMEOUT {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Starts the process from a thread of its own: the process inherits that thread's cores, and `setpriv --pdeathsig`
/// ends the process when the thread ends. So a killed generator leaves no server behind.
fn spawn(command: &str, cores: &[usize], log: Option<&Path>) -> Result<(Child, Sender<()>), Error> {
    let output = || -> Result<Stdio, Error> {
        Ok(match log {
            Some(path) => File::options()
                .create(true)
                .append(true)
                .open(path)
                .context(format!("cannot write {}", path.display()))?
                .into(),
            None => Stdio::null(),
        })
    };
    let (out, err) = (output()?, output()?);
    let mut starter = Command::new("sh");
    if Path::new("/usr/bin/setpriv").exists() {
        starter = Command::new("/usr/bin/setpriv");
        starter.args(["--pdeathsig", "TERM", "sh"]);
    }
    starter.arg("-c").arg(format!("exec {command}")).stdin(Stdio::null()).stdout(out).stderr(err);
    let (started, outcome) = std::sync::mpsc::channel();
    let (keeper, kept) = std::sync::mpsc::channel::<()>();
    let cores = cores.to_vec();
    std::thread::spawn(move || {
        let child = crate::system::pin(&cores).and_then(|()| starter.spawn());
        // The receiver is below and waits for the child.
        let _ = started.send(child);
        // Nothing is ever sent; this returns when the sender is dropped.
        let _ = kept.recv();
    });
    let child =
        outcome.recv().map_err(|_| Error::new("the thread that starts the server panicked"))?;
    Ok((child.context(format!("cannot start `{command}`"))?, keeper))
}

/// Resources used by a process tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Proportional set size: private memory, and a share of shared memory.
    pub pss_bytes: u64,
    /// The file-backed part of it: touched pages of the program and its libraries, loaded once for any number of
    /// clients.
    pub file_bytes: u64,
    /// CPU time of all threads.
    pub cpu_ns: u64,
    /// Number of processes: the root and its descendants.
    pub processes: u32,
}

/// Returns `root` and all its descendants.
fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(parent) = stat_field(pid, 1).and_then(|field| field.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children.remove(&pid).into_iter().flatten());
        next += 1;
    }
    found
}

/// Returns a field of /proc/PID/stat after the name, from 0 (state). The name may hold spaces and parentheses.
fn stat_field(pid: u32, field: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text[text.rfind(')')? + 1..].split_whitespace().nth(field).map(str::to_owned)
}

/// Returns the memory of this process alone, without a server that it started.
pub fn own_pss_bytes() -> u64 {
    memory(std::process::id()).unwrap_or_default().pss_bytes
}

/// Proportional set size of a process.
#[derive(Debug, Default)]
struct Memory {
    pss_bytes: u64,
    /// File-backed pages.
    file_bytes: u64,
}

fn memory(pid: u32) -> Option<Memory> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let bytes = |name| Some(kib_line(&text, name)? * 1024);
    Some(Memory { pss_bytes: bytes("Pss:")?, file_bytes: bytes("Pss_File:").unwrap_or(0) })
}

/// Sums the CPU time of the living threads, in nanoseconds; /proc/PID/stat has ticks of 10 ms.
fn cpu_ns(pid: u32) -> u64 {
    tasks(pid).map(|task| task_cpu_ns(&task)).sum()
}

/// Iterates over the living threads, as directories of /proc.
fn tasks(pid: u32) -> impl Iterator<Item = PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().flatten().map(|task| task.path())
}

fn task_cpu_ns(task: &Path) -> u64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Memory that the kernel uses, for the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KernelMemory {
    /// Memory of the kernel's own objects.
    pub slab_bytes: u64,
    /// The part of the slab that the kernel cannot reclaim under memory pressure.
    pub slab_unreclaimable_bytes: u64,
    /// Buffers of all TCP sockets, from /proc/net/sockstat.
    pub tcp_buffer_bytes: u64,
    /// Memory available to programs.
    pub available_bytes: u64,
}

impl KernelMemory {
    /// Reads the current values from /proc.
    pub fn now() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let of = |name| kib_line(&meminfo, name).unwrap_or(0) * 1024;
        let sockstat = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
        let pages = sockstat
            .lines()
            .find(|line| line.starts_with("TCP:"))
            .and_then(|line| {
                line.split("mem ").nth(1)?.split_whitespace().next()?.parse::<u64>().ok()
            })
            .unwrap_or(0);
        Self {
            slab_bytes: of("Slab:"),
            slab_unreclaimable_bytes: of("SUnreclaim:"),
            tcp_buffer_bytes: pages * rustix::param::page_size() as u64,
            available_bytes: of("MemAvailable:"),
        }
    }
}

fn kib_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_time_and_has_its_children_in_its_tree() {
        let me = std::process::id();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(tree(me).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        let sample = Process::running(me).sample();
        assert!(sample.pss_bytes > 0 && sample.cpu_ns > 0 && sample.processes >= 1);
        assert!(0 < sample.file_bytes && sample.file_bytes < sample.pss_bytes);
        let begun = Process::running(me).user_ns();
        while Process::running(me).user_ns() == begun {
            std::hint::black_box([0; 64]);
        }
        let (now, most) = Process::running(me).resident_bytes();
        assert!(0 < now && now <= most);
        assert!(KernelMemory::now().slab_bytes > 0);
    }

    #[test]
    fn a_command_that_ends_at_once_is_not_waited_for() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let error = Process::start("false", &[], address, None).unwrap_err();
        assert!(error.to_string().contains("ended with"), "{error}");
    }
}
