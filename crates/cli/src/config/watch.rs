//! Follows changes as they happen: prints the admin port's event stream like a log.

use std::io::{BufRead, BufReader};

use serde_json::Value;

use super::client::{Client, Method};
use super::show;
use crate::error::CliError;
use crate::style;
use crate::style::{DIM, paint};

/// Follows the stream until it ends or the output is closed.
pub(super) fn run(from: Option<u64>, client: &Client, json: bool) -> Result<(), CliError> {
    let path = match from {
        Some(from) => format!("/config/watch?from={from}"),
        None => "/config/watch".to_owned(),
    };
    let accept = [("Accept", "text/event-stream".to_owned())];
    let response = client.call(Method::Get, &path, &accept, None)?;
    if response.status != 200 {
        // A response without status 200 is a problem, never a stream.
        return response.read().map(drop);
    }
    let mut event = Event::default();
    for line in BufReader::new(response.body).lines() {
        if let Some((name, data)) = event.take_line(&line?) {
            print(&name, &data, json)?;
        }
    }
    Err("the server closed the stream; it may be shutting down".into())
}

fn print(name: &str, data: &str, json: bool) -> Result<(), CliError> {
    let value: Value = serde_json::from_str(data)?;
    if json {
        return style::print(&format!("{}\n", serde_json::json!({"event": name, "data": value})));
    }
    let revision = value["revision"].as_u64().unwrap_or(0);
    match name {
        "change" => style::print(&show::revision(&value)),
        "snapshot" => {
            let reported = "what came before is not kept any more; changes from here on:";
            style::print(&format!(
                "{} {reported}\n",
                paint(style::LINK, format_args!("revision {revision}"))
            ))
        }
        "progress" => {
            style::print(&format!("{}\n", paint(DIM, format_args!("revision {revision}"))))
        }
        _ => Ok(()),
    }
}

/// The part of an event that has been read (HTML standard, "Interpreting an event stream").
#[derive(Default)]
struct Event {
    name: String,
    data: String,
}

impl Event {
    /// Processes a line. Returns the event if the line completes one.
    fn take_line(&mut self, line: &str) -> Option<(String, String)> {
        if line.is_empty() {
            let Event { name, data } = std::mem::take(self);
            return (!data.is_empty()).then_some((name, data));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_complete_at_its_empty_line() {
        let mut event = Event::default();
        let lines =
            ["retry: 1000", "", ": beat", "event: change", "id: 2", "data: {\"a\":", "data:1}", ""];
        let events: Vec<_> = lines.iter().filter_map(|line| event.take_line(line)).collect();
        assert_eq!(events, [("change".to_owned(), "{\"a\":\n1}".to_owned())]);
    }
}
