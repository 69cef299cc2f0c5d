//! Requests below `/config`: reads and dry runs are answered here, changes are submitted.

use std::sync::Arc;

use dunlin_config::store::{Origin, Revision};
use dunlin_config::{AdminRole, Applies, Change, ChangedKey, Pointer, Secrets, Snapshot, schema};
use dunlin_net::ConnId;
use dunlin_net::http::{self, Method};
use serde_json::{Value, json};

use super::access::Principal;
use super::call::{self, ConfigQuery, ConfigResource};
use super::commit::{ReplyTo, SubmittedChange, etag};
use super::problem::{self, ProblemDetails};
use super::watch::{describe, summary};
use super::{Admin, Cx, answer, answer_json, respond, unix_ms, warnings};
use crate::metrics::Metric;

impl Admin {
    pub(super) fn config(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
        rest: &str,
        caller: Principal,
    ) -> Result<(), ProblemDetails> {
        let target = ConfigResource::parse(rest)?;
        let options = ConfigQuery::parse(request.query, self.state.workers())?;
        let secrets = match (options.secrets, caller.secrets) {
            (false, _) => Secrets::Hidden,
            (true, true) if caller.role < AdminRole::Program => Secrets::ButAdmin,
            (true, true) => Secrets::Shown,
            (true, false) => return Err(self.secrets_need_token(cx, conn)),
        };
        let reads = super::reads(request.method);
        if options.cluster && (reads || options.dry_run) {
            let detail = "`scope=cluster` is for changes; settings, and what a change would do, are of one node: leave it out";
            return Err(ProblemDetails::new(&problem::BAD_REQUEST, detail));
        }
        if reads {
            return self.read_config(cx, conn, request, target, (&options, secrets));
        }
        let change = self.change_of(request, target)?;
        if !caller.secrets && (change.reads_secrets() || change.names_secrets()) {
            return Err(self.secrets_need_token(cx, conn));
        }
        let origin = Origin {
            who: call::who(request)?,
            token: self.token_name(request),
            from: Admin::origin_of(cx, conn),
            comment: options.comment.as_deref().unwrap_or("").into(),
            at_unix_ms: unix_ms(),
            ..Origin::default()
        };
        let submitted = SubmittedChange {
            to: ReplyTo::Caller(conn),
            change,
            expected: call::expected(request)?,
            origin,
            durable: options.durable,
            canary: options.canary,
            secrets: caller.secrets,
            programs: caller.role >= AdminRole::Program,
        };
        if options.dry_run {
            return self.dry_run(cx, conn, &submitted);
        }
        if options.cluster {
            return self.change_all(cx, conn, submitted);
        }
        self.submit(cx, submitted);
        Ok(())
    }

    fn read_config(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
        target: ConfigResource,
        (options, secrets): (&ConfigQuery, Secrets),
    ) -> Result<(), ProblemDetails> {
        match target {
            ConfigResource::Value(pointer) => {
                return self.value(cx, conn, request, &pointer, secrets);
            }
            ConfigResource::Restore(_) => return Err(ProblemDetails::method("POST")),
            ConfigResource::Schema => {
                let body = schema::json().to_string();
                answer(cx, conn, 200, "application/schema+json", body.as_bytes());
            }
            ConfigResource::Watch => {
                let last = request.headers.get_str("Last-Event-ID").and_then(|id| id.parse().ok());
                if let Some(caller) = cx.data(conn) {
                    caller.watching = true;
                }
                self.watch(cx, conn, options.from.or(last), secrets);
            }
            ConfigResource::Revisions => answer_json(cx, conn, 200, &self.revisions(options)),
            ConfigResource::Revision(number) => {
                answer_json(cx, conn, 200, &describe(self.kept(number)?, secrets));
            }
            ConfigResource::RevisionConfig(number) => {
                let snapshot = Arc::clone(&self.kept(number)?.snapshot);
                return self.value_of(cx, conn, &snapshot, &Pointer::root(), secrets);
            }
        }
        Ok(())
    }

    fn change_of(
        &self,
        request: &http::Request<'_>,
        target: ConfigResource,
    ) -> Result<Change, ProblemDetails> {
        match (target, request.method) {
            (ConfigResource::Value(pointer), Method::Put | Method::Delete | Method::Patch) => {
                call::change(pointer, request)
            }
            (ConfigResource::Value(_), _) => {
                Err(ProblemDetails::method("GET, HEAD, PUT, DELETE, PATCH"))
            }
            (ConfigResource::Restore(number), Method::Post) => {
                Ok(Change::Restore(Arc::clone(&self.kept(number)?.snapshot)))
            }
            (ConfigResource::Restore(_), _) => Err(ProblemDetails::method("POST")),
            _ => Err(ProblemDetails::method("GET, HEAD")),
        }
    }

    /// Returns a page of the stored revisions, newest first.
    fn revisions(&self, options: &ConfigQuery) -> Value {
        let before = options.before.unwrap_or(u64::MAX);
        let older =
            self.store.revisions().rev().filter(|revision| revision.snapshot.revision < before);
        json!({
            "current": self.store.head().revision,
            "oldest": self.store.oldest(),
            "durable": self.durable,
            "revisions": older.take(options.limit).map(|revision| summary(revision)).collect::<Vec<_>>(),
        })
    }

    fn kept(&self, number: u64) -> Result<&Arc<Revision>, ProblemDetails> {
        self.store.revision(number).ok_or_else(|| self.no_such(number))
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
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
        pointer: &Pointer,
        secrets: Secrets,
    ) -> Result<(), ProblemDetails> {
        let head = Arc::clone(self.store.head());
        let mut tag = [0; 24];
        let tag = etag(head.revision, &mut tag);
        // A list, whose elements may be weak (RFC 9110 §13.1.2).
        let mut known = request.headers.list("If-None-Match");
        if known.any(|of| of.strip_prefix(b"W/").unwrap_or(of) == tag.as_bytes() || of == b"*") {
            respond(cx, conn, 304, &[("ETag", tag)], b"");
            return Ok(());
        }
        self.value_of(cx, conn, &head, pointer, secrets)
    }

    fn value_of(
        &mut self,
        cx: &mut Cx,
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
        respond(cx, conn, 200, &headers, &body);
        Ok(())
    }

    /// Answers with the effects that a change would have.
    fn dry_run(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        submitted: &SubmittedChange,
    ) -> Result<(), ProblemDetails> {
        let head = Arc::clone(self.store.head());
        let prepared = self.prepare(cx, &head, submitted)?;
        let next = &prepared.snapshot().config;
        self.reservations
            .try_out(&head.config, next)
            .map_err(|fault| ProblemDetails::faults(&problem::INVALID, &fault.into()))?;
        let changes: Vec<_> = prepared.changes().iter().map(ChangedKey::hidden).collect();
        let at_restart = changes.iter().filter(|change| change.applies == Applies::Restart);
        let restart: Vec<&str> = at_restart.map(|change| change.pointer.as_str()).collect();
        let closed = self.sessions_closed(&head.config, next);
        let report = json!({
            "revision": head.revision,
            "changes": changes,
            "restart_needed": restart,
            "warnings": warnings::of(&prepared, closed, self.state.total(Metric::Sessions)),
        });
        self.answer_with_affected(cx, conn, &prepared, report)
    }
}
