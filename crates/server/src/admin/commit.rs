//! Commits: changes are prepared, logged, published, adopted by every worker and confirmed; or rolled back.
//!
//! One commit is in flight at a time. Changes that arrive meanwhile become the next commit together: each is a
//! revision of its own, and all of them share one write to the log, one publication and one wait.
//!
//! A worker that sleeps switches to the new snapshot before it does anything else ([`dunlin_bus::Rollout`]), so the
//! commit waits only for workers that are awake. It spins for a moment, since most turns end within microseconds, then
//! asks them to report, within `config.commit_timeout_ms`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config::store::Origin;
use dunlin_config::{
    AdminRole, Applies, Change, ChangedKey, Config, ConfigErrors, Effect, Effects, PreparedChange,
    Snapshot, sends_secret_elsewhere,
};
use dunlin_engine_servers::login;
use dunlin_net::{ConnId, TimerId};
use serde_json::{Value, json};

use super::call::CanaryOptions;
use super::problem::{self, ProblemDetails};
use super::timer::Timer;
use super::{Admin, Cx, respond, unix_ms, warnings};
use crate::crash;
use crate::log::{self, Entry, Kind};
use crate::message::federation::FederationMessage;
use crate::message::webhooks::WebhooksMessage;
use crate::message::worker::WorkerMessage;
use crate::metrics::{ConfigMetric, Metric};
use crate::state::settings::Settings;
use crate::validation;

/// How long to spin before workers are asked to report. A turn without a large fan-out takes less, and a report may cost
/// a wake-up.
const SPIN: Duration = Duration::from_micros(20);
/// Delay before the webhooks thread is woken after a change, so that further changes share the wake-up.
const WEBHOOKS_PAUSE_MS: u64 = 5;
/// Most keys of a change that the log names.
const KEYS_LOGGED_MAX: usize = 8;
/// Most changes that wait for the commit in flight.
const WAITING_MAX: usize = 4_096;

/// The recipient of a change's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTo {
    Caller(ConnId),
    /// What differs in the file, after SIGHUP.
    File,
    /// This node applies it first, for a caller, before all other nodes.
    First(ConnId),
    /// A change of another node, with its number in the cluster's log.
    Follow(u64),
}

/// Whether a change loads programs, gives other servers a way in, or makes a token that may.
fn loads_programs(before: &Config, after: &Config) -> bool {
    let tokens = after.admin.tokens.changes_from(&before.admin.tokens);
    before.programs != after.programs
        || before.federation != after.federation
        || before.admin.token != after.admin.token
        || tokens.filter_map(|(_, _, after)| after).any(|of| of.role == AdminRole::Program)
}

fn programs_need_role() -> ProblemDetails {
    let detail = "programs, `federation`, `admin.token` and tokens of role `program` are set by an admin token of role `program`, \
                  by the token in the state directory, or through its socket";
    ProblemDetails::new(&problem::FORBIDDEN, detail.to_owned())
}

/// A change that a client or another node has submitted.
pub(super) struct SubmittedChange {
    pub(super) to: ReplyTo,
    pub(super) change: Change,
    pub(super) expected: Option<u64>,
    pub(super) origin: Origin,
    /// Whether its caller may set secrets.
    pub(super) secrets: bool,
    /// Whether its caller may load programs.
    pub(super) programs: bool,
    pub(super) durable: bool,
    pub(super) canary: Option<CanaryOptions>,
}

/// Changes that wait, the commit in flight, and responses that wait for the disk.
#[derive(Default)]
pub(super) struct CommitQueue {
    waiting: VecDeque<SubmittedChange>,
    in_flight: Option<Commit>,
    /// Responses that are sent when their revision is on disk.
    undurable: VecDeque<CommitResponse>,
    /// Whether a timer is set that wakes the webhooks thread.
    webhooks_timer_set: bool,
    body: Vec<u8>,
}

/// A response that waits for the disk.
struct CommitResponse {
    to: ReplyTo,
    created: bool,
    revision: u64,
    body: Vec<u8>,
}

