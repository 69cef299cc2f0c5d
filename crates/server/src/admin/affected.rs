//! Whom a change would concern: a dry run asks the workers, and is answered when all have counted, or when
//! [`PATIENCE`] is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dunlin_config::{Applies, Config, Pointer, PreparedChange};
use dunlin_net::{ConnId, Context};
use serde_json::{Value, json};

use super::problem::{self, Problem};
use super::{AFFECTED, Admin, Caller, answer_json};
use crate::auth::{Verifier, fingerprint};
use crate::bus_message::{AffectedCounts, AffectedScope, BusMessage};
use crate::metrics::Metric;

/// How long workers may count; one in a long turn is reported as silent.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// Dry runs that wait at once.
const ASKS_MAX: usize = 64;
/// Places told one by one; the rest is in the sum.
const PLACES_MAX: usize = 100;

/// A dry run that waits for the workers' answers.
pub(super) struct Ask {
    id: u64,
    conn: ConnId,
    /// In the loop's milliseconds, like the timer that goes off for it.
    deadline_ms: u64,
    silent: Vec<usize>,
    found: AffectedCounts,
    report: Value,
}

/// Dry runs that wait.
#[derive(Default)]
pub(super) struct Counts {
    waiting: Vec<Ask>,
    begun: u64,
}

impl Admin {
    /// Completes the report of a dry run with the sessions it concerns, and answers.
    pub(super) fn answer_with_affected(
        &mut self,
        cx: &mut Context<Caller>,
        conn: ConnId,
        prepared: &PreparedChange,
        mut report: Value,
    ) -> Result<(), Problem> {
        let (old, new) = (&prepared.base().config, &prepared.snapshot().config);
        let total = self.state.total(Metric::Sessions);
        let concerns_all = prepared.changes().iter().any(|change| {
            let about_all =
                ["/client/", "/limits/"].iter().any(|of| change.pointer.starts_with(of));
            let about_keys = change.pointer.starts_with("/client/token");
            change.applies == Applies::Live && about_all && !about_keys
        });
        report["sessions"] = json!({
            "total": total,
            "closed": self.sessions_closed(old, new),
            "affected": if concerns_all { total } else { 0 },
        });
        let keys = self.by_key(old, new);
        if !keys.is_empty() {
            report["sessions"]["by"] = keys.into();
        }
        let touched = touched(prepared);
        if touched.namespaces.is_empty() && touched.listeners.is_empty() {
            answer_json(cx, conn, 200, &report);
            return Ok(());
        }
        if self.counts.waiting.len() >= ASKS_MAX {
            let detail = "too many dry runs wait for the workers to count their sessions";
            return Err(Problem::new(&problem::OVERLOADED, detail).header("Retry-After", &1));
        }
        self.counts.begun += 1;
        let id = self.counts.begun;
        let touched = Arc::new(touched);
        for worker in 0..self.state.workers() {
            // A worker whose ring is full stays among the silent.
            let message = BusMessage::CountAffected { request_id: id, scope: Arc::clone(&touched) };
            let _ = self.endpoint.send(worker, message);
        }
        self.endpoint.flush();
        let patience_ms = PATIENCE.as_millis() as u64;
        cx.run_after(patience_ms, AFFECTED);
        self.counts.waiting.push(Ask {
            id,
            conn,
            deadline_ms: cx.now_ms() + patience_ms,
            silent: (0..self.state.workers()).collect(),
            found: AffectedCounts::default(),
            report,
        });
        Ok(())
    }

    /// Sessions that a change of the token keys ends.
    pub(super) fn sessions_closed(&self, old: &Config, new: &Config) -> u64 {
        if old.client.token == new.client.token {
            return 0;
        }
        let verifier = Verifier::new(&new.client.token);
        self.state.sessions_without(|key| verifier.keeps(key))
    }

    /// Sessions by the token key that let them in, of keys that are changed or taken away.
    fn by_key(&self, old: &Config, new: &Config) -> Vec<Value> {
        if old.client.token == new.client.token {
            return Vec::new();
        }
        let verifier = Verifier::new(&new.client.token);
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

    /// A worker has counted.
    pub(super) fn affected_counted(
        &mut self,
        cx: &mut Context<Caller>,
        ask: u64,
        worker: usize,
        found: AffectedCounts,
    ) {
        let Some(at) = self.counts.waiting.iter().position(|waiting| waiting.id == ask) else {
            return;
        };
        let waiting = &mut self.counts.waiting[at];
        waiting.silent.retain(|&silent| silent != worker);
        waiting.found.add(found);
        if waiting.silent.is_empty() {
            let ask = self.counts.waiting.swap_remove(at);
            ask.answer(cx);
        }
    }

    /// Answers with what there is where a worker keeps silent.
    pub(super) fn affected_overdue(&mut self, cx: &mut Context<Caller>) {
        let now_ms = cx.now_ms();
        for ask in self.counts.waiting.extract_if(.., |ask| ask.deadline_ms <= now_ms) {
            ask.answer(cx);
        }
    }
}

impl Ask {
    fn answer(self, cx: &mut Context<Caller>) {
        let Ask { conn, silent, found, mut report, .. } = self;
        let sessions = &mut report["sessions"];
        let affected = sessions["affected"].as_u64().unwrap_or(0).max(found.sessions);
        sessions["affected"] = affected.into();
        let pointer =
            |map: &str, name: &str| Pointer::parse(map).unwrap_or_default().join(name).to_string();
        let mut by = sessions["by"].as_array().cloned().unwrap_or_default();
        by.extend(largest(&found.subscriptions).map(|(name, count)| {
            let pointer = match name {
                "" => "/channel/without_namespace".to_owned(),
                name => pointer("/channel/namespaces", name),
            };
            json!({"pointer": pointer, "subscriptions": count})
        }));
        by.extend(largest(&found.connections).map(|(name, count)| {
            json!({"pointer": pointer("/listeners", name), "connections": count, "closed": false})
        }));
        if !by.is_empty() {
            sessions["by"] = by.into();
        }
        if !silent.is_empty() {
            sessions["silent_workers"] = json!(silent);
        }
        answer_json(cx, conn, 200, &report);
    }
}

/// What of a change only the workers can say whom it concerns.
fn touched(prepared: &PreparedChange) -> AffectedScope {
    let mut namespaces = BTreeSet::new();
    let mut listeners = BTreeMap::new();
    let (old, new) = (&prepared.base().config, &prepared.snapshot().config);
    if old.channel.without_namespace != new.channel.without_namespace {
        namespaces.insert(Arc::from(""));
    }
    for (name, before, _) in new.channel.namespaces.changes_from(&old.channel.namespaces) {
        // In one that is new there is nobody.
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

/// The largest of them, as many as are told one by one.
fn largest(of: &BTreeMap<Arc<str>, u64>) -> impl Iterator<Item = (&str, u64)> {
    let mut all: Vec<(&str, u64)> = of.iter().map(|(name, count)| (&**name, *count)).collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    all.into_iter().take(PLACES_MAX)
}
