//! `dunlin explain`: the story of a decision, by the server that would decide.

use std::io::Read;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::config::Server;
use crate::error::CliError;
use crate::style;
use crate::style::{BAD, BOLD, DIM, GOOD, WARN, paint};

/// What a client asks for.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    Subscribe,
    Publish,
    History,
    Presence,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// What the client asks for
    action: Action,
    /// The channel
    channel: String,
    /// The client's connection token; `-` reads standard input, which keeps it out of the process list
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["user", "claims"])]
    client_token: Option<String>,
    /// The user, in place of a token; "" for an anonymous one
    #[arg(long)]
    user: Option<String>,
    /// Claims of the token that the user would have, as JSON: {"caps": [...], "meta": {...}}
    #[arg(long, value_name = "JSON", value_parser = super::token::json_value)]
    claims: Option<Value>,
    /// The subscription token that the client shows
    #[arg(long, value_name = "TOKEN")]
    subscription_token: Option<String>,
    /// The client is subscribed to the channel
    #[arg(long)]
    subscribed: bool,
    #[command(flatten)]
    server: Server,
}

impl Explain {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let action = match self.action {
            Action::Subscribe => "subscribe",
            Action::Publish => "publish",
            Action::History => "history",
            Action::Presence => "presence",
        };
        let mut question =
            json!({ "action": action, "channel": self.channel, "subscribed": self.subscribed });
        let token = match self.client_token.as_deref() {
            Some("-") => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text)?;
                Some(text.trim().to_owned())
            }
            token => token.map(str::to_owned),
        };
        let given = [
            ("token", token.map(Value::from)),
            ("user", self.user.as_deref().map(Value::from)),
            ("claims", self.claims.clone()),
            ("subscription_token", self.subscription_token.as_deref().map(Value::from)),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                question[name] = value;
            }
        }
        let story = self.server.post("/explain", &question)?;
        match self.server.wants_json() {
            true => style::print(&format!("{story:#}\n")),
            false => style::print(&shown(&story)),
        }
    }
}

/// The story for a person.
fn shown(story: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut out = match story["permitted"].as_bool() {
        Some(true) => format!("{}, by {}\n", paint(GOOD, "permitted"), text(&story["by"])),
        Some(false) => {
            format!("{}: {} {}\n", paint(BAD, "refused"), story["code"], text(&story["reason"]))
        }
        None => format!("{}: {}\n", paint(WARN, "not decided here"), text(&story["by"])),
    };
    for step in story["steps"].as_array().into_iter().flatten() {
        let outcome = text(&step["outcome"]);
        let style = match outcome.as_str() {
            "permits" => GOOD,
            "refuses" => BAD,
            _ => DIM,
        };
        let (name, detail) = (text(&step["step"]), text(&step["detail"]));
        // What a peer may have named is quoted by the server or escaped here.
        let detail: String = detail
            .chars()
            .flat_map(|c| match c.is_control() {
                true => c.escape_default().collect::<Vec<_>>(),
                false => vec![c],
            })
            .collect();
        out += &format!(
            "  {} {} {detail}\n",
            paint(BOLD, format_args!("{name:<18}")),
            paint(style, format_args!("{outcome:<8}"))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_begins_with_its_end_and_lists_who_was_asked() {
        let story = json!({
            "permitted": false, "code": 103, "reason": "permission denied",
            "steps": [{"step": "rules", "outcome": "passes", "detail": "not by\u{1b} allow_publish_for_client"}],
        });
        let shown = anstream::adapter::strip_str(&shown(&story)).to_string();
        assert!(shown.starts_with("refused: 103 permission denied\n"), "{shown}");
        assert!(
            shown.contains("rules") && shown.contains("not by\\u{1b} allow_publish"),
            "{shown}"
        );
    }
}
