//! Durable batches: a batch is acknowledged once it is in the journal, and sent from there, in this run of the process or
//! a later one. Each outcome goes to the feed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use dunlin_push::journal::{JournalChange, JournalError, NewBatch, OpenBatch};
use dunlin_push::{NotSent, Outcome, ResultStream, Results, results};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::devices;
use super::outcome::{self, LineSubject};
use super::pending::{PendingPush, RequestForm};
use super::scheduled::Schedule;
use super::senders::EncodedNotification;
use super::submission::{Addressed, Recipient, SubmissionBatch};
use super::thread::Shared;

/// Most outcomes that are written together.
const GROUP_MAX: usize = 1_024;
/// Delay before reading again after a disk failure.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Users looked up at once.
const USERS_AT_ONCE: usize = 100;

/// A push as stored in the journal.
#[derive(Serialize, Deserialize)]
struct JournaledPush {
    /// The index of its notification in the batch.
    at: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    to: Recipient,
}

/// Writes a batch to the journal and starts sending it. The batch is on disk when this returns.
///
/// # Errors
/// Returns an error if there is no state directory, or the journal is full or failed.
pub(super) async fn accept(
    shared: &Arc<Shared>,
    mut batch: SubmissionBatch,
) -> Result<Value, ApiError> {
    shared.check_key(&batch)?;
    if !shared.is_durable {
        let why = "durable: this server keeps nothing; start it with --state DIR";
        return Err(ApiErrorCode::NotAvailable.with_reason(why));
    }
    let mut new = NewBatch { idempotency_key: batch.idempotency_key.take(), ..NewBatch::default() };
    for (at, submission) in batch.pushes.iter_mut().enumerate() {
        let mut addressed = Addressed::default();
        for to in submission.take_recipients() {
            if !addressed.add(&to) {
                continue;
            }
            new.pushes.push(encode(&JournaledPush { at, user: None, to }));
        }
        let users = std::mem::take(&mut submission.users);
        for users in users.chunks(USERS_AT_ONCE) {
            let found = devices::of_users_to_send(shared, users, submission.only_offline).await?;
            for (user, found) in users.iter().zip(found) {
                let found = found.and_then(|devices| addressed.add_all(devices));
                match found {
                    Ok(devices) => new.pushes.extend(devices.into_iter().map(|device| {
                        let to = Recipient::Device { device, id: None };
                        encode(&JournaledPush { at, user: Some(user.clone()), to })
                    })),
                    Err((reason, detail)) => {
                        let (push, user) = (Some(at), Some(user.as_str()));
                        let subject = LineSubject { batch: None, push, user, recipient: None };
                        let mut line = Vec::new();
                        outcome::write_user(&mut line, subject, reason, &detail);
                        new.outcomes.push(line);
                    }
                }
            }
        }
    }
    new.common = encode(&SubmissionBatch { idempotency_key: None, ..batch });
    let (common, ended) = (new.common.clone(), new.outcomes.clone());
    let accepted = shared.journal_writer.write(vec![JournalChange::Accept(new)]).await;
    let accepted = accepted.and_then(|mut done| done.pop().unwrap_or(Err(JournalError::Closed)));
    let accepted = accepted.map_err(|error| match error {
        JournalError::Full => ApiErrorCode::LimitExceeded.with_reason(error),
        error => ApiErrorCode::Internal.with_reason(error),
    })?;
    if !accepted.repeated {
        shared.emit_outcomes(ended.iter().map(Vec::as_slice));
    }
    if !accepted.repeated && accepted.pushes > 0 {
        let open = OpenBatch { batch: accepted.batch, common, started: 0 };
        tokio::spawn(run(Arc::clone(shared), open));
    }
    let mut result = json!({ "batch": accepted.batch, "pushes": accepted.pushes });
    if accepted.repeated {
        result["repeated"] = true.into();
    }
    Ok(json!({ "durable": result }))
}

