//! `dunlin push scheduled`: the durable batches of a server that wait for their time.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::config::ServerApi;
use crate::error::CliError;
use crate::style::{grouped, print};

#[derive(Debug, Args)]
pub(crate) struct Scheduled {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them: batch, number of pushes, time (seconds since 1970)
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        api: ServerApi,
    },
    /// Cancel one that has not begun: none of its pushes is sent
    Cancel {
        /// The batch, as `list` and the answer to its request name it
        batch: u64,
        #[command(flatten)]
        api: ServerApi,
    },
}

impl Scheduled {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match &self.action {
            Action::List { json, api } => list(*json, api),
            Action::Cancel { batch, api } => {
                let done = api.call("push/scheduled/cancel", &json!({ "batch": batch }))?;
                let pushes = done["cancelled"].as_u64().unwrap_or_default();
                print(&format!("batch {batch} is cancelled: {} pushes\n", grouped(pushes)))
            }
        }
    }
}

fn list(json: bool, api: &ServerApi) -> Result<(), CliError> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let after = all.last().map_or(json!(0), |last| last["batch"].clone());
        let page = api.call("push/scheduled/list", &json!({ "after": after }))?;
        match page["scheduled"].as_array() {
            Some(page) if !page.is_empty() => all.extend(page.iter().cloned()),
            _ => break,
        }
    }
    if json {
        return print(&format!("{}\n", json!({ "scheduled": all })));
    }
    let number = |one: &Value, name: &str| one[name].as_u64().unwrap_or_default();
    let lines = all.iter().map(|one| {
        let pushes = grouped(number(one, "pushes"));
        format!("{}  {pushes} pushes at {}\n", number(one, "batch"), number(one, "send_at_s"))
    });
    print(&lines.collect::<String>())
}
