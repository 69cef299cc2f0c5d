//! `dunlin push import`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use dunlin_push::apns::{Apns, DeviceToken, Push, PushType, Target};
use dunlin_push::{NotSent, Outcome, OutcomeCounts, ResultStream, SenderConfig, results};
use indicatif::{ProgressBar, ProgressStyle};

use super::results::Results;
use crate::apns::{Account, text_or_file};
use crate::error::CliError;
use crate::style::{BAD, DIM, GOOD, WARN, grouped, paint, print};

#[derive(Debug, Args)]
#[command(
    after_help = "Each token gets a line in the results. Ctrl-C ends the run in order; the same command goes on \
                        where it ended: tokens with an answer are passed over, those not sent are tried again."
)]
pub(crate) struct Import {
    /// Device tokens, hexadecimal, one a line; empty lines and what follows a # are passed over
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    tokens: PathBuf,
    /// Where the results go, JSON lines; by default FILE.results
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    results: Option<PathBuf>,
    #[command(flatten)]
    account: Account,
    /// The app's bundle identifier
    #[arg(long, value_name = "TOPIC")]
    topic: String,
    /// The payload: JSON, or @FILE
    #[arg(long, value_name = "JSON")]
    payload: String,
    /// alert, background, voip, liveactivity, ...
    #[arg(long = "type", value_name = "TYPE", default_value = "alert")]
    push_type: PushType,
    /// 10 now, 5 when it suits the device, 1 not at the cost of its power
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// A later push of this id takes the place of this one, so that it may be sent twice without harm
    #[arg(long, value_name = "ID")]
    collapse_id: Option<String>,
    /// Seconds until a push is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

/// A run under way.
struct Run {
    results: Results,
    /// Tokens that wait for an outcome, by their tags. The sender's queue bounds them.
    waiting: HashMap<u64, String>,
    ends: OutcomeCounts,
    bar: ProgressBar,
}

impl Import {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let file = File::open(&self.tokens)
            .map_err(|error| format!("cannot read {}: {error}", self.tokens.display()))?;
        let bytes = file.metadata()?.len();
        let path = self.results.clone().unwrap_or_else(|| {
            let mut name = self.tokens.clone().into_os_string();
            name.push(".results");
            name.into()
        });
        let results =
            Results::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let before = results.answered();
        let (origin, credential) = (self.account.origin()?, self.account.credential()?);
        let payload = text_or_file(&self.payload)?;
        let push = self.push(payload)?;
        let bar = ProgressBar::new(bytes).with_style(ProgressStyle::with_template(
            "{bar:30} {percent}%  {msg}  {elapsed} of {duration}",
        )?);
        let run = Run { results, waiting: HashMap::new(), ends: OutcomeCounts::default(), bar };

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ends, interrupted) = runtime.block_on(async {
            let apns = Apns::start(origin, credential, SenderConfig::default())?;
            run.send(&apns, push, BufReader::new(file)).await
        })?;
        let mut told = format!(
            "{} {}  {} {}  {} {}  {} {}\n",
            paint(GOOD, "accepted"),
            grouped(ends.accepted),
            paint(BAD, "rejected"),
            grouped(ends.rejected),
            paint(WARN, "not sent"),
            grouped(ends.not_sent),
            paint(WARN, "uncertain"),
            grouped(ends.uncertain),
        );
        if before > 0 {
            let passed =
                format!("{} had an answer before and were passed over\n", grouped(before as u64));
            told.push_str(&paint(DIM, passed));
        }
        print(&format!("{told}{}\n", path.display()))?;
        match (interrupted, ends.not_sent) {
            (true, _) => Err("it was interrupted; the same command goes on where it ended".into()),
            (false, 0) => Ok(()),
            (false, _) => Err("some were not sent; the same command tries them again".into()),
        }
    }

    /// The push for each token; its target is put in later.
    fn push(&self, payload: Vec<u8>) -> Result<Push, CliError> {
        let background = self.push_type == PushType::Background;
        let push = Push {
            target: Target::Device(DeviceToken::new(&"0".repeat(64))?),
            payload: payload.into(),
            push_type: self.push_type,
            topic: Some(self.topic.as_str().into()),
            id: None,
            expiration: None,
            priority: self.priority.unwrap_or(if background { 5 } else { 10 }),
            collapse_id: self.collapse_id.clone(),
            timeout: Duration::from_secs(self.timeout),
            resend_uncertain: self.collapse_id.is_some(),
            suspect: false,
        };
        // Judged before anything is opened.
        push.request()?;
        Ok(push)
    }
}

impl Run {
    /// Sends to each token and waits for all outcomes. True: interrupted.
    async fn send(
        mut self,
        apns: &Apns,
        mut push: Push,
        tokens: impl BufRead,
    ) -> Result<(OutcomeCounts, bool), CliError> {
        let (sink, mut outcomes) = results();
        let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
        let mut interrupted = false;
        let mut tag = 0u64;
        for line in tokens.lines() {
            let line = line?;
            self.bar.inc(line.len() as u64 + 1);
            let token = line.split('#').next().unwrap_or_default().trim();
            if token.is_empty() || !self.results.take_up(token) {
                continue;
            }
            match DeviceToken::new(token) {
                Ok(device) => push.target = Target::Device(device),
                Err(error) => {
                    let invalid = Outcome::NotSent(NotSent::Invalid(error.to_string()));
                    self.finish(token, &invalid)?;
                    continue;
                }
            }
            tag += 1;
            self.waiting.insert(tag, token.to_owned());
            let submitted = tokio::select! {
                submitted = apns.submit(&push, tag, &sink) => Some(submitted),
                _ = &mut interrupt => None,
            };
            match submitted {
                Some(Ok(())) => {}
                Some(Err(why)) => self.end(tag, &Outcome::NotSent(why))?,
                None => {
                    // It waited for room, or had got it this instant: an outcome tells.
                    interrupted = true;
                    break;
                }
            }
            while let Some((tag, outcome)) = outcomes.try_recv() {
                self.end(tag, &outcome)?;
            }
            self.results.flush()?;
        }
        drop(sink);
        if interrupted {
            apns.close();
        }
        interrupted |= self.wait(apns, &mut outcomes, interrupt.as_mut()).await?;
        self.results.flush()?;
        self.bar.finish_and_clear();
        Ok((self.ends, interrupted))
    }

    /// Takes the outcomes that are still to come.
    async fn wait(
        &mut self,
        apns: &Apns,
        outcomes: &mut ResultStream,
        mut interrupt: std::pin::Pin<&mut impl Future<Output = std::io::Result<()>>>,
    ) -> Result<bool, CliError> {
        let mut interrupted = false;
        loop {
            let outcome = tokio::select! {
                outcome = outcomes.recv() => outcome,
                _ = interrupt.as_mut(), if !interrupted => {
                    interrupted = true;
                    apns.close();
                    continue;
                }
            };
            let Some((tag, outcome)) = outcome else { return Ok(interrupted) };
            self.end(tag, &outcome)?;
        }
    }

    fn end(&mut self, tag: u64, outcome: &Outcome) -> Result<(), CliError> {
        match self.waiting.remove(&tag) {
            Some(token) => self.finish(&token, outcome),
            None => Ok(()),
        }
    }

    fn finish(&mut self, token: &str, outcome: &Outcome) -> Result<(), CliError> {
        self.ends.count(outcome.kind());
        let OutcomeCounts { accepted, rejected, .. } = self.ends;
        self.bar.set_message(format!(
            "{} accepted, {} rejected",
            grouped(accepted),
            grouped(rejected)
        ));
        Ok(self.results.write(token, outcome)?)
    }
}