struct Commit {
    generation: u64,
    effects: Effects,
    /// Whether sleeping workers have to adopt it, too, because the change has work for them.
    everyone: bool,
    before: Arc<Settings>,
    changes: Vec<(PreparedChange, Origin)>,
    /// The number of sessions that the changes end.
    closed: u64,
    pending_replies: Vec<PendingReply>,
    timeout: TimerId,
    phase: Phase,
    /// The report of the trial, if there was one.
    trial: Option<Value>,
}

enum Phase {
    Switching,
    /// The last good snapshot is published again, as this revision.
    RollingBack {
        revision: u64,
        reasons: Vec<(usize, String)>,
    },
}

/// A caller that awaits the end of a commit with its change.
pub(super) struct PendingReply {
    pub(super) to: ReplyTo,
    durable: bool,
    /// The index of its change; `None` if that changed nothing.
    change: Option<usize>,
    /// The revision before its change.
    previous: u64,
}

/// How a commit ended.
struct CommitOutcome<'a> {
    switched: Switched,
    /// The number of sessions that it ends.
    closed: u64,
    /// The number of open sessions.
    sessions: u64,
    /// The report of the trial, if there was one.
    trial: Option<&'a Value>,
}

/// The numbers of workers that run the newest snapshot, and of those that will when they wake.
#[derive(Clone, Copy)]
struct Switched {
    awake: usize,
    asleep: usize,
}

impl CommitQueue {
    /// Whether no change waits and none is in flight.
    pub(super) fn are_idle(&self) -> bool {
        self.in_flight.is_none() && self.waiting.is_empty()
    }
}

impl Admin {
    /// Queues a change. It is committed at the end of the turn, or with the next commit.
    pub(super) fn submit(&mut self, cx: &mut Cx, submitted: SubmittedChange) {
        if self.trial.is_some() {
            return self.reject_for_trial(cx, submitted.to);
        }
        if submitted.durable && self.sync.is_none() {
            let detail = "revisions live in memory, for the server was started without --state";
            let problem = ProblemDetails::new(&problem::NO_STATE, detail);
            return self.refuse(cx, submitted.to, &problem);
        }
        if self.commits.waiting.len() >= WAITING_MAX {
            let detail = format!("{WAITING_MAX} changes wait already");
            let problem = ProblemDetails::new(&problem::OVERLOADED, detail);
            return self.refuse(cx, submitted.to, &problem.header("Retry-After", &1));
        }
        self.commits.waiting.push_back(submitted);
    }

    fn reject_for_trial(&mut self, cx: &mut Cx, to: ReplyTo) {
        let seconds = self.trial_seconds_left(cx).unwrap_or(1);
        let detail = "a change is on trial on one worker; wait for its end";
        let problem = ProblemDetails::new(&problem::CANARY_UNDER_WAY, detail);
        self.refuse(cx, to, &problem.header("Retry-After", &seconds));
    }

    /// Rejects a change.
    pub(super) fn refuse(&mut self, cx: &mut Cx, to: ReplyTo, problem: &ProblemDetails) {
        if log::is_enabled(Kind::SettingsRefused) {
            let (status, reason) = (Some(problem.status()), problem.detail());
            log::write(Kind::SettingsRefused, &Entry { status, reason, ..Entry::default() });
        }
        match to {
            ReplyTo::Caller(conn) => problem.answer(cx, conn),
            ReplyTo::File => self.file_refused(problem),
            to => self.cluster_changes.handle_ended(to, problem.status(), problem.body()),
        }
    }

    /// Finishes the commit in flight and begins the next, unless it would have to wait. Called at the end of every turn.
    pub(super) fn advance(&mut self, cx: &mut Cx) {
        loop {
            if let Some(in_flight) = self.commits.in_flight.take() {
                match self.poll_rollout(&in_flight) {
                    Some(switched) => self.finish(cx, in_flight, switched),
                    None => {
                        self.commits.in_flight = Some(in_flight);
                        return;
                    }
                }
            } else if self.trial.is_some() || self.commits.waiting.is_empty() {
                return;
            } else {
                self.begin(cx);
            }
        }
    }

