//! `dunlin trace --live`: what happens to one user, client, address or channel, line by line.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;

use clap::Args;
use serde_json::Value;

use crate::config::Server;
use crate::error::CliError;
use crate::style;
use crate::style::{BAD, DIM, GOOD, paint};

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("subject").required(true).multiple(true))]
pub(crate) struct Trace {
    /// Show events as they happen
    #[arg(long, required = true)]
    live: bool,
    /// Only this user
    #[arg(long, group = "subject")]
    user: Option<String>,
    /// Only the client with this id
    #[arg(long, value_name = "ID", group = "subject")]
    client: Option<String>,
    /// Only clients from this IP address
    #[arg(long, value_name = "IP", group = "subject")]
    address: Option<IpAddr>,
    /// Only events about this channel
    #[arg(long, value_name = "NAME", group = "subject")]
    channel: Option<String>,
    /// The tenant of the user and the channel
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    #[command(flatten)]
    server: Server,
}

impl Trace {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        debug_assert!(self.live, "clap requires it");
        let address = self.address.map(|address| address.to_string());
        let parts = [
            ("user", &self.user),
            ("client", &self.client),
            ("address", &address),
            ("channel", &self.channel),
            ("tenant", &self.tenant),
        ];
        let mut path = format!("/trace?for_s={}", self.seconds);
        for (name, value) in parts {
            if let Some(value) = value {
                path += &format!("&{name}={}", Server::query_value(value));
            }
        }
        for line in BufReader::new(self.server.stream(&path)?).lines() {
            let line = line?;
            match self.server.wants_json() {
                true => style::print(&format!("{line}\n"))?,
                false => style::print(&shown(&serde_json::from_str(&line)?))?,
            }
        }
        Ok(())
    }
}

/// An event for a person: the time of day, what happened, and its fields.
fn shown(event: &Value) -> String {
    let name = event["event"].as_str().unwrap_or_default();
    match name {
        "begin" => return format!("{}\n", paint(DIM, "waiting for events; Ctrl-C ends")),
        "end" => {
            let why = event["reason"].as_str().unwrap_or_default();
            return format!("{}\n", paint(DIM, format_args!("the trace ends: {why}")));
        }
        "lost" => {
            return format!("{}\n", paint(BAD, format_args!("{} events are lost", event["more"])));
        }
        _ => {}
    }
    let ms = event["at_unix_ms"].as_u64().unwrap_or_default();
    let (s, ms) = (ms / 1_000 % 86_400, ms % 1_000);
    let time = format!("{:02}:{:02}:{:02}.{ms:03}", s / 3_600, s / 60 % 60, s % 60);
    let ends = ["refused", "disconnected", "unsubscribed", "protocol_error", "blocked"];
    let style = if ends.iter().any(|end| name.ends_with(end)) { BAD } else { GOOD };
    let fields = event.as_object().into_iter().flatten();
    let fields = fields
        .filter(|(key, _)| !["at_unix_ms", "event", "message"].contains(&key.as_str()))
        .map(|(key, value)| format!(" {}{value}", paint(DIM, format_args!("{key}="))));
    format!(
        "{} {}{}\n",
        paint(DIM, time),
        paint(style, format_args!("{name:<20}")),
        fields.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_a_line_and_what_a_peer_has_named_stays_in_its_quotes() {
        let event = json!({
            "at_unix_ms": 3_723_004, "event": "command_refused", "message": "a command was refused",
            "code": 103, "user": "ann\n\u{1b}[2J",
        });
        let line = anstream::adapter::strip_str(&shown(&event)).to_string();
        assert_eq!(line, "01:02:03.004 command_refused      code=103 user=\"ann\\n\\u001b[2J\"\n");
    }
}
