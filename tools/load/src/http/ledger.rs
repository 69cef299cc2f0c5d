//! `dunlin bench ledger`: compares the client's results with the server's log, line by line.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Context, Error, ExitStatus, Output, say};

/// Options of `dunlin bench ledger`.
#[derive(Debug, clap::Args)]
pub struct LedgerCheck {
    /// Ledger written by `dunlin bench http --ledger`
    #[arg(long, value_name = "FILE")]
    pub(crate) client: PathBuf,
    /// The server's log, each line `SERVED ID OUTCOME`: `bench serve --log`, or a log_format of nginx
    #[arg(long, value_name = "FILE")]
    pub(crate) server: PathBuf,
    /// Expected number of requests
    #[arg(long, value_name = "N")]
    pub(crate) requests: Option<u64>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The result of comparing two ledgers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Agreement {
    /// Requests of the client, and those of them that were answered.
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    /// Requests that failed, or are uncertain or unanswered.
    pub(crate) not_answered: u64,
    /// Requests with more than one line in the client's ledger; must be 0.
    pub(crate) ended_twice: u64,
    /// Requests sent more than once, because a connection closed before the answer.
    pub(crate) sent_again: u64,
    /// Lines of the server's log.
    pub(crate) server_lines: u64,
    /// Answered requests for which the server's log has the same answer name and the same id.
    pub(crate) agreed: u64,
    /// Answered requests whose answer is missing from the log, or logged with another id.
    pub(crate) disagreed: u64,
    /// Requests that the server processed and the client repeated: allowed for idempotent requests only.
    pub(crate) done_twice: u64,
    /// Requests that the server processed more often than the client sent them, or that the client does not know.
    pub(crate) from_nowhere: u64,
}

impl Agreement {
    pub(crate) fn holds(&self) -> bool {
        self.requests > 0
            && self.not_answered == 0
            && self.ended_twice == 0
            && self.disagreed == 0
            && self.from_nowhere == 0
            && self.agreed == self.answered
    }
}

pub(crate) fn run(options: &LedgerCheck) -> Result<(ExitStatus, Agreement), Error> {
    let agreement = compare(
        lines(&options.client)?,
        &options.client,
        lines(&options.server)?,
        &options.server,
    )?;
    let Agreement { requests, answered, agreed, sent_again, done_twice, .. } = agreement;
    say(format!(
        "{requests} requests, {answered} answered, {agreed} of them as the server's log has it; {sent_again} were sent \
         more than once, {done_twice} done twice"
    ));
    let complete = options.requests.is_none_or(|wanted| wanted == requests);
    if !complete {
        say(format!("there should be {} requests", options.requests.unwrap_or_default()));
    }
    if !agreement.holds() {
        say(format!(
            "the ledgers disagree: not answered {}, ended twice {}, answers the server does not know {}, requests the \
             client does not know {}",
            agreement.not_answered,
            agreement.ended_twice,
            agreement.disagreed,
            agreement.from_nowhere
        ));
    }
    options.output.line(&agreement)?;
    let status =
        if agreement.holds() && complete { ExitStatus::Passed } else { ExitStatus::Failed };
    Ok((status, agreement))
}

fn lines(path: &Path) -> Result<impl Iterator<Item = std::io::Result<String>> + use<>, Error> {
    let file = File::open(path).context(format!("cannot read {}", path.display()))?;
    Ok(BufReader::with_capacity(1 << 20, file).lines())
}

/// The client's record of one request.
#[derive(Debug)]
struct RequestRecord {
    sent: u32,
    /// The server's name for the answer; `None` if it was not answered.
    served: Option<Box<str>>,
    seen_by_server: u32,
    agreed: bool,
}

fn compare(
    client: impl Iterator<Item = std::io::Result<String>>,
    client_path: &Path,
    server: impl Iterator<Item = std::io::Result<String>>,
    server_path: &Path,
) -> Result<Agreement, Error> {
    let mut agreement = Agreement::default();
    let mut requests: HashMap<u64, RequestRecord> = HashMap::new();
    for (number, line) in (1u64..).zip(client) {
        let line = line.context(format!("cannot read {}", client_path.display()))?;
        let mut words = line.split(' ');
        let mut word = || words.next();
        let parsed = (|| {
            Some((word()?.parse::<u64>().ok()?, word()?.parse().ok()?, word()?, word()?, word()?))
        })();
        let Some((id, sent, outcome, _status, served)) = parsed else {
            return Err(Error::new(format!(
                "{}:{number}: not a line of a ledger: {line}",
                client_path.display()
            )));
        };
        let answered = outcome == "answered";
        agreement.requests += 1;
        agreement.answered += u64::from(answered);
        agreement.not_answered += u64::from(!answered);
        agreement.sent_again += u64::from(sent > 1);
        let known = RequestRecord {
            sent,
            served: answered.then(|| served.into()),
            seen_by_server: 0,
            agreed: false,
        };
        agreement.ended_twice += u64::from(requests.insert(id, known).is_some());
    }
    for (number, line) in (1u64..).zip(server) {
        let line = line.context(format!("cannot read {}", server_path.display()))?;
        let mut words = line.split(' ');
        let parsed = (|| Some((words.next()?, words.next()?, words.next()?)))();
        let Some((served, id, _outcome)) = parsed else {
            return Err(Error::new(format!(
                "{}:{number}: not `SERVED ID OUTCOME`: {line}",
                server_path.display()
            )));
        };
        agreement.server_lines += 1;
        let Some(known) = id.parse().ok().and_then(|id: u64| requests.get_mut(&id)) else {
            agreement.from_nowhere += 1;
            continue;
        };
        known.seen_by_server += 1;
        agreement.from_nowhere += u64::from(known.seen_by_server > known.sent);
        agreement.done_twice += u64::from(known.seen_by_server == 2);
        known.agreed |= known.served.as_deref() == Some(served);
    }
    for known in requests.values().filter(|known| known.served.is_some()) {
        if known.agreed {
            agreement.agreed += 1;
        } else {
            agreement.disagreed += 1;
        }
    }
    Ok(agreement)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(client: &str, server: &str) -> Result<Agreement, Error> {
        let lines = |text: &str| text.lines().map(|line| Ok(line.to_owned())).collect::<Vec<_>>();
        compare(
            lines(client).into_iter(),
            Path::new("client"),
            lines(server).into_iter(),
            Path::new("server"),
        )
    }

    #[test]
    fn ledgers_that_agree() {
        let agreement = judge(
            "0 1 answered 200 a\n1 2 answered 200 c\n",
            "a 0 answered\nb 1 lost\nc 1 answered\n",
        )
        .unwrap();
        assert!(agreement.holds(), "{agreement:?}");
        assert_eq!((agreement.sent_again, agreement.done_twice, agreement.agreed), (1, 1, 2));
    }

    #[test]
    fn every_way_to_disagree_is_seen() {
        let client = "0 1 answered 200 a\n";
        for (client, server) in [
            (client, "b 0 answered\n"),
            (client, "a 7 answered\n"),
            (client, "a 0 answered\nb 0 answered\n"),
            (client, ""),
            ("0 1 failed 0 -\n", "a 0 answered\n"),
            ("0 1 answered 200 a\n0 1 answered 200 b\n", "a 0 answered\nb 0 answered\n"),
            ("", ""),
        ] {
            let agreement = judge(client, server).unwrap();
            assert!(!agreement.holds(), "{client} {server} {agreement:?}");
        }
        // Two requests whose answers were swapped.
        let swapped =
            judge("0 1 answered 200 b\n1 1 answered 200 a\n", "a 0 answered\nb 1 answered\n");
        assert_eq!(swapped.unwrap().disagreed, 2);
        assert!(judge("what is this", "").is_err() && judge("", "a 0").is_err());
    }
}
