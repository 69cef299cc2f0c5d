//! Counts the sessions that a change affects: a dry run queries the workers, and is answered when all have counted, or
//! after [`COUNT_TIMEOUT_MS`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dunlin_config::{Applies, Config, Pointer, PreparedChange};
use dunlin_net::ConnId;
use serde_json::{Value, json};

use super::problem::{self, ProblemDetails};
use super::timer::Timer;
use super::worker_query::{WorkerQueries, WorkerQuery};
use super::{Admin, Cx, answer_json};
use crate::auth::{Verifier, fingerprint};
use crate::message::worker::{AffectedCounts, AffectedScope, WorkerMessage};
use crate::metrics::Metric;

/// Time for workers to count. One that does not reply in time is reported as unresponsive.
const COUNT_TIMEOUT_MS: u64 = 1_000;
/// Most dry runs in flight.
const DRY_RUNS_MAX: usize = 64;
/// Most places listed one by one; the sums include all.
const PLACES_MAX: usize = 100;

/// A dry run that waits for the workers' counts.
pub(super) struct DryRun {
    conn: ConnId,
    counts: AffectedCounts,
    report: Value,
}

pub(super) fn dry_runs() -> WorkerQueries<DryRun> {
    WorkerQueries::new(DRY_RUNS_MAX)
}

impl Admin {
    /// Adds the sessions that a change affects to the report of its dry run, and answers.
    pub(super) fn answer_with_affected(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        prepared: &PreparedChange,
        mut report: Value,
    ) -> Result<(), ProblemDetails> {
        let (old, new) = (&prepared.base().config, &prepared.snapshot().config);
        let total = self.state.total(Metric::Sessions);
        let affects_all = prepared.changes().iter().any(|change| {
            let is_general =
                ["/client/", "/limits/"].iter().any(|of| change.pointer.starts_with(of));
            let is_key = change.pointer.starts_with("/client/token");
            change.applies == Applies::Live && is_general && !is_key
        });
        report["sessions"] = json!({
            "total": total,
            "closed": self.sessions_closed(old, new),
            "affected": if affects_all { total } else { 0 },
        });
        let keys = self.by_token_key(old, new);
        if !keys.is_empty() {
            report["sessions"]["by"] = keys.into();
        }
        let scope = scope_of(prepared);
        if scope.namespaces.is_empty() && scope.listeners.is_empty() {
            answer_json(cx, conn, 200, &report);
            return Ok(());
        }
        let workers = self.state.workers();
        let dry_run = DryRun { conn, counts: AffectedCounts::default(), report };
        let deadline_ms = cx.now_ms() + COUNT_TIMEOUT_MS;
        let Some(request_id) = self.dry_runs.begin(deadline_ms, workers, dry_run) else {
            let detail = "too many dry runs wait for the workers to count their sessions";
            return Err(ProblemDetails::new(&problem::OVERLOADED, detail).header("Retry-After", &1));
        };
        let scope = Arc::new(scope);
        for worker in 0..workers {
            // A worker whose ring is full stays unresponsive.
            let message = WorkerMessage::CountAffected { request_id, scope: Arc::clone(&scope) };
            let _ = self.endpoint.send(self.state.bus.worker(worker), message);
        }
        self.endpoint.flush();
        cx.run_after(COUNT_TIMEOUT_MS, Timer::DryRun as u64);
        Ok(())
    }

    /// Returns the number of sessions that a change of the token keys ends.
    pub(super) fn sessions_closed(&self, old: &Config, new: &Config) -> u64 {
        if old.client.token == new.client.token {
            return 0;
        }
        let verifier = Verifier::new(new.client.token.rules());
        self.state.sessions_without(|key| verifier.keeps(key))
    }

