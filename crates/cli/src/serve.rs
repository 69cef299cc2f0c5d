//! `dunlin serve`.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueHint};
use dunlin_config::{Config, ConfigErrors, Log, LogFormat};
use dunlin_server::{Ready, ServeOptions, ValidConfig};
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

use crate::config::{File, environment};
use crate::error::CliError;
use crate::log_writer::LogWriter;
use crate::style;
use crate::style::{BOLD, DIM, LINK, WARN, paint};

/// Overrides `log.level` when it is set.
const LOG_VARIABLE: &str = "DUNLIN_LOG";

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Configuration file (TOML); without one everything is allowed, on 127.0.0.1 only
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Directory for the configuration's revisions, so that changes made on the admin port survive a restart;
    /// created if missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    state: Option<PathBuf>,
    /// Address for clients and the server API; overrides `server.client_addr`
    #[arg(long, value_name = "ADDR", value_parser = address)]
    client: Option<SocketAddr>,
    /// Address of the admin port (configuration, health, metrics); overrides `server.admin_addr`
    #[arg(long, value_name = "ADDR", value_parser = address)]
    admin: Option<SocketAddr>,
    /// Threads that serve connections; 0 means one per core; overrides `server.workers`
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u8).range(0..=124))]
    workers: Option<u8>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let file = self.config.as_deref().map(File::read).transpose()?;
        let config = match &file {
            Some(file) => file.validate(|config| self.with_flags(config)),
            None => self.of_development(),
        };
        let config = match (config, &self.state) {
            (Ok(config), _) => Ok(config),
            // The state directory may hold a valid configuration: a broken file must not prevent the start.
            (Err((errors, refusal)), Some(_)) => {
                style::error(&*refusal);
                Err(errors)
            }
            (Err((_, refusal)), None) => return Err(refusal),
        };
        let shown = config.as_ref().map(|config| config.get().clone()).unwrap_or_default();
        let (on_log, lines) = log(&shown.log)?;
        let development = file.is_none();
        let page = shown.client.demo_page;
        let on_ready = Box::new(move |ready: &Ready| {
            // Standard output may be closed; the server runs all the same.
            let mut text = banner(ready, page);
            if development {
                text += &development_notice(ready);
            }
            let _ = style::print(&(text + "\n"));
            tell_service_manager(std::env::var_os("NOTIFY_SOCKET").as_deref());
        });
        let source = match &self.config {
            Some(path) => path.display().to_string(),
            None => "development".to_owned(),
        };
        let state_dir = self.state.clone();
        let reload = self.config.is_some().then(|| {
            let reload: dunlin_server::Reload = Box::new(move || self.read_again());
            reload
        });
        let options = ServeOptions { config, source, state_dir, reload, on_log };
        let served = dunlin_server::serve(options, on_ready);
        lines.finish();
        Ok(served?)
    }

    /// Reads the file once more, with the environment and the flags of the start.
    fn read_again(&self) -> Result<ValidConfig, String> {
        let path = self.config.as_deref().ok_or("the server was started without a file")?;
        let file = File::read(path).map_err(|error| error.to_string())?;
        if file.is_empty() {
            // It would reset everything, and is what an editor leaves for a moment.
            return Err(format!("{} is empty", path.display()));
        }
        let read = file.validate(|config| self.with_flags(config));
        read.map_err(|(_, refusal)| anstream::adapter::strip_str(&refusal.to_string()).to_string())
    }

    fn of_development(&self) -> Result<ValidConfig, (ConfigErrors, CliError)> {
        let mut errors = ConfigErrors::default();
        let config = environment::apply(&Config::development(), &mut errors);
        if !errors.is_empty() {
            let refusal = format!("the environment has errors\n{errors}").into();
            return Err((errors, refusal));
        }
        ValidConfig::new(self.with_flags(config)).map_err(|errors| {
            let refusal = only_this_machine(&errors).into();
            (errors, refusal)
        })
    }

    /// Applies the flags. They count as part of the file, so that the configuration shown is the one that runs.
    fn with_flags(&self, mut config: Config) -> Config {
        let server = &mut config.server;
        server.client_addr = self.client.unwrap_or(server.client_addr);
        server.admin_addr = self.admin.unwrap_or(server.admin_addr);
        server.workers = self.workers.unwrap_or(server.workers);
        config
    }
}

