//! `dunlin federation`: keys; `dunlin peers`: servers of other owners as one server sees them.

use clap::Subcommand;
use dunlin_federation::{Identity, KEY_BYTES};
use serde_json::{Value, json};

use crate::config::Server;
use crate::error::CliError;
use crate::style;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make the key of a domain: the private one for its settings, the public one for its peers
    Key {
        /// Print the public key of this private key instead
        #[arg(long, value_name = "KEY")]
        of: Option<String>,
    },
}

impl Command {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let Command::Key { of } = self;
        let private = match of {
            Some(key) => key.clone(),
            None => {
                let mut seed = [0; KEY_BYTES];
                getrandom::fill(&mut seed).map_err(|error| error.to_string())?;
                seed.iter().map(|byte| format!("{byte:02x}")).collect()
            }
        };
        let public = Identity::new("", &private)?.public_key();
        style::print(&match of {
            Some(_) => format!("{public}\n"),
            None => format!(
                "# in the settings of this domain, secret:\n[federation]\nkey = \"{private}\"\n\n\
                 # in the settings of each peer:\n# federation.peers.\"THIS-DOMAIN\".keys = [\"{public}\"]\n"
            ),
        })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Peers {
    /// List the peers: state, queue, age of the oldest message, rates, last error
    List {
        #[command(flatten)]
        server: Server,
    },
    /// Dial a peer now, in place of waiting for the next attempt
    Retry {
        /// Its domain
        peer: String,
        #[command(flatten)]
        server: Server,
    },
}

impl Peers {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match self {
            Peers::List { server } => {
                let status = server.get("/federation")?;
                match server.wants_json() {
                    true => style::print(&format!("{status:#}\n")),
                    false => style::print(&shown(&status)),
                }
            }
            Peers::Retry { peer, server } => {
                server.post(&format!("/federation/{peer}/retry"), &json!({}))?;
                style::print(&format!("{peer} is dialed; `dunlin peers list` shows the result\n"))
            }
        }
    }
}

/// The peers for a person.
fn shown(status: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    if text(&status["domain"]).is_empty() {
        return "federation is off; set `federation.enabled`\n".to_owned();
    }
    let mut out =
        format!("{}, public key {}\n", text(&status["domain"]), text(&status["public_key"]));
    if let Some(problem) = status["problem"].as_str() {
        out += &format!("{}\n", style::paint(style::BAD, problem));
    }
    for peer in status["peers"].as_array().into_iter().flatten() {
        let state = text(&peer["state"]);
        let is_up = state == "up";
        out += &format!(
            "{:<24} {}  queue {} ({} bytes)",
            text(&peer["peer"]),
            style::paint(if is_up { style::GOOD } else { style::BAD }, &state),
            style::grouped(number(&peer["queued"])),
            style::grouped(number(&peer["queued_bytes"])),
        );
        if let Some(oldest_ms) = peer["oldest_ms"].as_u64() {
            out += &format!(", oldest {} s", oldest_ms / 1_000);
        }
        out += &format!(
            "  out {}/s, in {}/s\n",
            style::grouped(number(&peer["sent_per_second"])),
            style::grouped(number(&peer["received_per_second"])),
        );
        let error = text(&peer["last_error"]);
        if !is_up && !error.is_empty() {
            out += &format!("  {error}\n");
        }
        if let Some(next_ms) = peer["next_attempt_ms"].as_u64() {
            let attempts = number(&peer["attempts"]);
            out += &format!("  {attempts} attempts, the next in {} s\n", next_ms.div_ceil(1_000));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_a_line_and_one_that_is_down_says_why() {
        let status = json!({
            "domain": "a.example", "public_key": "ab", "problem": null,
            "peers": [
                {"peer": "b.example", "state": "up", "queued": 12_000, "queued_bytes": 99, "sent_per_second": 7},
                {"peer": "c.example", "state": "down", "queued": 1, "oldest_ms": 61_000,
                 "last_error": "connection refused", "attempts": 3, "next_attempt_ms": 1_500},
            ],
        });
        let shown = shown(&status);
        for part in ["a.example", "12,000", "oldest 61 s", "connection refused", "the next in 2 s"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(super::shown(&json!({})).contains("federation.enabled"));
    }
}