    /// Prepares and commits the changes that wait.
    fn begin(&mut self, cx: &mut Cx) {
        let mut base = Arc::clone(self.store.head());
        let mut changes: Vec<(PreparedChange, Origin)> = Vec::new();
        let is_restore = |waiting: &SubmittedChange| matches!(waiting.change, Change::Restore(_));
        if self.commits.waiting.iter().any(is_restore) {
            self.lengthen_time_slice();
        }
        let mut pending_replies = Vec::new();
        let mut position = self.cluster_changes.position();
        while let Some(submitted) = self.commits.waiting.pop_front() {
            if submitted.canary.is_some() && !changes.is_empty() {
                // A canary is a separate commit.
                self.commits.waiting.push_front(submitted);
                break;
            }
            let prepared = match self.reserve(cx, &base, &submitted) {
                Ok(prepared) => prepared,
                Err(problem) => {
                    self.refuse(cx, submitted.to, &problem);
                    continue;
                }
            };
            let SubmittedChange { to, durable, mut origin, canary, .. } = submitted;
            position = self.cluster_changes.position_with(position, to);
            origin.cluster = position;
            let mut pending_reply =
                PendingReply { to, durable, change: None, previous: base.revision };
            if prepared.is_unchanged() {
                pending_replies.push(pending_reply);
                continue;
            }
            pending_reply.change = Some(changes.len());
            if let Some(canary) = canary {
                self.begin_trial(cx, canary, pending_reply, (prepared, origin));
                // The others would wait until the trial ends.
                for submitted in std::mem::take(&mut self.commits.waiting) {
                    self.reject_for_trial(cx, submitted.to);
                }
                break;
            }
            base = Arc::clone(prepared.snapshot());
            pending_replies.push(pending_reply);
            changes.push((prepared, origin));
        }
        self.commit(cx, changes, pending_replies, None);
    }

    /// Prepares a change on a snapshot. Validates it, including the files and certificates that it opens.
    pub(super) fn prepare(
        &self,
        cx: &Cx,
        base: &Arc<Snapshot>,
        submitted: &SubmittedChange,
    ) -> Result<PreparedChange, ProblemDetails> {
        // The contents of a file that this process can read are as secret as the value of a key. Without the token none is
        // opened.
        let names_files = |before: &Config, after: &Config| {
            crate::tls::names_files(before, after) || login::names_files(before, after)
        };
        let judge = |before: &Config, after: &Config, errors: &mut ConfigErrors| match submitted
            .secrets
            || !names_files(before, after)
        {
            true => validation::changes(before, after, errors),
            false => validation::settings(before, after, errors),
        };
        let prepared = base
            .prepare_judged(&submitted.change, submitted.expected, judge)
            .map_err(|error| ProblemDetails::of_change_error(&error))?;
        let concerns_secrets = || {
            let after = &prepared.snapshot().config;
            prepared.changes().iter().any(ChangedKey::has_secret)
                || names_files(&base.config, after)
                || sends_secret_elsewhere(&base.config, after)
        };
        if !submitted.secrets
            && let ReplyTo::Caller(conn) | ReplyTo::First(conn) = submitted.to
            && concerns_secrets()
        {
            return Err(self.secrets_need_token(cx, conn));
        }
        if !submitted.programs && loads_programs(&base.config, &prepared.snapshot().config) {
            return Err(programs_need_role());
        }
        Ok(prepared)
    }

    /// Prepares a change like [`prepare`](Self::prepare), and binds the addresses of its listeners.
    fn reserve(
        &mut self,
        cx: &Cx,
        base: &Arc<Snapshot>,
        submitted: &SubmittedChange,
    ) -> Result<PreparedChange, ProblemDetails> {
        let prepared = self.prepare(cx, base, submitted)?;
        self.reservations
            .reserve(&base.config, &prepared.snapshot().config)
            .map_err(|fault| ProblemDetails::faults(&problem::INVALID, &fault.into()))?;
        Ok(prepared)
    }

