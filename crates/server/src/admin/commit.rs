//! A change's way to every worker: prepared, logged, published, taken up, confirmed; or taken back.
//!
//! One commit is under way at a time. What arrives meanwhile waits, and becomes the next commit together: each
//! change is a revision of its own, and all of them are one write to the log, one publication and one wait.
//!
//! A worker that sleeps runs the new snapshot before it does anything else ([`dunlin_bus::Rollout`]), so only
//! those that are awake are waited for: for a moment by looking again and again, since most turns end within
//! microseconds, then by being told, within `config.commit_timeout_ms`.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config::store::Origin;
use dunlin_config::{Applies, Change, PreparedChange, Snapshot};
use dunlin_net::{ConnId, Context, TimerId, http};
use serde_json::{Value, json};

use super::call::Canary;
use super::problem::{self, Problem};
use super::{Admin, COMMIT_TIMEOUT, Caller, WEBHOOKS_DUE, unix_ms, warnings};
use crate::bus_message::BusMessage;
use crate::crash;
use crate::metrics::ConfigMetric;
use crate::settings::Settings;

/// How long to look before asking to be told: a turn of a worker that is not at the end of a large fan-out
/// takes less, and being told may cost a wake.
const LOOK: Duration = Duration::from_micros(20);
/// How long changes that concern the webhooks thread wait for more of them.
const WEBHOOKS_PAUSE_MS: u64 = 5;
/// Changes that wait for the commit under way.
const WAITING_MAX: usize = 4_096;

/// A change somebody wants.
pub(super) struct Wish {
    pub(super) conn: ConnId,
    pub(super) change: Change,
    pub(super) expected: Option<u64>,
    pub(super) origin: Origin,
    pub(super) durable: bool,
    pub(super) canary: Option<Canary>,
}

/// Changes on their way.
#[derive(Default)]
pub(super) struct Commits {
    waiting: VecDeque<Wish>,
    under_way: Option<UnderWay>,
    /// Answered as soon as their revision is on disk: revision, and the answer.
    undurable: VecDeque<(u64, Answer)>,
    /// The webhooks thread is to be told of changes when a timer has run out.
    webhooks_due: bool,
    body: Vec<u8>,
}

/// An answer that is known and must not be given yet.
struct Answer {
    conn: ConnId,
    created: bool,
    revision: u64,
    body: Vec<u8>,
}

struct UnderWay {
    generation: u64,
    /// Also sleeping workers have to have switched, since there is something to do.
    everyone: bool,
    before: Arc<Settings>,
    changes: Vec<(PreparedChange, Origin)>,
    /// Sessions that they end, as of before.
    closed: u64,
    askers: Vec<Asker>,
    timeout: TimerId,
    phase: Phase,
    /// What a trial has shown, when there was one.
    trial: Option<Value>,
}

enum Phase {
    Switching,
    /// The good snapshot before is being published again.
    TakingBack {
        revision: u64,
        reasons: Vec<(usize, String)>,
    },
}

struct Asker {
    conn: ConnId,
    durable: bool,
    /// Its place in `changes`; none if its change changed nothing.
    change: Option<usize>,
    /// The revision before its change.
    previous: u64,
}

/// What came of a commit, for those who wait for it.
struct Outcome<'a> {
    switched: Switched,
    /// Sessions that it ends.
    closed: u64,
    /// What a trial has shown, when there was one.
    trial: Option<&'a Value>,
}

/// How many workers run the newest snapshot, and how many will when they wake.
#[derive(Clone, Copy)]
struct Switched {
    awake: usize,
    asleep: usize,
}

impl Commits {
    /// Whether no change is under way or waits.
    pub(super) fn are_settled(&self) -> bool {
        self.under_way.is_none() && self.waiting.is_empty()
    }
}

