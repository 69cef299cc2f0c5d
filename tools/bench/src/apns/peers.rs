//! Peers: senders and load generators of other projects, run as separate programs under the same conditions.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::pushes::PushRow as Row;
use dunlin_load::figures::group;
use dunlin_push::apns::{ProviderKey, ProviderToken};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::Deserialize;

use super::load::{Target, payload};
use super::timeline::Timeline;
use crate::error::CliError;

/// Pushes that a caller without its own window keeps in flight: the number of streams that Apple allows.
pub(super) const IN_FLIGHT: usize = 1_000;
/// Unit of the CPU times in /proc/PID/stat.
const TICKS_PER_S: f64 = 100.0;

/// A sender, with its name on the page.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    name: String,
    program: PathBuf,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Peer, String> {
        let (name, program) = text.split_once('=').ok_or("write NAME=PROGRAM")?;
        Ok(Peer { name: name.to_owned(), program: program.into() })
    }
}

/// Parameters of a peer's run.
pub(super) struct Ask<'a> {
    pub(super) target: &'a Target,
    pub(super) payload_bytes: usize,
    pub(super) duration: Duration,
    pub(super) warm_up: Duration,
    pub(super) pushes_max: u64,
    pub(super) rtt: Duration,
    pub(super) in_flight: usize,
}

/// The last line of a peer's output, as JSON.
#[derive(Debug, Deserialize)]
struct PeerReport {
    /// Pairs of milliseconds since the start, and answers in that millisecond.
    answers: Vec<(u64, u32)>,
    /// Number of pushes that ended in an error, and the first error.
    failed: u64,
    error: Option<String>,
    seconds: f64,
    p50_s: Option<f64>,
    p99_s: Option<f64>,
    /// CPU seconds of the process and answers, after the warm-up.
    cpu_s: f64,
    cpu_ended: u64,
}

impl Peer {
    /// Runs the peer and makes a row of its report. If it fails, the row says why.
    pub(super) fn measure(&self, what: &str, ask: &Ask<'_>) -> Row {
        let mut row = Row {
            what: what.to_owned(),
            who: self.name.clone(),
            rtt_s: ask.rtt.as_secs_f64(),
            binding: "–".to_owned(),
            connections: 1,
            holds: true,
            ..Row::default()
        };
        match self.ask(ask) {
            Ok(said) => {
                let mut timeline = Timeline::default();
                for &(ms, count) in &said.answers {
                    timeline.record(Duration::from_millis(ms), count);
                }
                let end = Duration::from_secs_f64(said.seconds);
                row.rate = timeline.rate(ask.warm_up, end, ask.rtt);
                row.answer_p50_s = said.p50_s;
                row.answer_p99_s = said.p99_s;
                row.cpu_s_per_10k = Some(said.cpu_s * 1e4 / said.cpu_ended.max(1) as f64);
                if said.failed > 0 {
                    let error = said.error.unwrap_or_default();
                    row.note = Some(format!("{} failed: {error}", said.failed));
                }
            }
            Err(error) => row.note = Some(format!("not measured: {error}")),
        }
        row
    }