    /// Commits changes. `trial`: the report of a successful trial.
    pub(super) fn commit(
        &mut self,
        cx: &mut Cx,
        changes: Vec<(PreparedChange, Origin)>,
        pending_replies: Vec<PendingReply>,
        trial: Option<Value>,
    ) {
        let Some((last, _)) = changes.last() else {
            let switched = self.switched(self.state.generation());
            let outcome = CommitOutcome { switched, closed: 0, sessions: 0, trial: None };
            for pending_reply in pending_replies {
                self.answer(cx, &pending_reply, &[], &outcome);
            }
            return;
        };
        let newest = Arc::clone(last.snapshot());
        crash::reach("append");
        if let Err(error) = self.store.append(&changes) {
            self.reservations.keep_only(&self.store.head().config);
            tracing::error!(%error, "a change could not be written to the log");
            let problem = ProblemDetails::new(&problem::LOG_NOT_WRITTEN, error.to_string());
            pending_replies
                .iter()
                .for_each(|pending_reply| self.refuse(cx, pending_reply.to, &problem));
            return;
        }
        crash::reach("appended");
        let before = self.state.settings.load_full();
        let closed = self.sessions_closed(&before.config, &newest.config);
        let (generation, effects) = self.publish(cx, &before, newest);
        let timeout = self.store.head().config.config.commit_timeout_ms;
        self.commits.in_flight = Some(Commit {
            generation,
            effects,
            everyone: effects.intersects(Effects::OF_SLEEPERS),
            before,
            changes,
            closed,
            pending_replies,
            timeout: cx.run_after(timeout, Timer::Commit as u64),
            phase: Phase::Switching,
            trial,
        });
    }

    /// Publishes a snapshot to all workers. Returns its generation and its effects. Workers that sleep are woken if there
    /// is work for them.
    fn publish(
        &mut self,
        cx: &mut Cx,
        before: &Arc<Settings>,
        newest: Arc<Snapshot>,
    ) -> (u64, Effects) {
        let settings = Arc::new(before.next(newest));
        let effects = before.effects(&settings);
        self.free_retired();
        self.retired.push(Arc::clone(before));
        if effects.contains(Effect::BusSlots) {
            self.endpoint.set_ring_slots(settings.config.limits.bus_slots as usize);
        }
        let generation = self.state.publish(settings);
        crash::reach("published");
        if effects.intersects(Effects::OF_SLEEPERS) {
            self.wake_workers();
            crash::reach("woken");
        }
        let hooks = Effects::of(&[Effect::Hooks, Effect::Upstreams]);
        if effects.intersects(hooks) && !self.commits.webhooks_timer_set {
            self.commits.webhooks_timer_set = true;
            cx.run_after(WEBHOOKS_PAUSE_MS, Timer::Webhooks as u64);
        }
        if effects.contains(Effect::Federation) {
            // If the ring is full, the thread is awake or about to wake.
            let to = self.state.bus.federation();
            let _ = self.endpoint.send(to, FederationMessage::AdoptSettings);
            self.endpoint.flush();
            self.state.effects.count(Effect::Federation);
        }
        (generation, effects)
    }

    /// Wakes the webhooks thread, which adopts the newest settings at every wake-up. Changes within a few milliseconds
    /// share a wake-up, which costs more than changing a member.
    pub(super) fn wake_webhooks(&mut self) {
        self.commits.webhooks_timer_set = false;
        // If the ring is full, the thread is awake or about to wake.
        let _ = self.endpoint.send(self.state.bus.webhooks(), WebhooksMessage::AdoptSettings);
        self.endpoint.flush();
    }

    pub(super) fn wake_workers(&mut self) {
        for worker in 0..self.state.workers() {
            // If the ring is full, the worker is awake or about to wake.
            let _ = self.endpoint.send(self.state.bus.worker(worker), WorkerMessage::AdoptSettings);
        }
        self.endpoint.flush();
    }

