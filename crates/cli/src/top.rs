//! `dunlin top`: a server in the terminal, as its `/metrics` and `/info` show it.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::config::Server;
use crate::error::CliError;
use crate::style;
use crate::style::{BOLD, DIM, WARN, paint};

/// The longest text of `/metrics` that is read.
const METRICS_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
    /// Print one look and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: Server,
}

/// Sums over workers, by the name of the metric without its prefix.
type Sample = BTreeMap<String, f64>;

/// What is shown: a title, and its metrics, each with a name for people.
const GAUGES: &[(&str, &str)] = &[
    ("connections", "connections"),
    ("sessions", "sessions"),
    ("subscriptions", "subscriptions"),
    ("channels", "channels"),
    ("outbox_bytes", "bytes for slow clients"),
    ("history_bytes", "bytes of history"),
];
const RATES: &[(&str, &str)] = &[
    ("connections_accepted_total", "connections accepted"),
    ("publications_received_total", "publications in"),
    ("messages_delivered_total", "messages out"),
    ("bytes_sent_total", "bytes out"),
    ("client_commands_total", "commands of clients"),
    ("api_commands_total", "commands of the server API"),
];
/// Shown only if there are any.
const FAILURES: &[(&str, &str)] = &[
    ("client_command_errors_total", "commands refused"),
    ("api_errors_total", "API commands refused"),
    ("http_request_errors_total", "HTTP requests refused"),
    ("client_disconnects_total", "clients disconnected"),
    ("slow_client_disconnects_total", "slow clients disconnected"),
    ("messages_dropped_total", "messages dropped"),
    ("connections_refused_total", "connections refused"),
    ("tls_handshakes_failed_total", "TLS handshakes failed"),
    ("protocol_errors_total", "protocol errors"),
    ("subscription_gaps_total", "gaps"),
    ("bus_refused_total", "workers behind"),
    ("worker_restarts_total", "worker restarts"),
];

impl Top {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let clears = !self.once && std::io::stdout().is_terminal();
        let (mut before, mut at) = (self.sample()?, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(self.every));
            let (info, after) = (self.server.get("/info")?, self.sample()?);
            let seconds = at.elapsed().as_secs_f64();
            at = Instant::now();
            let text = match self.server.wants_json() {
                true => format!("{}\n", json(&info, &before, &after, seconds)),
                false => shown(&info, &before, &after, seconds),
            };
            // To the upper left, then over what was there.
            let begin = if clears { "\u{1b}[H\u{1b}[2J" } else { "" };
            style::print(&format!("{begin}{text}"))?;
            if self.once {
                return Ok(());
            }
            before = after;
        }
    }

    fn sample(&self) -> Result<Sample, CliError> {
        let mut text = String::new();
        self.server.stream("/metrics")?.take(METRICS_BYTES_MAX).read_to_string(&mut text)?;
        Ok(sample(&text))
    }
}

/// Adds up the series of each metric.
fn sample(text: &str) -> Sample {
    let mut sample = Sample::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let name = series.split('{').next().unwrap_or_default();
        let (Some(name), Ok(value)) = (name.strip_prefix("dunlin_"), value.parse::<f64>()) else {
            continue;
        };
        *sample.entry(name.to_owned()).or_default() += value;
    }
    sample
}

fn rate(before: &Sample, after: &Sample, name: &str, seconds: f64) -> f64 {
    let of = |sample: &Sample| sample.get(name).copied().unwrap_or_default();
    // A server that was restarted counts from 0.
    (of(after) - of(before)).max(0.0) / seconds.max(f64::EPSILON)
}

fn json(info: &Value, before: &Sample, after: &Sample, seconds: f64) -> Value {
    let gauges = GAUGES.iter().map(|(name, _)| {
        ((*name).to_owned(), Value::from(after.get(*name).copied().unwrap_or_default()))
    });
    let rates = RATES.iter().chain(FAILURES).map(|(name, _)| {
        let per_second = name.trim_end_matches("_total").to_owned() + "_per_s";
        (per_second, Value::from(rate(before, after, name, seconds)))
    });
    let mut object: serde_json::Map<String, Value> = gauges.chain(rates).collect();
    object.insert("info".into(), json!({ "name": info["name"], "state": info["state"] }));
    Value::Object(object)
}

fn shown(info: &Value, before: &Sample, after: &Sample, seconds: f64) -> String {
    let text = |name: &str| info[name].as_str().unwrap_or_default().to_owned();
    let mut out = format!(
        "{} {}  {}  up {} s  revision {}\n\n",
        paint(BOLD, text("name")),
        text("version"),
        text("state"),
        style::grouped(info["uptime_s"].as_u64().unwrap_or_default()),
        info["revision"]
    );
    let number = |value: f64| style::grouped(value.round() as u64);
    for (name, label) in GAUGES {
        let value = after.get(*name).copied().unwrap_or_default();
        out += &format!("  {label:<28}{:>16}\n", number(value));
    }
    out += &format!("\n  {}\n", paint(DIM, format_args!("{:<28}{:>16}", "", "a second")));
    for (name, label) in RATES {
        out += &format!("  {label:<28}{:>16}\n", number(rate(before, after, name, seconds)));
    }
    let failures = FAILURES.iter().filter(|(name, _)| after.get(*name).is_some_and(|of| *of > 0.0));
    let mut failures = failures.peekable();
    if failures.peek().is_some() {
        out += &format!(
            "\n  {}\n",
            paint(DIM, format_args!("{:<28}{:>16}{:>16}", "", "a second", "since the start"))
        );
    }
    for (name, label) in failures {
        let now = rate(before, after, name, seconds);
        let line = format!(
            "{label:<28}{:>16}{:>16}",
            number(now),
            number(after.get(*name).copied().unwrap_or_default())
        );
        out += &match now > 0.0 {
            true => format!("  {}\n", paint(WARN, line)),
            false => format!("  {line}\n"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_added_up_and_a_counter_is_shown_as_its_rate() {
        let before =
            sample("# HELP dunlin_sessions x\ndunlin_messages_delivered_total{worker=\"0\"} 100\n");
        let after = sample(
            "dunlin_sessions{worker=\"0\"} 7\ndunlin_sessions{worker=\"1\"} 5\n\
             dunlin_messages_delivered_total{worker=\"0\"} 2100\ndunlin_api_errors_total{worker=\"0\"} 3\n",
        );
        let info = json!({ "name": "a", "version": "1", "state": "serving", "revision": 4 });
        let text = anstream::adapter::strip_str(&shown(&info, &before, &after, 2.0)).to_string();
        let line = |label: &str| text.lines().find(|line| line.contains(label)).unwrap().to_owned();
        assert!(line("sessions").ends_with("12"), "{text}");
        assert!(line("messages out").ends_with("1,000"), "{text}");
        assert!(line("API commands refused").ends_with("3"), "{text}");
        assert!(!text.contains("worker restarts"), "what never came about is not shown: {text}");
    }
}
