//! The report of a benchmark as a line of JSON.

use std::io::Write;

use serde::Serialize;

use crate::host::Host;
use crate::{Context, Error};

/// Where a result goes beside the terminal.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Output {
    /// One JSON object as the last line of standard output
    #[arg(long, help_heading = "Result")]
    json: bool,
}

impl Output {
    /// Whether standard output is for the result alone.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Writes a report with the name of its benchmark, the machine and the moment, if --json is given.
    ///
    /// # Errors
    /// When standard output does not take it.
    pub fn report(&self, benchmark: &str, of: &impl Serialize) -> Result<(), Error> {
        if !self.json {
            return Ok(());
        }
        self.line(&Measured { benchmark: benchmark.to_owned(), host: Host::now(), of })
    }

    /// The same for a result that is an object of its own kind.
    ///
    /// # Errors
    /// As of [`Output::report`].
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

/// A report with its benchmark, the machine and the moment.
#[derive(Debug, Serialize)]
struct Measured<T> {
    benchmark: String,
    host: Host,
    #[serde(flatten)]
    of: T,
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
}