    /// Spins until every worker that matters has switched; after [`SPIN`], asks the others to report.
    fn poll_rollout(&self, in_flight: &Commit) -> Option<Switched> {
        let mut began: Option<Instant> = None;
        loop {
            if self.is_adopted(in_flight) {
                return Some(self.switched(in_flight.generation));
            }
            match began {
                // A thread that yields with a long time slice loses the core for that long.
                None if self.long_time_slice => break,
                None => began = Some(Instant::now()),
                Some(began) if began.elapsed() >= SPIN => break,
                // The worker may need this core to end its turn.
                Some(_) => std::thread::yield_now(),
            }
        }
        for worker in 0..self.state.workers() {
            self.state.rollout.await_adoption(worker, in_flight.generation);
        }
        // A worker may have switched, or fallen asleep, before it was asked to report.
        self.is_adopted(in_flight).then(|| self.switched(in_flight.generation))
    }

    fn is_adopted(&self, in_flight: &Commit) -> bool {
        (0..self.state.workers()).all(|worker| {
            let standing = self.state.rollout.follower_state(worker);
            if in_flight.everyone {
                standing.generation >= in_flight.generation
            } else {
                standing.is_at(in_flight.generation)
            }
        })
    }

    fn switched(&self, generation: u64) -> Switched {
        let total = self.state.workers();
        let awake = (0..total)
            .filter(|&worker| self.state.rollout.follower_state(worker).generation >= generation)
            .count();
        Switched { awake, asleep: total - awake }
    }

    /// Confirms the commit or begins its rollback, once every worker has switched or reported why it cannot.
    fn finish(&mut self, cx: &mut Cx, in_flight: Commit, switched: Switched) {
        cx.cancel(in_flight.timeout);
        if let Phase::RollingBack { .. } = in_flight.phase {
            return self.finish_rollback(cx, in_flight);
        }
        let reasons: Vec<(usize, String)> = (0..self.state.workers())
            .filter_map(|worker| {
                Some((worker, self.state.rejection(worker, in_flight.generation)?))
            })
            .collect();
        if !reasons.is_empty() {
            return self.begin_rollback(cx, in_flight, reasons);
        }
        crash::reach("confirm");
        let head = self.store.confirm();
        crash::reach("confirmed");
        in_flight.changes.iter().for_each(|(prepared, origin)| tell_changed(prepared, origin));
        self.follow(cx, &head.config, in_flight.effects);
        if in_flight.effects.contains(Effect::PushSenders) {
            let (before, after) = (&in_flight.before.config.push, &head.config.push);
            // Credentials were validated. One that still cannot be used is logged, and shown in a metric.
            if let Some(faults) = self.push.as_ref().map(|push| push.apply(before, after)) {
                faults.iter().for_each(|fault| tracing::error!("{fault}"));
            }
            self.state.effects.count(Effect::PushSenders);
        }
        let trial = in_flight.trial;
        let (closed, sessions) = (in_flight.closed, self.state.total(Metric::Sessions));
        let outcome = CommitOutcome { switched, closed, sessions, trial: trial.as_ref() };
        for pending_reply in &in_flight.pending_replies {
            self.answer(cx, pending_reply, &in_flight.changes, &outcome);
        }
        self.counters.add(ConfigMetric::Changes, in_flight.changes.len() as u64);
        self.notify_watchers(cx, in_flight.changes[0].0.base().revision);
        self.sync_if_wanted();
        self.compact_if_due();
    }

    /// Handles the timeout of the commit in flight.
    pub(super) fn handle_commit_timeout(&mut self, cx: &mut Cx) {
        let Some(in_flight) = self.commits.in_flight.take() else { return };
        if self.is_adopted(&in_flight) {
            let switched = self.switched(in_flight.generation);
            return self.finish(cx, in_flight, switched);
        }
        if let Phase::RollingBack { .. } = in_flight.phase {
            // A stuck worker has never adopted the change, and adopts the good snapshot when its turn ends.
            return self.finish_rollback(cx, in_flight);
        }
        let bound_ms = self.store.head().config.config.commit_timeout_ms;
        let reasons = (0..self.state.workers())
            .filter(|&worker| {
                let standing = self.state.rollout.follower_state(worker);
                !standing.is_at(in_flight.generation)
                    || in_flight.everyone && standing.generation < in_flight.generation
            })
            .map(|worker| {
                let lag_ms = self.state.loop_stats[worker].lag_ms();
                let why = format!(
                    "it did not switch within config.commit_timeout_ms = {bound_ms}: its turn has \
                     lasted {lag_ms} ms"
                );
                (worker, why)
            })
            .collect();
        self.begin_rollback(cx, in_flight, reasons);
    }

