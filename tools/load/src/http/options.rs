//! The command line of `dunlin bench http`.

use std::path::PathBuf;
use std::time::Duration;

use crate::url::duration;
use crate::{Error, Output};

/// The deepest pipeline; `auto` never exceeds it.
const DEPTH_MAX: u32 = 10_000;

/// Options of `dunlin bench http`.
#[derive(Debug, Clone, clap::Args)]
pub struct Http {
    /// URL to request, e.g. http://127.0.0.1:8500/hello or https://…; `{n%9}`, `{random:1-9}`, `{uuid}` … are filled in
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Connections of all threads together
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: u32,
    /// Requests in flight on each connection; `auto` adapts it to rate × round trip
    #[arg(short, long, value_name = "N|auto", default_value = "1", value_parser = depth)]
    pub(crate) pipeline: Depth,
    /// Stop after this many requests
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,
    /// Stop sending after this time; 10s unless --requests is given
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub(crate) duration: Option<Duration>,
    /// Send requests this long before the measurement starts
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(crate) warm_up: Duration,
    /// Requests a second on a schedule that does not wait for the server; latency counts from the scheduled time
    #[arg(short, long, value_name = "RATE", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Threads, each with its share of the connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Cores the generator may run on, e.g. 1 or 0,1
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub(crate) core: Vec<usize>,
    /// Connect to this Unix socket instead of the URL's host
    #[arg(long, value_name = "PATH")]
    pub(crate) unix_socket: Option<PathBuf>,
    /// Protocol: 1.1 or 2
    #[arg(long, value_name = "VERSION", default_value = "1.1", value_parser = ["1.1", "2"])]
    pub(crate) http: String,

    /// Method of the request
    #[arg(short = 'X', long, value_name = "METHOD", help_heading = "Requests")]
    pub(crate) method: Option<String>,
    /// A header; may be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = "Requests", value_parser = header)]
    pub(crate) header: Vec<(String, String)>,
    /// Body of the request; makes it a POST unless --method says otherwise
    #[arg(long, value_name = "TEXT", help_heading = "Requests", conflicts_with = "body_file")]
    pub(crate) body: Option<String>,
    /// Read the body from this file
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub(crate) body_file: Option<PathBuf>,
    /// Cycle through the requests of a file: HAR, or one JSON object per line
    #[arg(long, value_name = "FILE", help_heading = "Requests", conflicts_with_all = ["body", "body_file", "method"])]
    pub(crate) from: Option<PathBuf>,
    /// Send braces as they are; no placeholders are filled in
    #[arg(long, help_heading = "Requests")]
    pub(crate) no_templates: bool,
    /// Treat every request as idempotent, whatever its method: pipeline it, and send it again after a close
    #[arg(long, help_heading = "Requests")]
    pub(crate) idempotent: bool,
    /// How often a request is sent before it counts as failed
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Requests", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) attempts: u16,

    /// Expected statuses, e.g. 200,204 or 2xx; by default 2xx and 3xx
    #[arg(long, value_name = "CODES", value_delimiter = ',', help_heading = "Checks", value_parser = status)]
    pub(crate) expect_status: Vec<(u16, u16)>,
    /// Every body must contain this text
    #[arg(long, value_name = "TEXT", help_heading = "Checks")]
    pub(crate) expect_body: Option<String>,
    /// Number each request in a header that the response must repeat, so that no response is matched to a wrong request
    #[arg(long, help_heading = "Checks")]
    pub(crate) check_id: bool,
    /// The header of --check-id
    #[arg(long, value_name = "NAME", default_value = "X-Request-Id", help_heading = "Checks")]
    pub(crate) id_header: String,
    /// A request fails if its response is not complete this long after the one before it on its connection
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = "Checks", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Time limit for opening a connection and for resolving the name
    #[arg(long, value_name = "TIME", default_value = "5s", help_heading = "Checks", value_parser = duration)]
    pub(crate) connect_timeout: Duration,