/// Notifies systemd, if it started this process, that the server is ready (sd_notify(3)).
fn tell_service_manager(socket: Option<&OsStr>) {
    let Some(name) = socket else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => UnixAddr::from_abstract_name(name),
        None => UnixAddr::from_pathname(name),
    };
    let sent = UnixDatagram::unbound()
        .and_then(|socket| socket.send_to_addr(b"READY=1\n", &address?).map(drop));
    if let Err(error) = sent {
        style::warning(format_args!(
            "systemd could not be notified that the server is ready: {error}"
        ));
    }
}

/// Explains why development mode does not serve an address that others can reach. Errors of keys it sets itself, such
/// as `api.without_key`, are left out.
fn only_this_machine(errors: &ConfigErrors) -> String {
    let mut reported =
        "without a configuration Dunlin accepts connections from this machine only".to_owned();
    for error in errors.iter().filter(|error| error.path.to_string() != "api.without_key") {
        let _ = write!(reported, "\n  {error}");
    }
    reported.push_str(
        "\n  Write a file with `dunlin config default > dunlin.toml`, set them there, and start with \
         `--config dunlin.toml`.",
    );
    reported
}

/// Parses an address of `server.client_addr`'s form; errors say what to write instead.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        match (host, port.parse::<u16>()) {
            ("" | "localhost", Ok(port)) => format!("write 127.0.0.1:{port}"),
            (host, Ok(port)) => format!("write the IP address of {host}, as in 127.0.0.1:{port}"),
            (_, Err(_)) => "write an IP address and a port, as in 127.0.0.1:8000".into(),
        }
    })
}

/// Applies other `[log]` settings.
type SetLog = Box<dyn Fn(&Log) + Send>;

/// Logs to standard error by the settings of `[log]`. Returns a function that applies other settings; it ignores the
/// level if the environment has set one.
fn log(rules: &Log) -> Result<(SetLog, LogWriter), CliError> {
    let variable = std::env::var(LOG_VARIABLE).ok();
    let wanted = variable.clone().unwrap_or_else(|| directives(rules));
    let filter = EnvFilter::try_new(&wanted)
        .map_err(|error| format!("{LOG_VARIABLE} is {wanted:?}, which names no level: {error}"))?;
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (filter, handle) = reload::Layer::new(filter);
    // One of the two layers is always disabled.
    let is_json = Arc::new(AtomicBool::new(rules.format == LogFormat::Json));
    let [for_text, for_json] = [Arc::clone(&is_json), Arc::clone(&is_json)];
    let lines = LogWriter::start().map_err(|error| format!("the log has no thread: {error}"))?;
    let text = fmt::layer()
        .with_writer(lines.clone())
        .with_ansi(colours)
        .with_filter(dynamic_filter_fn(move |_, _| !for_text.load(Ordering::Relaxed)));
    let json = fmt::layer()
        .with_writer(lines.clone())
        .with_ansi(false)
        .json()
        .with_filter(dynamic_filter_fn(move |_, _| for_json.load(Ordering::Relaxed)));
    tracing_subscriber::registry().with(filter).with(text).with(json).init();
    let set_log: SetLog = Box::new(move |rules: &Log| {
        is_json.store(rules.format == LogFormat::Json, Ordering::Relaxed);
        if variable.is_none() {
            // It fails only when logging has ended.
            let _ = handle.reload(EnvFilter::new(directives(rules)));
        }
    });
    Ok((set_log, lines))
}

