//! `dunlin apns simulate`: runs the simulator.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use dunlin_simulate::Authority;
use dunlin_simulate::apns::{
    AnswerTime, Behaviour, Config, Drift, Environment, PeriodicDelay, ProviderKey, Rule, Simulator,
    WindowReturn,
};
use dunlin_wire::text::trim_byte_order_mark;

use crate::error::CliError;
use crate::style;
use crate::style::{BOLD, DIM, LINK, WARN, paint};

#[derive(Debug, Args)]
#[command(after_help = "All faults and the control API: docs/operating/apns-simulator.md")]
pub struct Simulate {
    /// Address that accepts pushes
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2197", value_parser = address)]
    listen: SocketAddr,
    /// Address of the control API (HTTP/1.1): ledger, counts, behaviour
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2198", value_parser = address)]
    control: SocketAddr,
    /// Certificate for clients to trust; created with its key if missing
    #[arg(long, value_name = "FILE", default_value = "apns-simulator-ca.pem", value_hint = ValueHint::FilePath)]
    ca: PathBuf,
    /// Plain HTTP/2 with prior knowledge instead of TLS, for measurements
    #[arg(long, conflicts_with = "ca")]
    plain: bool,
    /// Simulate api.push.apple.com instead of the sandbox
    #[arg(long)]
    production: bool,
    /// Accept only provider tokens signed with this key; may be repeated
    #[arg(long = "key", value_name = "KEY_ID:TEAM_ID:FILE", value_parser = key)]
    keys: Vec<ProviderKey>,
    /// JSON file with an array of rules: which device tokens are accepted or rejected
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    rules: Option<PathBuf>,
    /// JSON file with the behaviour fields that differ from the default
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    behaviour: Option<PathBuf>,
    /// Entries the ledger keeps; a million take about 120 MB
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    ledger_max: usize,
    /// Round trip time of the path, milliseconds
    #[arg(long, value_name = "MS")]
    rtt: Option<u64>,
    /// Share of the path's segments that are lost, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    loss: Option<f64>,
    /// Concurrent streams allowed once the first push is accepted
    #[arg(long, value_name = "N")]
    streams: Option<u32>,
    /// Concurrent streams allowed before that
    #[arg(long, value_name = "N")]
    streams_first: Option<u32>,
    /// Bytes of a connection's receive window
    #[arg(long, value_name = "BYTES")]
    window: Option<u32>,
    /// When flow-control windows are replenished
    #[arg(long, value_name = "WHEN")]
    window_return: Option<Return>,
    /// Response time of the service, without the network: 20, 5+exponential:25, lognormal:8,0.8, bimodal:0.05,1,30 or
    /// pareto:5,1.5, in milliseconds
    #[arg(long, value_name = "TIME")]
    answer_time: Option<AnswerTime>,
    /// Response times rise to a multiple and fall again, once in a period
    #[arg(long, value_name = "SECONDS,FACTOR")]
    drift: Option<Drift>,
    /// One device token in so many is slower
    #[arg(long, value_name = "ONE_IN,MS")]
    slow_shard: Option<PeriodicDelay>,
    /// One response in so many is slower
    #[arg(long, value_name = "ONE_IN,MS")]
    stall: Option<PeriodicDelay>,
    /// Pushes processed at once; others wait
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Return {
    /// With each read
    Eager,
    /// Once half of it is used
    Half,
    /// Never
    Never,
}

/// An example of a rules file.
const A_RULE: &str = r#"write an array, as in [{"token": "0a", "reason": "Unregistered"}]"#;

impl Simulate {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let behaviour = self.behaviour()?;
        let rules = match &self.rules {
            Some(file) => serde_json::from_str(&read(file)?)
                .map_err(|error| format!("{}: {error}; {A_RULE}", file.display()))?,
            None => Rule::defaults(),
        };
        let authority = if self.plain { None } else { Some(Authority::at(&self.ca)?) };
        let checked = !self.keys.is_empty();
        let simulator = Simulator::start(Config {
            listen: self.listen,
            control: Some(self.control),
            tls: !self.plain,
            authority,
            environment: if self.production {
                Environment::Production
            } else {
                Environment::Sandbox
            },
            keys: self.keys.clone(),
            rules,
            ledger_max: self.ledger_max,
            behaviour,
            ..Config::default()
        })?;
        style::print(&self.banner(&simulator, checked))?;
        simulator.wait();
        Ok(())
    }

