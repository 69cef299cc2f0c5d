//! Requests below `/config`: reads and dry runs are answered here, changes are submitted.

use std::sync::Arc;

use dunlin_config::store::Origin;
use dunlin_config::{AdminRole, Applies, Change, ChangedKey, Pointer, Secrets, Snapshot, schema};
use dunlin_net::http::{self, Method};
use dunlin_net::{ConnId, Context};
use serde_json::{Value, json};

use super::access::Caller;
use super::call::{self, Options, Target};
use super::commit::{SubmittedChange, etag};
use super::problem::{self, ProblemDetails};
use super::watch::{describe, summary};
use super::{Admin, AdminConnection, answer, answer_json, unix_ms, warnings};
use crate::metrics::Metric;

impl Admin {
    pub(super) fn config(
        &mut self,
        cx: &mut Context<AdminConnection>,
        conn: ConnId,
        request: &http::Request<'_>,
        rest: &str,
        caller: Caller,
    ) -> Result<(), ProblemDetails> {
        let target = Target::parse(rest)?;
        let options = Options::parse(request.query, self.state.workers())?;
        let secrets = match (options.secrets, caller.secrets) {
            (false, _) => Secrets::Hidden,
            (true, true) => Secrets::Shown,
            (true, false) => return Err(self.secrets_need_token(cx, conn)),
        };
        let reads = matches!(request.method, Method::Get | Method::Head);
        if !reads {
            caller.demand(AdminRole::Change)?;
        }
        match target {
            Target::Value(pointer) if reads => self.value(cx, conn, request, &pointer, secrets),
            Target::Value(pointer) => match request.method {
                Method::Put | Method::Delete | Method::Patch => {
                    let change = call::change(pointer, request)?;
                    self.change(cx, conn, request, &options, change, caller)
                }
                _ => Err(ProblemDetails::method("GET, HEAD, PUT, DELETE, PATCH")),
            },
            Target::Restore(number) => {
                if request.method != Method::Post {
                    return Err(ProblemDetails::method("POST"));
                }
                let revision = self.store.revision(number).ok_or_else(|| self.no_such(number))?;
                let change = Change::Restore(Arc::clone(&revision.snapshot));
                self.change(cx, conn, request, &options, change, caller)
            }
            _ if !reads => Err(ProblemDetails::method("GET, HEAD")),
            Target::Schema => {
                let body = schema::json().to_string();
                answer(cx, conn, 200, "application/schema+json", body.as_bytes());
                Ok(())
            }
            Target::Watch => {
                let last = request.headers.get_str("Last-Event-ID").and_then(|id| id.parse().ok());
                if let Some(caller) = cx.data(conn) {
                    caller.watching = true;
                }
                self.watch(cx, conn, options.from.or(last), secrets);
                Ok(())
            }
            Target::Revisions => {
                let before = options.before.unwrap_or(u64::MAX);
                let revisions: Vec<Value> = self
                    .store
                    .revisions()
                    .rev()
                    .filter(|revision| revision.snapshot.revision < before)
                    .take(options.limit)
                    .map(|revision| summary(revision))
                    .collect();
                let page = json!({
                    "current": self.store.head().revision,
                    "oldest": self.store.oldest(),
                    "durable": self.durable,
                    "revisions": revisions,
                });
                answer_json(cx, conn, 200, &page);
                Ok(())
            }
            Target::Revision(number) => {
                let revision = self.store.revision(number).ok_or_else(|| self.no_such(number))?;
                answer_json(cx, conn, 200, &describe(revision, secrets));
                Ok(())
            }
            Target::RevisionConfig(number) => {
                let revision = self.store.revision(number).ok_or_else(|| self.no_such(number))?;
                let snapshot = Arc::clone(&revision.snapshot);
                self.value_of(cx, conn, &snapshot, &Pointer::root(), secrets)
            }
        }
    }

    fn no_such(&self, number: u64) -> ProblemDetails {
        let (oldest, current) = (self.store.oldest(), self.store.head().revision);
        let detail = format!("revision {number} is not kept; there are {oldest} to {current}");
        ProblemDetails::new(&problem::NO_SUCH_REVISION, detail)
            .with("oldest", oldest)
            .with("current", current)
    }

