//! The results file: a line for each ended push, so that an interrupted run can be resumed.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use dunlin_push::registry::{Device, Platform};
use dunlin_push::{Outcome, OutcomeJson, OutcomeKind};
use serde::{Deserialize, Serialize};

use super::list::Entry;

/// A line of the file.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// `None` for Apple's, as in the files of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<Platform>,
    token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(flatten)]
    ended: OutcomeJson<'a>,
}

/// The fields of a line that a later run needs.
#[derive(Debug, Deserialize)]
struct Ended {
    provider: Option<Platform>,
    token: String,
    topic: Option<String>,
    outcome: OutcomeKind,
    status: Option<u16>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    possible_duplicate: bool,
}

/// The results file, open for appending, and the tokens in it.
#[derive(Debug)]
pub(super) struct Results {
    file: BufWriter<File>,
    bytes: u64,
    /// Tokens with a final outcome, and those that this run has begun.
    taken: HashSet<u128>,
    /// Pushes that may have arrived once already.
    possible_duplicates: HashMap<u128, u64>,
}

impl Results {
    /// Opens or creates the file and reads it. A truncated last line is removed. Pushes in `begun` without a line
    /// after their position may have arrived.
    ///
    /// # Errors
    /// When reading fails, a line is invalid (its number is named), or another run is writing the file.
    pub(super) fn open(path: &Path, mut begun: HashMap<u128, u64>) -> io::Result<Results> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        file.try_lock().map_err(|_| io::Error::other("another import is writing these results"))?;
        let mut taken = HashSet::new();
        let mut marked = HashMap::new();
        let mut reader = BufReader::new(&file);
        let (mut text, mut bytes, mut number) = (String::new(), 0, 0u64);
        loop {
            text.clear();
            let read = reader.read_line(&mut text)?;
            if !text.ends_with('\n') {
                break;
            }
            number += 1;
            let line: Ended = serde_json::from_str(&text).map_err(|error| {
                let why =
                    format!("line {number} is no line of results ({error}); name another file");
                io::Error::new(io::ErrorKind::InvalidData, why)
            })?;
            let fingerprint = fingerprint(line.provider, &line.token, line.topic.as_deref());
            if line.outcome.is_final(line.status, &line.reason) {
                taken.insert(fingerprint);
                marked.remove(&fingerprint);
            } else if line.possible_duplicate {
                marked.insert(fingerprint, bytes);
            }
            if begun.get(&fingerprint).is_some_and(|length| bytes >= *length) {
                begun.remove(&fingerprint);
            }
            bytes += read as u64;
        }
        drop(reader);
        file.set_len(bytes)?;
        begun.extend(marked);
        Ok(Results { file: BufWriter::new(file), bytes, taken, possible_duplicates: begun })
    }

    /// Returns the number of tokens with a final outcome.
    pub(super) fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Returns pushes of earlier runs that may have arrived but have no result line.
    pub(super) fn possible_duplicates(&self) -> &HashMap<u128, u64> {
        &self.possible_duplicates
    }

    /// Returns the length of the file with everything written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Marks a push as taken up. Returns false if it already was, in this run or with a final outcome in an earlier one.
    pub(super) fn take_up(&mut self, fingerprint: u128) -> bool {
        self.taken.insert(fingerprint)
    }

    /// Writes the outcome of a push. Returns true if it may have arrived twice.
    pub(super) fn write(&mut self, entry: &Entry, outcome: &Outcome) -> io::Result<bool> {
        let mut ended = outcome.to_json();
        let may_have_arrived = self.possible_duplicates.remove(&entry.fingerprint()).is_some();
        ended.possible_duplicate |= may_have_arrived;
        let provider = entry.provider.filter(|platform| *platform != Platform::Apns);
        let line = Line { provider, token: &entry.token, topic: entry.topic.as_deref(), ended };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        self.bytes += text.len() as u64;
        self.file.write_all(&text)?;
        Ok(may_have_arrived)
    }

    /// Writes the buffered lines to the file, where they survive this process.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// Syncs all lines to the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_data()
    }
}

impl Entry {
    pub(super) fn fingerprint(&self) -> u128 {
        fingerprint(self.provider, &self.token, self.topic.as_deref())
    }
}

/// Hashes a token and its app to 16 bytes, so that ten million fit into memory.
fn fingerprint(provider: Option<Platform>, token: &str, topic: Option<&str>) -> u128 {
    let platform = provider.unwrap_or(Platform::Apns);
    let device = Device { platform, app: String::new(), token: token.to_owned() };
    let whole = (device.identity(), topic);
    let half = |seed| u128::from(foldhash::quality::FixedState::with_seed(seed).hash_one(&whole));
    half(1) << 64 | half(2)
}

#[cfg(test)]
mod tests {
    use dunlin_push::{Accepted, NotSent, Rejected};

    use super::*;

    fn entry(token: &str) -> Entry {
        Entry { token: token.to_owned(), ..Entry::default() }
    }

    fn rejected(status: u16, reason: &str) -> Outcome {
        Outcome::Rejected(Rejected { status, reason: reason.into(), ..Rejected::default() })
    }

    #[test]
    fn a_run_goes_on_where_the_last_one_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results");
        let accepted = Outcome::Accepted(Accepted { id: "x".into(), ..Accepted::default() });
        let (later, duplicate);
        {
            let mut results = Results::open(&path, HashMap::new()).unwrap();
            let (lower, upper) = (entry("aa").fingerprint(), entry("AA").fingerprint());
            assert!(results.take_up(lower) && !results.take_up(upper), "a token is sent to once");
            results.write(&entry("aa"), &accepted).unwrap();
            results.write(&entry("bb"), &Outcome::NotSent(NotSent::Deadline)).unwrap();
            results.write(&entry("dd"), &rejected(503, "ServiceUnavailable")).unwrap();
            results.write(&entry("ee"), &rejected(403, "InvalidProviderToken")).unwrap();
            results.write(&entry("ff"), &rejected(410, "Unregistered")).unwrap();
            later = results.bytes();
            results.flush().unwrap();
        }
        let mut cut = OpenOptions::new().append(true).open(&path).unwrap();
        cut.write_all(br#"{"token":"cc","outc"#).unwrap();
        drop(cut);
        {
            // `aa` has a result line after its position, `bb` only before it, and `cc` has none.
            let begun = ["aa", "bb", "cc"].map(|token| entry(token).fingerprint());
            let begun = HashMap::from([(begun[0], 0), (begun[1], later), (begun[2], later)]);
            let mut results = Results::open(&path, begun).unwrap();
            assert_eq!((results.taken(), results.possible_duplicates().len()), (2, 2));
            let again = ["bb", "cc", "dd", "ee"].map(|token| entry(token).fingerprint());
            assert!(again.into_iter().all(|push| results.take_up(push)), "temporary refusals too");
            assert!(!results.take_up(entry("ff").fingerprint()));
            duplicate = results.write(&entry("cc"), &accepted).unwrap();
        }
        assert!(duplicate);
        let lines = std::fs::read_to_string(&path).unwrap();
        let last = r#"{"token":"cc","outcome":"accepted","id":"x","possible_duplicate":true}"#;
        assert_eq!(lines.lines().last(), Some(last));
        std::fs::write(&path, "something else\n").unwrap();
        let refused = Results::open(&path, HashMap::new()).unwrap_err();
        assert!(refused.to_string().contains("line 1"));
    }
}