    fn ask(&self, ask: &Ask<'_>) -> Result<PeerReport, CliError> {
        let (_, port) = ask.target.address.rsplit_once(':').ok_or("an address without a port")?;
        let output = Command::new(&self.program)
            // For senders whose address and root certificates cannot be set otherwise.
            .env("APNS_PORT", port)
            .env("APNS_ROOTS", &ask.target.roots_pem)
            .args(["--address", &ask.target.address])
            .arg("--roots")
            .arg(&ask.target.roots_pem)
            .args(["--in-flight", &ask.in_flight.to_string()])
            .args(["--payload", &ask.payload_bytes.to_string()])
            .args(["--seconds", &ask.duration.as_secs_f64().to_string()])
            .args(["--warm-up", &ask.warm_up.as_secs_f64().to_string()])
            .args(["--pushes", &ask.pushes_max.to_string()])
            .args(["--devices", &ask.target.devices.to_string()])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(text.lines().last().unwrap_or("it failed").to_owned().into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Runs a load generator that knows nothing of pushes, to measure the cost of HTTP/2 itself.
pub(super) fn h2load(program: &str, what: &str, ask: &Ask<'_>) -> Row {
    let mut row = Row {
        what: what.to_owned(),
        who: "h2load".to_owned(),
        binding: "–".to_owned(),
        connections: 1,
        holds: true,
        ..Row::default()
    };
    let pushes = ask.pushes_max.to_string();
    match ask_h2load(program, ask, &["-n", &pushes]) {
        Ok((rate, cpu_s)) => {
            row.rate = rate;
            row.cpu_s_per_10k = Some(cpu_s * 1e4 / ask.pushes_max as f64);
            row.note =
                Some(format!("{}/s for a core of its own", group(ask.pushes_max as f64 / cpu_s)));
        }
        Err(error) => row.note = Some(format!("not measured: {error}")),
    }
    row
}

/// Runs the load generator for a time instead of a number of requests; its CPU time is then not measured.
pub(super) fn h2load_for(program: &str, what: &str, ask: &Ask<'_>) -> Row {
    let seconds = (ask.duration - ask.warm_up).as_secs().max(1).to_string();
    let warm_up = ask.warm_up.as_secs().to_string();
    let mut row = Row {
        what: what.to_owned(),
        who: "h2load".to_owned(),
        rtt_s: ask.rtt.as_secs_f64(),
        binding: "–".to_owned(),
        connections: 1,
        holds: true,
        ..Row::default()
    };
    match ask_h2load(program, ask, &["-D", &seconds, "--warm-up-time", &warm_up]) {
        Ok((rate, _)) => row.rate = rate,
        Err(error) => row.note = Some(format!("not measured: {error}")),
    }
    row
}

/// Number of devices that a load generator's requests cycle through.
const DEVICES: u64 = 4_096;

/// Runs h2load. Returns its rate and its CPU seconds.
fn ask_h2load(program: &str, ask: &Ask<'_>, length: &[&str]) -> Result<(f64, f64), CliError> {
    let body = tempfile::NamedTempFile::new()?;
    fs::write(body.path(), payload(ask.payload_bytes))?;
    let devices = tempfile::NamedTempFile::new()?;
    let url =
        |number| format!("https://{}/3/device/{}\n", ask.target.address, ask.target.device(number));
    fs::write(devices.path(), (0..DEVICES).map(url).collect::<String>())?;
    let key = ProviderKey::from_scalar(&[7; 32], "BENCHKEY01", "BENCHTEAM1")?;
    let token = ProviderToken::new(key).authorization(SystemTime::now()).value;
    let mut child = Command::new(program)
        .args(["-c", "1", "-t", "1", "-m", &ask.in_flight.to_string()])
        .args(length)
        .arg("-d")
        .arg(body.path())
        .args(["-H", &format!("authorization: {token}"), "-H", "apns-topic: com.example.dunlin"])
        .args(["-H", "apns-push-type: alert", "-H", "apns-priority: 10"])
        .arg("-i")
        .arg(devices.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = Pid::from_child(&child);
    // The output fits into the pipe. With `NOWAIT` the process stays a zombie, whose CPU time can still be read.
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    let mut said = String::new();
    if let Some(mut out) = child.stdout.take() {
        std::io::Read::read_to_string(&mut out, &mut said)?;
    }
    child.wait()?;
    let whole = format!("{} succeeded", ask.pushes_max);
    if length[0] == "-n"
        && (!said.contains(&whole) || !said.contains(&format!("{} 2xx", ask.pushes_max)))
    {
        let reported =
            said.lines().find(|line| line.starts_with("requests:")).unwrap_or("it failed");
        return Err(reported.to_owned().into());
    }
    let rate = said.lines().find_map(|line| {
        let line = line.strip_prefix("finished in ")?;
        line.split(", ").nth(1)?.strip_suffix(" req/s")?.parse::<f64>().ok()
    });
    // The name is in parentheses and may contain spaces.
    let numbers = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = numbers
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|text| text.parse::<f64>().ok())
        .sum();
    Ok((rate.ok_or("it reports no rate")?, ticks / TICKS_PER_S))
}
