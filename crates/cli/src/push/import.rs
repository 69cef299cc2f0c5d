//! `dunlin push import`: sends to all tokens of a list.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueHint};
use dunlin_push::apns::Reason;
use dunlin_push::{NotSent, Outcome, OutcomeCounts, OutcomeKind, results};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::content::{Common, Content, OtherAccounts, Prepared, Services};
use super::journal::{Journal, StartedLine};
use super::list::{Entry, Line, lines};
use super::results::Results;
use crate::apns::Account;
use crate::error::{CliError, Incomplete, REFUSED, REPEAT};
use crate::style::{BAD, DIM, GOOD, WARN, grouped, paint, print, warning};

/// Minimum of pushes in progress, and their number relative to what the connections carry: the excess waits for
/// capacity.
const UNDER_WAY_MIN: usize = 1_024;
const UNDER_WAY_PER_IN_FLIGHT: usize = 2;
/// Most pushes journaled with one write.
const GROUP_MAX: usize = 256;
/// Interval at which the capacity is read and rate tokens are added.
const TICK: Duration = Duration::from_millis(10);
/// Time for pushes in flight to end after a signal, in addition to the sender's own.
const STOP_WITHIN: Duration = Duration::from_secs(12);

#[derive(Debug, Args)]
#[command(
    after_help = "Each token gets a line in the results. SIGINT and SIGTERM end the run cleanly; the same command \
                  resumes it: tokens with a final outcome are skipped, all others are tried again.\n\n\
                  Exit codes: 0 every token has a final outcome; 3 some tokens have to be tried again: run it again; \
                  4 refused because of the credential or the push itself: fix it; 1 the command could not start or continue."
)]
pub(crate) struct Import {
    /// Device tokens, one per line; JSON objects with `token` and fields for that device; or CSV whose first line names its
    /// columns. - reads standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    tokens: PathBuf,
    /// Results file (JSON lines); by default FILE.results
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    results: Option<PathBuf>,
    #[command(flatten)]
    account: Account,
    #[command(flatten)]
    others: OtherAccounts,
    #[command(flatten)]
    content: Content,
    /// Send at most this many a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

/// A push that waits for its outcome.
struct PendingPush {
    entry: Entry,
    begun: StartedLine,
}

/// A run in progress.
struct Run {
    services: Services,
    common: Common,
    /// The file, for errors.
    name: String,
    results: Results,
    journal: Journal,
    under_way: HashMap<u64, PendingPush>,
    tags: u64,
    summary: Summary,
    bar: ProgressBar,
}

/// Totals of a run.
#[derive(Default)]
struct Summary {
    counts: OutcomeCounts,
    /// Pushes without a final outcome, which the next run repeats.
    to_repeat: u64,
    /// Pushes with a final rejection for a reason other than the device.
    refused: u64,
    possible_duplicates: u64,
    /// Why the last of the pushes to be repeated was not accepted.
    why: Option<String>,
    interrupted: bool,
    /// The error of the credential, which would fail the rest of the list too.
    credential: Option<String>,
}

impl Import {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let stdin = self.tokens == Path::new("-");
        let path = match &self.results {
            Some(path) => path.clone(),
            None if stdin => return Err("--results: name a file, for - has none".into()),
            None => beside(&self.tokens),
        };
        let (input, bytes): (Box<dyn BufRead + Send>, _) = match stdin {
            true => (Box::new(BufReader::new(io::stdin())), None),
            false => {
                let named = |error| format!("cannot read {}: {error}", self.tokens.display());
                let file = File::open(&self.tokens).map_err(named)?;
                let bytes = file.metadata()?.len();
                (Box::new(BufReader::new(file)), Some(bytes))
            }
        };
        let name =
            if stdin { "standard input".to_owned() } else { self.tokens.display().to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let services = {
            let _runtime = runtime.enter();
            Services::start(&self.account, &self.others)?
        };
        let common = self.content.read()?;
        let named = |error| format!("{}: {error}", path.display());
        let (journal, begun) = Journal::open(&path).map_err(named)?;
        let results = Results::open(&path, begun).map_err(named)?;
        let passed_over = results.taken() as u64;
        let open = results.possible_duplicates().len() as u64;
        if open > 0 {
            let n = grouped(open);
            warning(format_args!(
                "a run before was killed: {n} pushes may arrive twice; their results say so"
            ));
        }
        let bar = match bytes {
            Some(bytes) => ProgressBar::new(bytes).with_style(ProgressStyle::with_template(
                "{bar:30} {percent}%  {msg}  {elapsed} of {duration}",
            )?),
            None => ProgressBar::no_length()
                .with_style(ProgressStyle::with_template("{spinner}  {msg}  {elapsed}")?),
        };
        let summary = runtime.block_on(async {
            let (under_way, tags, summary) = (HashMap::new(), 0, Summary::default());
            let run =
                Run { services, common, name, results, journal, under_way, tags, summary, bar };
            run.send(lines(input), self.rate).await
        })?;
        report(&summary, self.json, passed_over, &path)?;
        summary.exit()
    }
}

fn report(summary: &Summary, json: bool, passed_over: u64, path: &Path) -> Result<(), CliError> {
    let Summary { counts, to_repeat, refused, possible_duplicates, interrupted, .. } = summary;
    if json {
        let mut report = serde_json::json!(counts);
        for (name, count) in [
            ("passed_over", passed_over),
            ("to_repeat", *to_repeat),
            ("refused", *refused),
            ("possible_duplicates", *possible_duplicates),
        ] {
            report[name] = count.into();
        }
        report["interrupted"] = (*interrupted).into();
        report["results"] = path.display().to_string().into();
        return print(&format!("{report}\n"));
    }
    let mut text = format!(
        "{} {}  {} {}  {} {}  {} {}\n",
        paint(GOOD, "accepted"),
        grouped(counts.accepted),
        paint(BAD, "rejected"),
        grouped(counts.rejected),
        paint(WARN, "not sent"),
        grouped(counts.not_sent),
        paint(WARN, "uncertain"),
        grouped(counts.uncertain),
    );
    for (count, what) in [
        (passed_over, "had a final outcome before and were passed over"),
        (*to_repeat, "are to be repeated: the same command does"),
        (*possible_duplicates, "may have arrived twice: possible_duplicate in the results"),
    ] {
        if count > 0 {
            text.push_str(&paint(DIM, format!("{} {what}\n", grouped(count))));
        }
    }
    print(&format!("{text}{}\n", path.display()))
}

impl Run {
    /// Sends to each token of the list, and waits for all outcomes.
    async fn send(
        mut self,
        mut list: mpsc::Receiver<io::Result<Line>>,
        rate: Option<u64>,
    ) -> Result<Summary, CliError> {
        let (sink, mut outcomes) = results();
        let mut signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (began, mut begun) = (Instant::now(), 0u64);
        let mut allowed = if rate.is_some() { 0 } else { u64::MAX };
        let mut room = UNDER_WAY_MIN;
        let (mut ended, mut stop_at) = (false, None::<Instant>);
        while !(ended && self.under_way.is_empty()) {
            let may_take = !ended && self.under_way.len() < room && begun < allowed;
            tokio::select! {
                biased;
                () = any(&mut signals) => {
                    if self.summary.interrupted {
                        break;
                    }
                    self.summary.interrupted = true;
                    ended = true;
                    stop_at = Some(Instant::now() + STOP_WITHIN);
                    self.services.close();
                }
                Some((tag, outcome)) = outcomes.recv() => {
                    self.end(tag, &outcome)?;
                    while let Some((tag, outcome)) = outcomes.try_recv() {
                        self.end(tag, &outcome)?;
                    }
                    self.results.flush()?;
                }
                now = tick.tick() => {
                    room = UNDER_WAY_MIN.max(self.services.carried() * UNDER_WAY_PER_IN_FLIGHT);
                    if let Some(rate) = rate {
                        let passed = now.saturating_duration_since(began);
                        allowed = (passed.as_secs_f64() * rate as f64) as u64 + 1;
                    }
                    if stop_at.is_some_and(|at| now >= at) {
                        break;
                    }
                }
                line = list.recv(), if may_take => {
                    let mut group = Vec::new();
                    let mut next = line;
                    let most = GROUP_MAX.min(room - self.under_way.len()).min((allowed - begun) as usize);
                    while let Some(line) = next {
                        group.extend(self.read(line?)?);
                        next = if group.len() < most { list.try_recv().ok() } else { break };
                    }
                    ended = list.is_closed() && list.is_empty();
                    begun += group.len() as u64;
                    self.begin(group, &sink).await?;
                }
            }
            ended |= self.summary.credential.is_some();
        }
        self.results.sync()?;
        self.bar.finish_and_clear();
        if self.under_way.is_empty() && self.results.possible_duplicates().is_empty() {
            self.journal.remove()?;
        }
        Ok(self.summary)
    }