/// Resumes the batches that an earlier run of the process left unfinished. Those that this run accepts are sent by
/// [`accept`], however early they arrive.
pub(super) async fn resume(shared: Arc<Shared>) {
    let journal = Arc::clone(&shared.journal);
    let open = tokio::task::spawn_blocking(move || journal.left_batches()).await;
    match open.unwrap_or(Err(JournalError::Closed)) {
        Ok(open) => {
            if !open.is_empty() {
                let pushes = shared.journal.pending();
                tracing::info!(batches = open.len(), pushes, "durable pushes are sent on");
            }
            for batch in open {
                tokio::spawn(run(Arc::clone(&shared), batch));
            }
        }
        Err(error) => tracing::error!(%error, "durable pushes are not sent on"),
    }
}

/// Sends all pushes of a batch in the journal.
async fn run(shared: Arc<Shared>, open: OpenBatch) {
    let batch = open.batch;
    if let Err(error) = send(&shared, open).await {
        // The rest stays in the journal and is sent after the next start.
        tracing::error!(%error, batch, "a durable batch is interrupted");
    }
}

/// A push that has begun: its number, the push, and whether an earlier run of the process may have sent it.
type StartedPush = (u64, PendingPush, bool);

async fn send(shared: &Arc<Shared>, open: OpenBatch) -> Result<(), JournalError> {
    let Some(open) = when_due(shared, open).await? else { return Ok(()) };
    let Ok(common) = serde_json::from_slice::<SubmissionBatch>(&open.common) else {
        tracing::error!(batch = open.batch, "an older version wrote an invalid durable batch");
        return Ok(());
    };
    let _counted = shared.count_durable();
    let (sink, outcomes) = results();
    let (begun, beginning) = mpsc::unbounded_channel();
    let begin = begin(shared, &open, &common, begun, sink.clone());
    let (began, ended) = tokio::join!(begin, end(shared, open.batch, beginning, sink, outcomes));
    if began? && ended? {
        let finish = vec![JournalChange::Finish { batch: open.batch }];
        shared.journal_writer.write_surely(finish).await?;
    }
    Ok(())
}

/// Waits for the time of a batch. `None`: it was cancelled meanwhile. A batch that waits is only in the journal, however
/// many there are.
async fn when_due(
    shared: &Arc<Shared>,
    open: OpenBatch,
) -> Result<Option<OpenBatch>, JournalError> {
    let schedule: Option<Schedule> = serde_json::from_slice(&open.common).ok();
    let due = schedule.and_then(|schedule| schedule.send_at_s);
    let due = due.and_then(|at_s| UNIX_EPOCH.checked_add(Duration::from_secs(at_s)));
    let left = due.and_then(|due| due.duration_since(SystemTime::now()).ok());
    let Some(left) = left.filter(|left| !left.is_zero()) else { return Ok(Some(open)) };
    let batch = open.batch;
    drop(open);
    tokio::time::sleep(left).await;
    let journal = Arc::clone(&shared.journal);
    let again = tokio::task::spawn_blocking(move || journal.open_batch(batch)).await;
    again.unwrap_or(Err(JournalError::Closed))
}