    fn behaviour(&self) -> Result<Behaviour, CliError> {
        let mut behaviour = Behaviour::default();
        if let Some(file) = &self.behaviour {
            let patched = behaviour.patched(&read(file)?);
            behaviour = patched.map_err(|fault| format!("{}: {fault}", file.display()))?;
        }
        behaviour.rtt_ms = self.rtt.unwrap_or(behaviour.rtt_ms);
        behaviour.loss = self.loss.unwrap_or(behaviour.loss);
        behaviour.streams_max = self.streams.unwrap_or(behaviour.streams_max);
        behaviour.streams_first = self.streams_first.unwrap_or(behaviour.streams_first);
        behaviour.connection_window = self.window.unwrap_or(behaviour.connection_window);
        let time = &mut behaviour.answer_time;
        *time = self.answer_time.unwrap_or(*time);
        time.drift = self.drift.unwrap_or(time.drift);
        time.slow_shard = self.slow_shard.unwrap_or(time.slow_shard);
        time.stall = self.stall.unwrap_or(time.stall);
        time.workers = self.workers.unwrap_or(time.workers);
        behaviour.window_return = match self.window_return {
            Some(Return::Eager) => WindowReturn::Eager,
            Some(Return::Half) => WindowReturn::Half,
            Some(Return::Never) => WindowReturn::Never,
            None => behaviour.window_return,
        };
        behaviour.validate()?;
        Ok(behaviour)
    }

    /// Returns the address to push to, the certificate to trust, and an example push.
    fn banner(&self, simulator: &Simulator, checked: bool) -> String {
        let (scheme, trust) = if self.plain {
            ("http", "--http2-prior-knowledge".to_owned())
        } else {
            ("https", format!("--http2 --cacert {}", self.ca.display()))
        };
        let push = format!("{scheme}://{}", simulator.addr());
        let control =
            simulator.control_addr().map_or(String::new(), |addr| format!("http://{addr}"));
        let place =
            if self.production { "api.push.apple.com" } else { "api.sandbox.push.apple.com" };
        let mut out = format!("{} as {place}\n\n", paint(BOLD, "Dunlin's APNs simulator"));
        let mut row = |name: &str, link: &str, what: &str| {
            let _ = writeln!(
                out,
                "  {name:<9}{}  {}",
                paint(LINK, format_args!("{link:<28}")),
                paint(DIM, what)
            );
        };
        row("push to", &push, "POST /3/device/TOKEN");
        if !self.plain {
            row("trust", &self.ca.display().to_string(), "the same the next time");
        }
        row("control", &control, "/ledger, /counts, /behaviour, /order");
        if !checked {
            let _ = write!(
                out,
                "\n  {} Any well-formed provider token is taken. To have signatures checked:\n  \
                 --key KEY_ID:TEAM_ID:AuthKey_KEY_ID.p8\n",
                paint(WARN, "NO KEY GIVEN."),
            );
        }
        let _ = write!(
            out,
            "\n  {}\n  curl {trust} -d '{{\"aps\": {{\"alert\": \"hello\"}}}}' \\\n    \
             -H 'apns-topic: com.example.app' -H \"authorization: bearer $JWT\" \\\n    \
             {push}/3/device/00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0\n\n",
            paint(DIM, "# a push:"),
        );
        out
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an IP address and a port, as in 127.0.0.1:2197".into())
}

fn read(file: &Path) -> Result<String, CliError> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(trim_byte_order_mark(&text).to_owned())
}

/// Parses `KEY_ID:TEAM_ID:FILE`.
fn key(text: &str) -> Result<ProviderKey, String> {
    let mut parts = text.splitn(3, ':');
    let (Some(key_id), Some(team_id), Some(file)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(
            "write KEY_ID:TEAM_ID:FILE, as in ABC123DEFG:DEF123GHIJ:AuthKey_ABC123DEFG.p8".into()
        );
    };
    for (id, what) in [(key_id, "key id"), (team_id, "team id")] {
        if id.len() != 10 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("a {what} has ten letters and digits, {id:?} has not"));
        }
    }
    let pem = read(Path::new(file)).map_err(|error| error.to_string())?;
    Ok(ProviderKey {
        key_id: key_id.to_owned(),
        team_id: team_id.to_owned(),
        pem,
        environment: None,
        topics: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_named_with_its_team_and_its_file() {
        assert!(key("ABC123DEFG").unwrap_err().contains("KEY_ID:TEAM_ID:FILE"));
        assert!(key("ABC:DEF123GHIJ:x").unwrap_err().contains("ten letters"));
        assert!(key("ABC123DEFG:DEF123GHIJ:no/such/file").unwrap_err().contains("no/such/file"));
    }
}