    /// Counts the sessions authenticated by token keys that are changed or removed, by key.
    fn by_token_key(&self, old: &Config, new: &Config) -> Vec<Value> {
        if old.client.token == new.client.token {
            return Vec::new();
        }
        let verifier = Verifier::new(new.client.token.rules());
        let token = &old.client.token;
        let single = [
            ("/client/token/hmac_secret".to_owned(), token.hmac_secret.as_ref()),
            ("/client/token/hmac_secret_previous".to_owned(), token.hmac_secret_previous.as_ref()),
        ];
        let named = new.client.token.keys.changes_from(&token.keys).map(|(name, before, _)| {
            let keys = Pointer::parse("/client/token/keys").unwrap_or_default();
            (keys.join(&**name).to_string(), before.map(|secret| &**secret))
        });
        single
            .into_iter()
            .chain(named)
            .filter_map(|(pointer, secret)| {
                let key = fingerprint(secret?);
                let closed = !verifier.keeps(key);
                let sessions = self.state.sessions_without(|of| of != key);
                (closed && sessions > 0)
                    .then(|| json!({"pointer": pointer, "sessions": sessions, "closed": true}))
            })
            .take(PLACES_MAX)
            .collect()
    }

    /// Handles the counts of a worker.
    pub(super) fn handle_affected_reply(
        &mut self,
        cx: &mut Cx,
        request_id: u64,
        worker: usize,
        counts: AffectedCounts,
    ) {
        let done =
            self.dry_runs.handle_reply(request_id, worker, |dry_run| dry_run.counts.add(counts));
        if let Some(query) = done {
            answer(cx, query);
        }
    }

    /// Answers dry runs whose deadline has passed.
    pub(super) fn answer_overdue_dry_runs(&mut self, cx: &mut Cx, now_ms: u64) {
        for query in self.dry_runs.poll_overdue(now_ms) {
            answer(cx, query);
        }
    }
}

fn answer(cx: &mut Cx, query: WorkerQuery<DryRun>) {
    let DryRun { conn, counts, mut report } = query.replies;
    let sessions = &mut report["sessions"];
    let affected = sessions["affected"].as_u64().unwrap_or(0).max(counts.sessions);
    sessions["affected"] = affected.into();
    let pointer =
        |map: &str, name: &str| Pointer::parse(map).unwrap_or_default().join(name).to_string();
    let mut by = sessions["by"].as_array().cloned().unwrap_or_default();
    by.extend(largest(&counts.subscriptions).map(|(name, count)| {
        let pointer = match name {
            "" => "/channel/without_namespace".to_owned(),
            name => pointer("/channel/namespaces", name),
        };
        json!({"pointer": pointer, "subscriptions": count})
    }));
    by.extend(largest(&counts.connections).map(|(name, count)| {
        json!({"pointer": pointer("/listeners", name), "connections": count, "closed": false})
    }));
    if !by.is_empty() {
        sessions["by"] = by.into();
    }
    if !query.unresponsive.is_empty() {
        sessions["unresponsive_workers"] = json!(query.unresponsive);
    }
    answer_json(cx, conn, 200, &report);
}

/// Returns the parts of a change whose affected sessions only the workers know.
fn scope_of(prepared: &PreparedChange) -> AffectedScope {
    let mut namespaces = BTreeSet::new();
    let mut listeners = BTreeMap::new();
    let (old, new) = (&prepared.base().config, &prepared.snapshot().config);
    if old.channel.without_namespace != new.channel.without_namespace {
        namespaces.insert(Arc::from(""));
    }
    for (name, before, _) in new.channel.namespaces.changes_from(&old.channel.namespaces) {
        // A new namespace has no sessions.
        if before.is_some() {
            namespaces.insert(Arc::clone(name));
        }
    }
    for (name, before, after) in new.listeners.changes_from(&old.listeners) {
        let Some(before) = before else { continue };
        if after.is_none_or(|after| after.addr != before.addr) {
            listeners.insert(Arc::clone(name), before.addr);
        }
    }
    AffectedScope { namespaces, listeners: listeners.into_iter().collect() }
}

/// Returns the largest counts, at most [`PLACES_MAX`].
fn largest(of: &BTreeMap<Arc<str>, u64>) -> impl Iterator<Item = (&str, u64)> {
    let mut all: Vec<(&str, u64)> = of.iter().map(|(name, count)| (&**name, *count)).collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all.into_iter().take(PLACES_MAX)
}