/// Reads pushes from the journal, marks them there as started, and submits them. Returns `false` if the process shuts
/// down before all have begun.
async fn begin(
    shared: &Arc<Shared>,
    open: &OpenBatch,
    common: &SubmissionBatch,
    begun: mpsc::UnboundedSender<StartedPush>,
    sink: Results,
) -> Result<bool, JournalError> {
    let encoded = common.pushes.iter().map(|one| Arc::new(EncodedNotification::new(one)));
    let encoded: Vec<Arc<EncodedNotification>> = encoded.collect();
    let (batch, mut from) = (open.batch, 0);
    loop {
        let journal = Arc::clone(&shared.journal);
        let count = shared.durable_window.group();
        let read = tokio::task::spawn_blocking(move || journal.pushes(batch, from, count));
        let rows = match read.await.unwrap_or(Err(JournalError::Closed)) {
            Err(error @ JournalError::Store(_)) => {
                tracing::error!(%error, batch, "a durable batch waits for the disk");
                tokio::time::sleep(READ_AGAIN).await;
                continue;
            }
            rows => rows?,
        };
        let Some(last) = rows.last().map(|row| row.number) else { return Ok(true) };
        // Released once the outcome is in the journal.
        if !shared.durable_window.enter(rows.len()).await || shared.is_draining() {
            return Ok(false);
        }
        let unsent = rows.iter().filter(|row| row.unsent);
        let restart = unsent.map(|row| JournalChange::Restart { batch, number: row.number });
        let mut changes: Vec<JournalChange> = restart.collect();
        if last >= open.started {
            changes.push(JournalChange::Start { batch, through: last + 1 });
        }
        if !changes.is_empty() {
            let done = shared.journal_writer.write_surely(changes).await?;
            // Cancelled between the read and the start.
            if done.iter().any(Result::is_err) {
                shared.leave_durable_window(rows.len());
                return Ok(true);
            }
        }
        for row in rows {
            let may_have_left = row.number < open.started && !row.unsent;
            let read: Option<JournaledPush> = serde_json::from_slice(&row.push).ok();
            let whole = read.and_then(|push| Some((encoded.get(push.at)?, push)));
            let Some((encoded, JournaledPush { at, user, to })) = whole else {
                tracing::error!(batch, number = row.number, "the journal has an invalid push");
                shared.leave_durable_window(1);
                continue;
            };
            let push = PendingPush::new(shared, at, user.map(Into::into), to, encoded);
            // `end`, the receiver, outlives this function.
            let _ = begun.send((row.number, push.clone(), may_have_left));
            push.submit(row.number, &sink).await;
        }
        from = last + 1;
    }
}

/// Writes outcomes to the journal. Returns `false` if some pushes are left for the next run of the process.
async fn end(
    shared: &Arc<Shared>,
    batch: u64,
    mut beginning: mpsc::UnboundedReceiver<StartedPush>,
    sink: Results,
    mut outcomes: ResultStream,
) -> Result<bool, JournalError> {
    let mut pending: HashMap<u64, (PendingPush, bool)> = HashMap::new();
    let (mut begins, mut all) = (true, true);
    while begins || !pending.is_empty() {
        let mut next = tokio::select! {
            begun = beginning.recv(), if begins => {
                begins = begun.is_some();
                pending.extend(begun.map(|(number, push, mark)| (number, (push, mark))));
                continue;
            }
            outcome = outcomes.recv() => outcome,
        };
        // A push is sent here before its outcome can arrive.
        while let Ok((number, push, mark)) = beginning.try_recv() {
            pending.insert(number, (push, mark));
        }
        let (mut changes, mut ended) = (Vec::new(), 0);
        while let Some((number, outcome)) = next {
            if let Some((mut push, may_have_left)) = pending.remove(&number) {
                if push.renew(shared, &outcome) {
                    // Its credential was replaced while it waited: the new one sends it.
                    push.submit(number, &sink).await;
                    pending.insert(number, (push, may_have_left));
                } else if outcome == Outcome::NotSent(NotSent::Closed) && shared.is_draining() {
                    (all, ended) = (false, ended + 1);
                    if !may_have_left {
                        changes.push(JournalChange::Unsent { batch, number });
                    }
                } else {
                    push.note_outcome(shared, &outcome).await;
                    let mut line = Vec::new();
                    let form =
                        RequestForm::DurableBatch { batch, possible_duplicate: may_have_left };
                    push.write_line(&mut line, form, &outcome);
                    changes.push(JournalChange::End { batch, number, outcome: line });
                    ended += 1;
                }
            }
            next = if ended < GROUP_MAX { outcomes.try_recv() } else { None };
        }
        if !changes.is_empty() {
            let outcome = |change: &JournalChange| match change {
                JournalChange::End { outcome, .. } => Some(outcome.clone()),
                _ => None,
            };
            let lines: Vec<Vec<u8>> = changes.iter().filter_map(outcome).collect();
            shared.journal_writer.write_surely(changes).await?;
            shared.emit_outcomes(lines.iter().map(Vec::as_slice));
        }
        shared.leave_durable_window(ended);
    }
    Ok(all)
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are JSON")
}