    /// Publishes the last good snapshot again, as the next revision.
    fn begin_rollback(&mut self, cx: &mut Cx, in_flight: Commit, reasons: Vec<(usize, String)>) {
        let why = reasons.iter().map(|(worker, reason)| format!("worker {worker}: {reason}"));
        let why = why.collect::<Vec<_>>().join("; ");
        tracing::warn!(why, "a change is rolled back");
        self.counters.count(ConfigMetric::RolledBack);
        crash::reach("roll-back");
        let good = self.store.roll_back(&why, unix_ms());
        crash::reach("rolled-back");
        let revision = good.revision;
        let present = self.state.settings.load_full();
        let (generation, _) = self.publish(cx, &present, good);
        let timeout = self.store.head().config.config.commit_timeout_ms;
        self.commits.in_flight = Some(Commit {
            generation,
            // Sleeping workers wake with the good snapshot.
            everyone: false,
            timeout: cx.run_after(timeout, Timer::Commit as u64),
            phase: Phase::RollingBack { revision, reasons },
            ..in_flight
        });
    }

    fn finish_rollback(&mut self, cx: &mut Cx, in_flight: Commit) {
        cx.cancel(in_flight.timeout);
        let Phase::RollingBack { revision, reasons } = in_flight.phase else { return };
        self.reservations.keep_only(&self.store.head().config);
        let detail = format!(
            "{} of {} workers did not switch; the configuration before runs everywhere again, as \
             revision {revision}",
            reasons.len(),
            self.state.workers()
        );
        let named = |(worker, reason)| json!({ "worker": worker, "reason": reason });
        let problem = ProblemDetails::new(&problem::NOT_APPLIED, detail)
            .with("workers", reasons.into_iter().map(named).collect::<Vec<Value>>())
            .with("revision", revision);
        crash::reach("refuse");
        for pending_reply in &in_flight.pending_replies {
            self.refuse(cx, pending_reply.to, &problem);
        }
        self.notify_watchers(cx, in_flight.before.revision);
        self.sync_if_wanted();
    }

    /// Answers that a change is in effect, immediately or once it is on disk.
    fn answer(
        &mut self,
        cx: &mut Cx,
        pending_reply: &PendingReply,
        changes: &[(PreparedChange, Origin)],
        outcome: &CommitOutcome<'_>,
    ) {
        let prepared =
            pending_reply.change.and_then(|at| changes.get(at)).map(|(prepared, _)| prepared);
        let revision =
            prepared.map_or(pending_reply.previous, |prepared| prepared.snapshot().revision);
        let created = prepared.is_some_and(PreparedChange::created);
        let durable = pending_reply.durable || self.durable >= revision;
        let mut body = std::mem::take(&mut self.commits.body);
        write_body(&mut body, pending_reply, prepared, revision, durable, outcome);
        let answer = CommitResponse { to: pending_reply.to, created, revision, body };
        if pending_reply.durable && self.durable < revision {
            self.commits.undurable.push_back(answer);
            return;
        }
        crash::reach("answer");
        self.send(cx, &answer);
        crash::reach("answered");
        self.commits.body = answer.body;
    }

    /// Whether a response waits for the disk.
    pub(super) fn awaits_disk(&self) -> bool {
        !self.commits.undurable.is_empty()
    }

    /// Sends the responses whose revision is on disk.
    pub(super) fn handle_synced(&mut self, cx: &mut Cx) {
        let durable = self.durable;
        while let Some(answer) =
            self.commits.undurable.pop_front_if(|answer| answer.revision <= durable)
        {
            crash::reach("durable");
            self.send(cx, &answer);
            crash::reach("durable-answered");
        }
    }