    /// Returns the push of a line; `None` if the line is blank or its token was already taken up.
    fn read(&mut self, line: Line) -> Result<Option<(Entry, Prepared)>, CliError> {
        self.bar.inc(line.bytes as u64);
        let number = line.number;
        let wrong = |why: String| CliError::from(format!("{}, line {number}: {why}", self.name));
        let Some(mut entry) = line.entry.map_err(wrong)? else { return Ok(None) };
        let platform = self.services.platform(&entry).map_err(wrong)?;
        entry.provider = Some(platform);
        if !self.results.take_up(entry.fingerprint()) {
            return Ok(None);
        }
        match self.common.prepare(&entry, platform) {
            Ok(push) => Ok(Some((entry, push))),
            Err(why) => {
                let why = format!("line {number}: {why}");
                self.finish(&entry, &Outcome::NotSent(NotSent::Invalid(why)))?;
                Ok(None)
            }
        }
    }

    /// Journals pushes, and passes them to the sender.
    async fn begin(
        &mut self,
        group: Vec<(Entry, Prepared)>,
        sink: &dunlin_push::Results,
    ) -> Result<(), CliError> {
        let bytes = self.results.bytes();
        for (entry, _) in &group {
            self.journal.note((entry.fingerprint(), bytes));
        }
        self.journal.write()?;
        for (entry, push) in group {
            self.tags += 1;
            let begun = (entry.fingerprint(), bytes);
            let invalid = self.services.submit(&push, self.tags, sink).await.err();
            self.under_way.insert(self.tags, PendingPush { entry, begun });
            if let Some(why) = invalid {
                self.end(self.tags, &Outcome::NotSent(why))?;
            }
        }
        if self.journal.is_long() {
            self.results.flush()?;
            let before = self.results.possible_duplicates().iter().map(|(push, at)| (*push, *at));
            let open = self.under_way.values().map(|push| push.begun).chain(before);
            self.journal.rewrite(open)?;
        }
        Ok(())
    }