/// Returns the filter of these settings.
fn directives(rules: &Log) -> String {
    let targets = rules.targets.iter().map(|(target, of)| format!(",{target}={}", of.as_str()));
    rules.level.as_str().to_owned() + &targets.collect::<String>()
}

/// Returns the addresses to print at the start.
fn banner(ready: &Ready, page: bool) -> String {
    let client = format!("http://{}", ready.client_addr);
    let admin = format!("http://{}", ready.admin_addr);
    let threads = if ready.workers == 1 { "worker" } else { "workers" };
    let mut out = format!(
        "{} {} with {} {threads}\n\n",
        paint(BOLD, "Dunlin"),
        env!("CARGO_PKG_VERSION"),
        ready.workers
    );
    let mut rows = vec![
        (
            "clients",
            format!("ws://{}/connection/websocket", ready.client_addr),
            "centrifuge-js and the other Centrifugal SDKs",
        ),
        ("", format!("{client}/connection/uni_sse"), "EventSource"),
        ("", format!("{client}/connection/poll?channel=news"), "long-poll"),
        ("API", format!("{client}/api/publish"), "and broadcast, history, presence, ..."),
        (
            "admin",
            format!("{admin}/"),
            "the page of operators; and /config, /metrics, /health, /info",
        ),
    ];
    if page {
        rows.insert(0, ("page", format!("{client}/"), "watch a channel, publish to it"));
    }
    let width = rows.iter().map(|(_, link, _)| link.len()).max().unwrap_or(0);
    for (name, link, what) in rows {
        let link = paint(LINK, format_args!("{link:width$}"));
        let _ = writeln!(out, "  {name:<9}{link}  {}", paint(DIM, what));
    }
    if !ready.memory.is_empty() {
        let _ = writeln!(out, "  {:<9}{}", "memory", paint(DIM, &ready.memory));
    }
    for sentence in &ready.recovery {
        let _ = writeln!(out, "  {:<9}{sentence}", "state");
    }
    out
}

/// Returns an explanation of development mode.
fn development_notice(ready: &Ready) -> String {
    format!(
        "\n  {} Everyone on this machine may publish and subscribe, without key or token.\n  \
         To serve others: dunlin config default > dunlin.toml, set `api.keys` and\n  \
         `client.token.hmac_secret`, then dunlin serve --config dunlin.toml\n\n  \
         {}\n  curl -d '{{\"channel\": \"news\", \"data\": {{\"text\": \"hello\"}}}}' http://{}/api/publish\n",
        paint(WARN, "DEVELOPMENT MODE."),
        paint(DIM, "# publish:"),
        ready.client_addr,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_in_an_address_is_answered_with_what_to_write() {
        assert_eq!(address("127.0.0.1:8000").unwrap().port(), 8000);
        assert_eq!(address("8000").unwrap_err(), "write 127.0.0.1:8000");
        assert_eq!(address(":8000").unwrap_err(), "write 127.0.0.1:8000");
        assert_eq!(address("localhost:8000").unwrap_err(), "write 127.0.0.1:8000");
        assert!(address("push.example:80").unwrap_err().contains("IP address of push.example"));
        assert!(address("127.0.0.1").unwrap_err().contains("a port"));
    }

    #[test]
    fn the_banner_names_the_bound_addresses_and_says_development_mode_loudly() {
        let ready = Ready {
            client_addr: "127.0.0.1:41234".parse().unwrap(),
            admin_addr: "127.0.0.1:41235".parse().unwrap(),
            workers: 2,
            recovery: vec!["revision 7".into()],
            memory: "at most 64 MiB for history".into(),
        };
        let quiet = banner(&ready, true);
        assert!(quiet.contains("http://127.0.0.1:41235/  ") && quiet.contains("2 workers"));
        assert!(quiet.contains("64 MiB for history"));
        assert!(quiet.contains("revision 7") && !quiet.contains("DEVELOPMENT"));
        let loud = development_notice(&ready);
        assert!(loud.contains("DEVELOPMENT MODE.") && loud.contains("http://127.0.0.1:41234/"));
    }
}
