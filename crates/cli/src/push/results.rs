//! The file of results: a line for each device token that has been answered, so that a run that ended early can go on.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use dunlin_push::{Outcome, OutcomeJson, OutcomeKind};
use serde::{Deserialize, Serialize};

/// A line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    token: &'a str,
    #[serde(flatten)]
    ended: OutcomeJson<'a>,
}

/// What a later run needs of a line. One that was not sent is sent then; one that is uncertain is not, for it may have been
/// accepted.
#[derive(Debug, Deserialize)]
struct Answered {
    token: String,
    outcome: OutcomeKind,
}

/// The file, open for more lines, and which tokens it has answers for.
#[derive(Debug)]
pub(super) struct Results {
    file: BufWriter<File>,
    answered: HashSet<u128>,
}

impl Results {
    /// Opens the file, made if it is not there, and reads what it has. A last line that was cut is taken off.
    ///
    /// # Errors
    /// What the system says, and the number of a line that is none of ours.
    pub(super) fn open(path: &Path) -> io::Result<Results> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut answered = HashSet::new();
        let mut reader = BufReader::new(&file);
        let (mut text, mut whole, mut number) = (String::new(), 0, 0u64);
        loop {
            text.clear();
            let bytes = reader.read_line(&mut text)?;
            if !text.ends_with('\n') {
                break;
            }
            number += 1;
            let line: Answered = serde_json::from_str(&text).map_err(|error| {
                let told =
                    format!("line {number} is no line of results ({error}); name another file");
                io::Error::new(io::ErrorKind::InvalidData, told)
            })?;
            whole += bytes as u64;
            if line.outcome != OutcomeKind::NotSent {
                answered.insert(fingerprint(&line.token));
            }
        }
        drop(reader);
        file.set_len(whole)?;
        let mut file = BufWriter::new(file);
        file.seek(SeekFrom::End(0))?;
        Ok(Results { file, answered })
    }

    /// Tokens that have an answer.
    pub(super) fn answered(&self) -> usize {
        self.answered.len()
    }

    /// Marks a token as taken up; false when it has been already, in this run or one before.
    pub(super) fn take_up(&mut self, token: &str) -> bool {
        self.answered.insert(fingerprint(token))
    }

    /// Writes how the push to a token ended.
    pub(super) fn write(&mut self, token: &str, outcome: &Outcome) -> io::Result<()> {
        let line = Line { token, ended: outcome.to_json() };
        serde_json::to_writer(&mut self.file, &line)?;
        self.file.write_all(b"\n")
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Sixteen bytes instead of a token, so that ten million fit into memory.
fn fingerprint(token: &str) -> u128 {
    let token = token.to_ascii_lowercase();
    let half = |seed| u128::from(foldhash::quality::FixedState::with_seed(seed).hash_one(&token));
    half(1) << 64 | half(2)
}

#[cfg(test)]
mod tests {
    use dunlin_push::{Accepted, NotSent};

    use super::*;

    #[test]
    fn a_run_goes_on_where_the_last_one_ended() {
        let path =
            std::env::temp_dir().join(format!("dunlin-results-{}.jsonl", std::process::id()));
        let accepted = Outcome::Accepted(Accepted { id: "x".into(), ..Accepted::default() });
        {
            let mut results = Results::open(&path).unwrap();
            assert!(results.take_up("aa") && !results.take_up("AA"), "a token is sent to once");
            results.write("aa", &accepted).unwrap();
            results.write("bb", &Outcome::NotSent(NotSent::Deadline)).unwrap();
            results.flush().unwrap();
        }
        let mut cut = OpenOptions::new().append(true).open(&path).unwrap();
        cut.write_all(br#"{"token":"cc","outc"#).unwrap();
        {
            let mut results = Results::open(&path).unwrap();
            assert_eq!(results.answered(), 1);
            assert!(!results.take_up("aa") && results.take_up("bb") && results.take_up("cc"));
            results.write("cc", &accepted).unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().count(), 3);
        assert_eq!(lines.lines().last(), Some(r#"{"token":"cc","outcome":"accepted","id":"x"}"#));
        std::fs::write(&path, "something else\n").unwrap();
        assert!(Results::open(&path).unwrap_err().to_string().contains("line 1"));
        std::fs::remove_file(&path).unwrap();
    }
}