    fn end(&mut self, tag: u64, outcome: &Outcome) -> Result<(), CliError> {
        match self.under_way.remove(&tag) {
            Some(push) => self.finish(&push.entry, outcome),
            None => Ok(()),
        }
    }

    fn finish(&mut self, entry: &Entry, outcome: &Outcome) -> Result<(), CliError> {
        let marked = self.results.write(entry, outcome)?;
        let summary = &mut self.summary;
        summary.counts.count(outcome.kind());
        summary.possible_duplicates += u64::from(marked);
        if !outcome.is_final() {
            summary.to_repeat += 1;
            summary.why = Some(outcome.to_string());
            if let Outcome::NotSent(NotSent::Credential(why)) = outcome {
                summary.credential = Some(why.clone());
            }
        } else if is_refused(outcome) {
            summary.refused += 1;
        }
        let (accepted, rejected) = (summary.counts.accepted, summary.counts.rejected);
        let text = format!("{} accepted, {} rejected", grouped(accepted), grouped(rejected));
        self.bar.set_message(text);
        Ok(())
    }
}

impl Summary {
    fn exit(&self) -> Result<(), CliError> {
        let why = self.why.as_deref().map(|why| format!(" (the last: {why})")).unwrap_or_default();
        let (code, text) = if self.interrupted {
            (REPEAT, "it was interrupted; the same command goes on where it ended".to_owned())
        } else if let Some(why) = &self.credential {
            (REFUSED, format!("{why}; the rest of the list is left for the next run"))
        } else if self.to_repeat > 0 {
            let n = grouped(self.to_repeat);
            (REPEAT, format!("{n} are to be repeated; the same command tries them again{why}"))
        } else if self.refused > 0 {
            let n = grouped(self.refused);
            (
                REFUSED,
                format!("{n} were refused for what is no fault of the device; see the results"),
            )
        } else {
            return Ok(());
        };
        Err(Incomplete { code, text }.into())
    }
}

/// Returns whether a push was finally rejected for a reason other than an unregistered device: its contents or the
/// configuration are wrong.
fn is_refused(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Rejected(rejected) => {
            let is_gone = matches!(&*rejected.reason, "UNREGISTERED" | "Gone");
            !Reason::new(&rejected.reason).is_dead_token() && !is_gone
        }
        outcome => outcome.kind() == OutcomeKind::NotSent,
    }
}

/// Waits for the next signal.
async fn any(signals: &mut [Signal; 2]) {
    let [interrupt, terminate] = signals;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

fn beside(tokens: &Path) -> PathBuf {
    let mut name = tokens.to_owned().into_os_string();
    name.push(".results");
    name.into()
}
