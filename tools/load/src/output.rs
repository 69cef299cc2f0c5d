//! The report of a benchmark: a table for people, and a line of JSON.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;

use crate::figures::group;
use crate::host::Host;
use crate::{Context, Error, say};

/// Where to write a result, besides the terminal.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Output {
    /// One JSON object as the last line of standard output
    #[arg(long, help_heading = "Result")]
    json: bool,
}

impl Output {
    /// Returns whether standard output is reserved for the JSON result.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a result on standard output, or on standard error with --json, which reserves standard output.
    ///
    /// # Errors
    /// When writing to standard output fails.
    pub fn show(&self, text: &str) -> Result<(), Error> {
        if self.json {
            say(text.trim_end());
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", text.trim_end()).context("cannot write to standard output")?;
        out.flush().context("cannot write to standard output")
    }

    /// Prints a report, and with --json also writes it with the benchmark's name, the machine and the time.
    ///
    /// # Errors
    /// When writing to standard output fails.
    pub fn report(&self, benchmark: &str, of: &impl Serialize) -> Result<(), Error> {
        let value = serde_json::to_value(of)
            .map_err(|error| Error::new(format!("cannot write JSON: {error}")))?;
        self.show(&readable(&value))?;
        self.write(benchmark, of)
    }

    /// Writes a report without printing it, for a caller that has printed it already.
    ///
    /// # Errors
    /// As for [`Output::report`].
    pub fn write(&self, benchmark: &str, of: &impl Serialize) -> Result<(), Error> {
        self.line(&Measured { benchmark: benchmark.to_owned(), host: Host::now(), of })
    }

    /// Writes a result that is already a JSON object of its own.
    ///
    /// # Errors
    /// As for [`Output::report`].
    pub fn line(&self, object: &impl Serialize) -> Result<(), Error> {
        if !self.json {
            return Ok(());
        }
        let line = serde_json::to_string(object)
            .map_err(|error| Error::new(format!("cannot write JSON: {error}")))?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").context("cannot write to standard output")?;
        out.flush().context("cannot write to standard output")
    }
}

/// A report with its benchmark, machine and time.
#[derive(Debug, Serialize)]
struct Measured<T> {
    benchmark: String,
    host: Host,
    #[serde(flatten)]
    of: T,
}

/// Formats a line for each figure and a table for each list of records. The rounds behind a median are only in the
/// JSON.
fn readable(report: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", report, &mut rows);
    let mut text = aligned(rows.into_iter().map(|(name, figure)| vec![name, figure]).collect());
    lists("", report, &mut text);
    text
}

/// Flattens the figures of a record and its nested records.
fn flatten(name: &str, value: &Value, out: &mut Vec<(String, String)>) {
    let figure = match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                flatten(format!("{name} {field}").trim_start(), value, out);
            }
            return;
        }
        Value::Null | Value::Array(_) => return,
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64().unwrap_or_default() {
            whole if !number.is_f64() || whole.abs() >= 1e3 => group(whole),
            some if some.abs() >= 10.0 => format!("{some:.1}"),
            some => format!("{some:.4}"),
        },
        Value::Bool(is_so) => is_so.to_string(),
    };
    out.push((name.replace('_', " "), figure));
}

fn lists(name: &str, value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields.iter().filter(|(field, _)| *field != "rounds") {
                lists(&format!("{name} {field}"), value, text);
            }
        }
        Value::Array(records) if records.iter().any(Value::is_object) => {
            let mut rows = vec![vec![name.trim().replace('_', " ")]];
            for (index, record) in records.iter().enumerate() {
                let mut figures = Vec::new();
                flatten("", record, &mut figures);
                for row in &mut rows {
                    row.push("–".to_owned());
                }
                for (figure, value) in figures {
                    let place = rows.iter().position(|row| row[0] == figure);
                    let place = place.unwrap_or_else(|| {
                        rows.push([vec![figure], vec!["–".to_owned(); index + 1]].concat());
                        rows.len() - 1
                    });
                    rows[place][index + 1] = value;
                }
            }
            rows[0][1..]
                .iter_mut()
                .zip(1..)
                .for_each(|(head, number)| *head = format!("{number}."));
            // Use the narrower orientation.
            if records.len() > rows.len() {
                rows = (0..=records.len())
                    .map(|column| rows.iter().map(|row| row[column].clone()).collect())
                    .collect();
            }
            *text += &format!("\n{}", aligned(rows));
            for (record, number) in records.iter().zip(1..) {
                lists(&format!("{name} {number}"), record, text);
            }
        }
        _ => {}
    }
}

/// Aligns names left, figures right.
fn aligned(rows: Vec<Vec<String>>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length =
        |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| length(row, column)).max().unwrap_or(0))
        .collect();
    let line = |row: Vec<String>| {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            });
        cells.collect::<String>() + "\n"
    };
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_one_flat_object_with_its_machine() {
        #[derive(Serialize)]
        struct Report {
            messages: u64,
            seconds: f64,
        }
        let of = Report { messages: u64::MAX, seconds: 0.5 };
        let measured = Measured { benchmark: "some".into(), host: Host::now(), of };
        let text = serde_json::to_string(&measured).unwrap();
        assert!(text.starts_with(r#"{"benchmark":"some","host":{"cpu":"#), "{text}");
        assert!(text.ends_with(r#""messages":18446744073709551615,"seconds":0.5}"#), "{text}");
    }

    #[test]
    fn a_report_is_read_as_figures_and_tables() {
        let report = serde_json::json!({
            "connections": 10_000, "server_cores": 0.25, "label": null,
            "rows": [{"p50_us": 12.345, "who": {"name": "floor"}}, {"rounds": [{"x": 1}], "who": {"name": "dunlin"}}],
        });
        let text = "connections   10,000\nserver cores  0.2500\n\n\
                    rows         1.      2.\np50 us     12.3       –\nwho name  floor  dunlin\n";
        assert_eq!(readable(&report), text);
    }
}
