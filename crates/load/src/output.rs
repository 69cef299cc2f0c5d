//! What a benchmark found, as JSON: written by whoever measured, read again by whoever reports.

use std::io::Write;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

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

    /// Writes what a benchmark found, with its name, the machine and the moment, if that was asked for.
    ///
    /// # Errors
    /// When standard output does not take it.
    pub fn findings(&self, benchmark: &str, of: &impl Serialize) -> Result<(), Error> {
        if !self.json {
            return Ok(());
        }
        self.line(&Measured { benchmark: benchmark.to_owned(), host: Host::now(), of })
    }

    /// The same for a result that is an object of its own kind.
    ///
    /// # Errors
    /// As of [`Output::findings`].
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

/// What was found, by which benchmark, where and when.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured<T> {
    #[serde(default)]
    pub benchmark: String,
    pub host: Host,
    #[serde(flatten)]
    pub of: T,
}

impl<T> Deref for Measured<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_one_flat_object_with_its_machine() {
        #[derive(Debug, Serialize, Deserialize)]
        struct Found {
            messages: u64,
            seconds: f64,
            bytes: Option<i64>,
        }
        let of = Found { messages: u64::MAX, seconds: 0.5, bytes: None };
        let measured = Measured { benchmark: "some".into(), host: Host::now(), of };
        let text = serde_json::to_string(&measured).unwrap();
        assert!(text.contains(r#""messages":18446744073709551615,"seconds":0.5"#), "{text}");
        let again: Measured<Found> = serde_json::from_str(&text).unwrap();
        assert_eq!((again.messages, again.bytes), (u64::MAX, None));
        assert_eq!(again.host, measured.host);
    }
}