    /// Trust this certificate or authority (PEM); by default those of the system
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub(crate) ca: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long, help_heading = "TLS", conflicts_with = "ca")]
    pub(crate) insecure: bool,
    /// Expect a certificate for this name instead of the URL's host
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    pub(crate) server_name: Option<String>,
    /// Client certificate with its chain (PEM)
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of --cert (PEM)
    #[arg(long, value_name = "FILE", help_heading = "TLS", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// TLS version: 1.2 or 1.3; by default the newest that both sides support
    #[arg(long, value_name = "VERSION", help_heading = "TLS", value_parser = ["1.2", "1.3"])]
    pub(crate) tls_version: Option<String>,

    /// Compare three runs: one connection, all connections one request at a time, all of them pipelined
    #[arg(long, help_heading = "Result", conflicts_with_all = ["rate", "ledger", "csv", "hdr_log"])]
    pub(crate) compare: bool,
    /// Name of this run in reports
    #[arg(long, value_name = "NAME", help_heading = "Result")]
    pub(crate) name: Option<String>,
    /// Write an HTML page with plots
    #[arg(long, value_name = "FILE", help_heading = "Result")]
    pub(crate) report: Option<PathBuf>,
    /// Add an earlier run to the report: a file with the output of --json; may be repeated
    #[arg(long, value_name = "FILE", help_heading = "Result", requires = "report")]
    pub(crate) with: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Write a CSV line for each interval
    #[arg(long, value_name = "FILE", help_heading = "Result")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the latencies as an HdrHistogram interval log
    #[arg(long, value_name = "FILE", help_heading = "Result")]
    pub(crate) hdr_log: Option<PathBuf>,
    /// Write a line for each request: id, attempts, result, status, the server's name for its response
    #[arg(long, value_name = "FILE", help_heading = "Result")]
    pub(crate) ledger: Option<PathBuf>,
    /// Response header that names the response in --ledger
    #[arg(long, value_name = "NAME", default_value = "X-Served", help_heading = "Result")]
    pub(crate) served_header: String,
    /// Process id of the server, to report how much of its core was idle
    #[arg(long, value_name = "PID", help_heading = "Result")]
    pub(crate) server_pid: Option<u32>,
}

/// Requests in flight on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Fixed(u32),
    Auto,
}

impl std::fmt::Display for Depth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(depth) => write!(f, "{depth}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl Http {
    pub(crate) fn is_http2(&self) -> bool {
        self.http == "2"
    }

    /// Returns whether answers are checked beyond their status.
    pub(crate) fn wants_id(&self) -> bool {
        self.check_id || self.ledger.is_some()
    }

    /// Returns how long to send; `None`: until the requests are done.
    pub(crate) fn sending_time(&self) -> Option<Duration> {
        match (self.duration, self.requests) {
            (None, None) => Some(Duration::from_secs(10)),
            (duration, _) => duration,
        }
    }

    /// Checks what clap cannot.
    ///
    /// # Errors
    /// Options that contradict each other, with the one to change.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.threads > self.connections {
            return Err(Error::new(format!(
                "--threads {} have only {} connections; raise --connections or lower --threads",
                self.threads, self.connections
            )));
        }
        if self.ledger.is_some() && !self.warm_up.is_zero() {
            return Err(Error::new(
                "--ledger has a line for every request, and those of --warm-up count for nothing; drop one of the two",
            ));
        }
        if self.timeout.is_zero() || self.connect_timeout.is_zero() {
            return Err(Error::new(
                "--timeout and --connect-timeout must be longer than nothing; write 10s",
            ));
        }
        if self.is_http2() && self.pipeline == Depth::Auto {
            return Err(Error::new(
                "--pipeline auto is for HTTP/1.1; with --http 2 give the number of streams, as in --pipeline 100",
            ));
        }
        if self.compare && self.pipeline == Depth::Fixed(1) {
            return Err(Error::new(
                "--compare needs a depth for its third mode; add --pipeline 100",
            ));
        }
        Ok(())
    }
}

fn depth(text: &str) -> Result<Depth, String> {
    if text == "auto" {
        return Ok(Depth::Auto);
    }
    text.parse()
        .ok()
        .filter(|depth| (1..=DEPTH_MAX).contains(depth))
        .map(Depth::Fixed)
        .ok_or_else(|| format!("give a number from 1 to {DEPTH_MAX}, or auto"))
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate: &f64| (0.001..=100e6).contains(rate))
        .ok_or_else(|| "give requests a second as a number, as in 5000".to_owned())
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once(':').ok_or_else(|| "write it as 'Name: value'".to_owned())?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Parses a status or a class of statuses into the first and the last of its range.
fn status(text: &str) -> Result<(u16, u16), String> {
    let wrong = || "give statuses as 200,204 or classes as 2xx".to_owned();
    let text = text.trim();
    if let Some(class) = text.strip_suffix("xx") {
        let class: u16 =
            class.parse().ok().filter(|class| (1..=5).contains(class)).ok_or_else(wrong)?;
        return Ok((class * 100, class * 100 + 99));
    }
    let status =
        text.parse().ok().filter(|status| (100..600).contains(status)).ok_or_else(wrong)?;
    Ok((status, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_flags() {
        assert_eq!((depth("auto"), depth("16")), (Ok(Depth::Auto), Ok(Depth::Fixed(16))));
        assert!(depth("0").unwrap_err().contains("or auto"));
        assert_eq!((status("2xx"), status("204")), (Ok((200, 299)), Ok((204, 204))));
        assert!(status("6xx").is_err() && status("ok").unwrap_err().contains("2xx"));
        assert_eq!(header("A: b: c"), Ok(("A".into(), "b: c".into())));
        assert!(rate("many").is_err() && rate("0").is_err() && rate("0.5").is_ok());
    }
}