    fn value(
        &mut self,
        cx: &mut Context<AdminConnection>,
        conn: ConnId,
        request: &http::Request<'_>,
        pointer: &Pointer,
        secrets: Secrets,
    ) -> Result<(), ProblemDetails> {
        let head = Arc::clone(self.store.head());
        let mut tag = [0; 24];
        let tag = etag(head.revision, &mut tag);
        if request.headers.get_str("If-None-Match") == Some(tag) {
            let headers = [("ETag", tag)];
            let unchanged = http::Response { status: 304, headers: &headers, body: b"" };
            if cx.respond(conn, &unchanged).is_err() {
                cx.abort(conn);
            }
            return Ok(());
        }
        self.value_of(cx, conn, &head, pointer, secrets)
    }

    fn value_of(
        &mut self,
        cx: &mut Context<AdminConnection>,
        conn: ConnId,
        snapshot: &Snapshot,
        pointer: &Pointer,
        secrets: Secrets,
    ) -> Result<(), ProblemDetails> {
        let mut body = Vec::new();
        if !snapshot.write_json(pointer, secrets, &mut body) {
            let fault = snapshot.missing(pointer);
            return Err(ProblemDetails::faults(&problem::NOT_FOUND, &fault.into()));
        }
        body.push(b'\n');
        let mut tag = [0; 24];
        let tag = etag(snapshot.revision, &mut tag);
        let headers =
            [("Content-Type", "application/json"), ("ETag", tag), ("Cache-Control", "no-store")];
        if cx
            .respond(conn, &http::Response { status: 200, headers: &headers, body: &body })
            .is_err()
        {
            cx.abort(conn);
        }
        Ok(())
    }

    fn change(
        &mut self,
        cx: &mut Context<AdminConnection>,
        conn: ConnId,
        request: &http::Request<'_>,
        options: &Options,
        change: Change,
        caller: Caller,
    ) -> Result<(), ProblemDetails> {
        if !caller.secrets && change.reads_secrets() {
            return Err(self.secrets_need_token(cx, conn));
        }
        let expected = call::expected(request)?;
        let who = call::who(request)?;
        if options.dry_run {
            return self.dry_run(cx, conn, &change, expected, caller);
        }
        let origin = Origin {
            who,
            from: Admin::origin_of(cx, conn),
            comment: options.comment.as_deref().unwrap_or("").into(),
            at_unix_ms: unix_ms(),
        };
        let (durable, canary, secrets) = (options.durable, options.canary, caller.secrets);
        self.submit(
            cx,
            SubmittedChange { conn, change, expected, origin, durable, canary, secrets },
        );
        Ok(())
    }

    /// Answers what a change would do.
    fn dry_run(
        &mut self,
        cx: &mut Context<AdminConnection>,
        conn: ConnId,
        change: &Change,
        expected: Option<u64>,
        caller: Caller,
    ) -> Result<(), ProblemDetails> {
        let head = Arc::clone(self.store.head());
        let prepared = head
            .prepare(change, expected)
            .map_err(|error| ProblemDetails::of_change_error(&error))?;
        if !caller.secrets && prepared.changes().iter().any(ChangedKey::has_secret) {
            return Err(self.secrets_need_token(cx, conn));
        }
        let next = &prepared.snapshot().config;
        crate::validate(&head.config, next)
            .map_err(|faults| ProblemDetails::faults(&problem::INVALID, &faults))?;
        self.reservations
            .try_out(&head.config, next)
            .map_err(|fault| ProblemDetails::faults(&problem::INVALID, &fault.into()))?;
        let changes: Vec<Value> =
            prepared.changes().iter().map(|change| json!(change.hidden())).collect();
        let restart: Vec<&str> = prepared
            .changes()
            .iter()
            .filter(|change| change.applies == Applies::Restart)
            .map(|change| change.pointer.as_str())
            .collect();
        let closed = self.sessions_closed(&head.config, &prepared.snapshot().config);
        let report = json!({
            "revision": head.revision,
            "changes": changes,
            "restart_needed": restart,
            "warnings": warnings::of(&prepared, closed, self.state.total(Metric::Sessions)),
        });
        self.answer_with_affected(cx, conn, &prepared, report)
    }
}