    /// Handles a failed fsync, after which the contents of the disk are unknown.
    pub(super) fn handle_sync_error(&mut self, cx: &mut Cx, error: &std::io::Error) {
        for CommitResponse { to, revision, .. } in std::mem::take(&mut self.commits.undurable) {
            let detail = format!(
                "revision {revision} is in effect, but fsync failed and it may not outlive a crash \
                 of the machine: {error}"
            );
            let problem = ProblemDetails::new(&problem::LOG_NOT_WRITTEN, detail);
            self.refuse(cx, to, &problem.with("revision", revision));
        }
    }

    fn send(&mut self, cx: &mut Cx, answer: &CommitResponse) {
        let CommitResponse { to, created, revision, body } = answer;
        let status = if *created { 201 } else { 200 };
        match *to {
            ReplyTo::Caller(conn) => {
                let mut tag = [0; 24];
                let tag = etag(*revision, &mut tag);
                let headers = [("Content-Type", "application/json"), ("ETag", tag)];
                respond(cx, conn, status, &headers, body);
            }
            ReplyTo::File => self.file_taken_over(*revision),
            to => self.cluster_changes.handle_ended(to, status, body.clone()),
        }
    }
}

/// Tells the log of a change: who has made it, and which keys it changed; never their values.
fn tell_changed(prepared: &PreparedChange, origin: &Origin) {
    if !log::is_enabled(Kind::SettingsChanged) {
        return;
    }
    let changes = prepared.changes();
    let mut keys: Vec<&str> =
        changes.iter().take(KEYS_LOGGED_MAX).map(|change| change.pointer.as_str()).collect();
    let more = changes.len().saturating_sub(keys.len());
    let more = format!("and {more} more");
    if changes.len() > KEYS_LOGGED_MAX {
        keys.push(&more);
    }
    let entry = Entry {
        by: &origin.who,
        key: &origin.token,
        reason: &origin.comment,
        // A connection's address, or the kind of its socket.
        origin: &origin.from,
        keys: &keys.join(" "),
        revision: Some(prepared.snapshot().revision),
        ..Entry::default()
    };
    log::write(Kind::SettingsChanged, &entry);
}

/// Returns the entity tag of a revision, `"REVISION"` with its quotes.
pub(super) fn etag(revision: u64, buffer: &mut [u8; 24]) -> &str {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    // Twenty digits and two quotes fit.
    let _ = write!(rest, "\"{revision}\"");
    let left = rest.len();
    let length = buffer.len() - left;
    str::from_utf8(&buffer[..length]).unwrap_or("\"0\"")
}

fn write_body(
    body: &mut Vec<u8>,
    pending_reply: &PendingReply,
    prepared: Option<&PreparedChange>,
    revision: u64,
    durable: bool,
    outcome: &CommitOutcome<'_>,
) {
    use std::io::Write;
    body.clear();
    let changes = prepared.map_or(&[][..], PreparedChange::changes);
    let Switched { awake, asleep } = outcome.switched;
    // Writing to a Vec cannot fail.
    let _ = write!(
        body,
        "{{\"revision\":{revision},\"previous\":{},\"changes\":{},\"durable\":{durable},\
         \"workers\":{{\"total\":{},\"switched\":{awake},\"asleep\":{asleep}}}",
        pending_reply.previous,
        changes.len(),
        awake + asleep,
    );
    for (name, applies) in
        [("restart_needed", Applies::Restart), ("new_connections_only", Applies::NewConnections)]
    {
        let mut late = changes.iter().filter(|change| change.applies == applies).peekable();
        if late.peek().is_some() {
            let pointers: Vec<&str> = late.map(|change| change.pointer.as_str()).collect();
            let _ = write!(body, ",\"{name}\":{}", json!(pointers));
        }
    }
    if outcome.closed > 0 {
        let _ = write!(body, ",\"sessions\":{{\"closed\":{}}}", outcome.closed);
    }
    let warnings =
        prepared.map(|prepared| warnings::of(prepared, outcome.closed, outcome.sessions));
    if let Some(warnings) = warnings.filter(|warnings| !warnings.is_empty()) {
        let _ = write!(body, ",\"warnings\":{}", json!(warnings));
    }
    if let Some(trial) = outcome.trial {
        let _ = write!(body, ",\"canary\":{trial}");
    }
    body.extend_from_slice(b"}\n");
}