impl Admin {
    /// Takes a change in; it is carried out at the end of the turn, or with the next commit.
    pub(super) fn wish(&mut self, cx: &mut Context<Caller>, wish: Wish) {
        if self.trial.is_some() {
            return self.refuse_for_trial(cx, wish.conn);
        }
        if wish.durable && self.sync.is_none() {
            let detail = "revisions live in memory, for the server was started without --state";
            return Problem::new(&problem::NO_STATE, detail).answer(cx, wish.conn);
        }
        if self.commits.waiting.len() >= WAITING_MAX {
            let detail = format!("{WAITING_MAX} changes wait already");
            let problem = Problem::new(&problem::OVERLOADED, detail);
            return problem.header("Retry-After", &1).answer(cx, wish.conn);
        }
        self.commits.waiting.push_back(wish);
    }

    fn refuse_for_trial(&self, cx: &mut Context<Caller>, conn: ConnId) {
        let seconds = self.trial_seconds_left(cx).unwrap_or(1);
        let detail = "a change is on trial on one worker; wait for its end";
        let problem = Problem::new(&problem::CANARY_UNDER_WAY, detail);
        problem.header("Retry-After", &seconds).answer(cx, conn);
    }

    /// Goes as far as it goes: called at the end of every turn.
    pub(super) fn advance(&mut self, cx: &mut Context<Caller>) {
        loop {
            if let Some(under_way) = self.commits.under_way.take() {
                match self.look(&under_way) {
                    Some(switched) => self.settled(cx, under_way, switched),
                    None => {
                        self.commits.under_way = Some(under_way);
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

    /// Prepares what waits, writes it to the log and publishes it.
    fn begin(&mut self, cx: &mut Context<Caller>) {
        let mut base = Arc::clone(self.store.head());
        let mut changes: Vec<(PreparedChange, Origin)> = Vec::new();
        if self.commits.waiting.iter().any(|wish| matches!(wish.change, Change::Restore(_))) {
            self.be_patient();
        }
        let mut askers = Vec::new();
        while let Some(wish) = self.commits.waiting.pop_front() {
            if wish.canary.is_some() && !changes.is_empty() {
                // It goes alone.
                self.commits.waiting.push_front(wish);
                break;
            }
            let previous = base.revision;
            let prepared = match base.prepare(&wish.change, wish.expected) {
                Ok(prepared) => prepared,
                Err(refusal) => {
                    Problem::of_change_error(&refusal).answer(cx, wish.conn);
                    continue;
                }
            };
            let Wish { conn, durable, origin, canary, .. } = wish;
            if prepared.is_unchanged() {
                askers.push(Asker { conn, durable, change: None, previous });
                continue;
            }
            let next = &prepared.snapshot().config;
            if let Err(faults) = crate::judge(&base.config, next) {
                Problem::faults(&problem::INVALID, &faults).answer(cx, conn);
                continue;
            }
            if let Err(fault) = self.reservations.reserve(&base.config, next) {
                Problem::faults(&problem::INVALID, &fault.into()).answer(cx, conn);
                continue;
            }
            if let Some(canary) = canary {
                self.begin_trial(cx, canary, conn, durable, prepared, origin);
                // They would wait for as long as it lasts.
                for wish in std::mem::take(&mut self.commits.waiting) {
                    self.refuse_for_trial(cx, wish.conn);
                }
                break;
            }
            base = Arc::clone(prepared.snapshot());
            askers.push(Asker { conn, durable, change: Some(changes.len()), previous });
            changes.push((prepared, origin));
        }
        self.commit(cx, changes, askers, None);
    }

    /// Writes prepared changes to the log and publishes them.
    pub(super) fn commit_tried(
        &mut self,
        cx: &mut Context<Caller>,
        conn: ConnId,
        durable: bool,
        change: (PreparedChange, Origin),
        trial: Value,
    ) {
        let previous = change.0.base().revision;
        let asker = Asker { conn, durable, change: Some(0), previous };
        self.commit(cx, vec![change], vec![asker], Some(trial));
    }

    fn commit(
        &mut self,
        cx: &mut Context<Caller>,
        changes: Vec<(PreparedChange, Origin)>,
        askers: Vec<Asker>,
        trial: Option<Value>,
    ) {
        let Some((last, _)) = changes.last() else {
            let switched = self.switched(self.state.generation());
            let outcome = Outcome { switched, closed: 0, trial: None };
            for asker in askers {
                self.answer(cx, &asker, &[], &outcome);
            }
            return;
        };
        let newest = Arc::clone(last.snapshot());
        crash::reach("append");
        if let Err(error) = self.store.append(&changes) {
            self.reservations.keep_only(&self.store.head().config);
            tracing::error!(%error, "a change could not be written to the log");
            for asker in askers {
                Problem::new(&problem::LOG_NOT_WRITTEN, error.to_string()).answer(cx, asker.conn);
            }
            return;
        }
        crash::reach("appended");
        let before = self.state.settings.load_full();
        let closed = self.sessions_closed(&before.config, &newest.config);
        let (generation, everyone) = self.publish(cx, &before, newest);
        let timeout = self.store.head().config.config.commit_timeout_ms;
        self.commits.under_way = Some(UnderWay {
            generation,
            everyone,
            before,
            changes,
            closed,
            askers,
            timeout: cx.run_after(timeout, COMMIT_TIMEOUT),
            phase: Phase::Switching,
            trial,
        });
    }

    /// Makes a snapshot everyone's. True: sleeping workers have something to do for it, and are woken.
    fn publish(
        &mut self,
        cx: &mut Context<Caller>,
        before: &Arc<Settings>,
        newest: Arc<Snapshot>,
    ) -> (u64, bool) {
        let settings = Arc::new(before.next(newest));
        let everyone = before.wants_work(&settings);
        self.bury_retired();
        self.retired.push(Arc::clone(before));
        let hooks = before.config.webhooks != settings.config.webhooks;
        if before.config.limits.bus_slots != settings.config.limits.bus_slots {
            self.endpoint.set_ring_slots(settings.config.limits.bus_slots as usize);
        }
        let generation = self.state.publish(settings);
        crash::reach("published");
        if everyone {
            self.wake_workers();
            crash::reach("woken");
        }
        if hooks && !self.commits.webhooks_due {
            self.commits.webhooks_due = true;
            cx.run_after(WEBHOOKS_PAUSE_MS, WEBHOOKS_DUE);
        }
        (generation, everyone)
    }

    /// The webhooks thread takes up the newest settings whenever it wakes, before all else. Woken it is for changes that
    /// have come since the last time, not for each: to be woken costs more than a member's change.
    pub(super) fn tell_webhooks(&mut self) {
        self.commits.webhooks_due = false;
        // A full ring has woken it, or is about to.
        let _ = self.endpoint.send(self.state.webhooks_endpoint(), BusMessage::AdoptSettings);
        self.endpoint.flush();
    }

    pub(super) fn wake_workers(&mut self) {
        for worker in 0..self.state.workers() {
            // A full ring has woken its worker, or is about to.
            let _ = self.endpoint.send(worker, BusMessage::AdoptSettings);
        }
        self.endpoint.flush();
    }

    /// Whether every worker that matters has switched; looks for a moment.
    fn look(&self, under_way: &UnderWay) -> Option<Switched> {
        let mut began: Option<Instant> = None;
        loop {
            if self.is_settled(under_way) {
                return Some(self.switched(under_way.generation));
            }
            match began {
                // Who gives up a long slice is without the core for as long.
                None if self.patient => break,
                None => began = Some(Instant::now()),
                Some(began) if began.elapsed() >= LOOK => break,
                // The worker may need this very core to get to the end of its turn.
                Some(_) => std::thread::yield_now(),
            }
        }
        for worker in 0..self.state.workers() {
            self.state.rollout.await_adoption(worker, under_way.generation);
        }
        // One may have switched, or fallen asleep, before it was asked to tell.
        self.is_settled(under_way).then(|| self.switched(under_way.generation))
    }

    fn is_settled(&self, under_way: &UnderWay) -> bool {
        (0..self.state.workers()).all(|worker| {
            let standing = self.state.rollout.follower_state(worker);
            if under_way.everyone {
                standing.generation >= under_way.generation
            } else {
                standing.is_at(under_way.generation)
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

    /// Everyone has switched, or said why not.
    fn settled(&mut self, cx: &mut Context<Caller>, under_way: UnderWay, switched: Switched) {
        cx.cancel(under_way.timeout);
        if let Phase::TakingBack { .. } = under_way.phase {
            return self.roll_back(cx, under_way);
        }
        let reasons: Vec<(usize, String)> = (0..self.state.workers())
            .filter_map(|worker| {
                Some((worker, self.state.rejection(worker, under_way.generation)?))
            })
            .collect();
        if !reasons.is_empty() {
            return self.take_back(cx, under_way, reasons);
        }
        crash::reach("confirm");
        let head = self.store.confirm();
        crash::reach("confirmed");
        self.follow(cx, &head.config);
        if let Some(push) = &self.push {
            // They were judged; what cannot be used all the same is told by the log and the metrics.
            for fault in push.apply(&under_way.before.config.push, &head.config.push).iter() {
                tracing::error!("{fault}");
            }
        }
        let trial = under_way.trial;
        let outcome = Outcome { switched, closed: under_way.closed, trial: trial.as_ref() };
        for asker in &under_way.askers {
            self.answer(cx, asker, &under_way.changes, &outcome);
        }
        self.counters.add(ConfigMetric::Changes, under_way.changes.len() as u64);
        self.tell_watchers(cx, under_way.changes[0].0.base().revision);
        self.sync_if_wanted();
        self.compact_if_due();
    }

    /// The bound on waiting has passed.
    pub(super) fn commit_overdue(&mut self, cx: &mut Context<Caller>) {
        let Some(under_way) = self.commits.under_way.take() else { return };
        if self.is_settled(&under_way) {
            let switched = self.switched(under_way.generation);
            return self.settled(cx, under_way, switched);
        }
        if let Phase::TakingBack { .. } = under_way.phase {
            // Who is stuck has not taken up the change either, and takes the good one when it comes round.
            return self.roll_back(cx, under_way);
        }
        let bound_ms = self.store.head().config.config.commit_timeout_ms;
        let reasons = (0..self.state.workers())
            .filter(|&worker| {
                let standing = self.state.rollout.follower_state(worker);
                !standing.is_at(under_way.generation)
                    || under_way.everyone && standing.generation < under_way.generation
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
        self.take_back(cx, under_way, reasons);
    }

    /// Publishes the last good snapshot again, as the next revision.
    fn take_back(
        &mut self,
        cx: &mut Context<Caller>,
        under_way: UnderWay,
        reasons: Vec<(usize, String)>,
    ) {
        let mut why = String::new();
        for (worker, reason) in &reasons {
            // Writing to a String cannot fail.
            let _ = write!(why, "worker {worker}: {reason}; ");
        }
        let why = why.trim_end_matches("; ");
        tracing::warn!(why, "a change is taken back");
        self.counters.count(ConfigMetric::RolledBack);
        crash::reach("take-back");
        let good = self.store.roll_back(why, unix_ms());
        crash::reach("taken-back");
        let revision = good.revision;
        let present = self.state.settings.load_full();
        let (generation, _) = self.publish(cx, &present, good);
        let timeout = self.store.head().config.config.commit_timeout_ms;
        self.commits.under_way = Some(UnderWay {
            generation,
            // Who sleeps wakes with the good one.
            everyone: false,
            timeout: cx.run_after(timeout, COMMIT_TIMEOUT),
            phase: Phase::TakingBack { revision, reasons },
            ..under_way
        });
    }

    fn roll_back(&mut self, cx: &mut Context<Caller>, under_way: UnderWay) {
        cx.cancel(under_way.timeout);
        let Phase::TakingBack { revision, reasons } = under_way.phase else { return };
        self.reservations.keep_only(&self.store.head().config);
        let workers: Vec<Value> = reasons
            .iter()
            .map(|(worker, reason)| json!({ "worker": worker, "reason": reason }))
            .collect();
        crash::reach("refuse");
        for asker in &under_way.askers {
            let detail = format!(
                "{} of {} workers did not switch; the configuration before runs everywhere again, \
                 as revision {revision}",
                reasons.len(),
                self.state.workers()
            );
            Problem::new(&problem::NOT_APPLIED, detail)
                .with("workers", workers.clone())
                .with("revision", revision)
                .answer(cx, asker.conn);
        }
        self.tell_watchers(cx, under_way.before.revision);
        self.sync_if_wanted();
    }

    /// Says that a change is in effect, now or once it is on disk.
    fn answer(
        &mut self,
        cx: &mut Context<Caller>,
        asker: &Asker,
        changes: &[(PreparedChange, Origin)],
        outcome: &Outcome<'_>,
    ) {
        let prepared = asker.change.and_then(|at| changes.get(at)).map(|(prepared, _)| prepared);
        let revision = prepared.map_or(asker.previous, |prepared| prepared.snapshot().revision);
        let created = prepared.is_some_and(PreparedChange::created);
        let durable = asker.durable || self.durable >= revision;
        let mut body = std::mem::take(&mut self.commits.body);
        write_body(&mut body, asker, prepared, revision, durable, outcome);
        if asker.durable && self.durable < revision {
            let answer = Answer { conn: asker.conn, created, revision, body };
            self.commits.undurable.push_back((revision, answer));
            return;
        }
        crash::reach("answer");
        respond(cx, asker.conn, created, revision, &body);
        crash::reach("answered");
        self.commits.body = body;
    }

    /// Whether somebody waits for the disk.
    pub(super) fn awaits_disk(&self) -> bool {
        !self.commits.undurable.is_empty()
    }

    /// Everything up to this revision is on disk.
    pub(super) fn on_disk(&mut self, cx: &mut Context<Caller>) {
        while let Some((revision, _)) = self.commits.undurable.front() {
            if *revision > self.durable {
                return;
            }
            if let Some((_, answer)) = self.commits.undurable.pop_front() {
                crash::reach("durable");
                respond(cx, answer.conn, answer.created, answer.revision, &answer.body);
                crash::reach("durable-answered");
            }
        }
    }

    /// The disk has refused: nobody knows what it has.
    pub(super) fn not_on_disk(&mut self, cx: &mut Context<Caller>, error: &std::io::Error) {
        for (revision, answer) in std::mem::take(&mut self.commits.undurable) {
            let detail = format!(
                "revision {revision} is in effect, but fsync failed and it may not outlive a crash \
                 of the machine: {error}"
            );
            Problem::new(&problem::LOG_NOT_WRITTEN, detail)
                .with("revision", revision)
                .answer(cx, answer.conn);
        }
    }
}

fn respond(cx: &mut Context<Caller>, conn: ConnId, created: bool, revision: u64, body: &[u8]) {
    let mut tag = [0; 24];
    let tag = etag(revision, &mut tag);
    let headers = [("Content-Type", "application/json"), ("ETag", tag)];
    let status = if created { 201 } else { 200 };
    if cx.respond(conn, &http::Response { status, headers: &headers, body }).is_err() {
        // Nobody is there to be answered. The change stands.
        cx.abort(conn);
    }
}

/// `"REVISION"`, quotes included.
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
    asker: &Asker,
    prepared: Option<&PreparedChange>,
    revision: u64,
    durable: bool,
    outcome: &Outcome<'_>,
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
        asker.previous,
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
    let warnings = prepared.map(|prepared| warnings::of(prepared, outcome.closed));
    if let Some(warnings) = warnings.filter(|warnings| !warnings.is_empty()) {
        let _ = write!(body, ",\"warnings\":{}", json!(warnings));
    }
    if let Some(trial) = outcome.trial {
        let _ = write!(body, ",\"canary\":{trial}");
    }
    body.extend_from_slice(b"}\n");
}
