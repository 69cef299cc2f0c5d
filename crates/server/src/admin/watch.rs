//! `GET /config/watch`: every revision, as server-sent events.
//!
//! A reader that is too slow for the changes gets the current snapshot instead when it reads again. It never gets
//! revision N+2 without N+1.

use dunlin_config::store::Revision;
use dunlin_config::{Pointer, Secrets};
use dunlin_net::{ConnId, http};
use serde_json::{Value, json};

use super::problem::{self, ProblemDetails};
use super::{Admin, Cx, time};

/// Most readers at a time.
const WATCHERS_MAX: usize = 256;

/// A reader of the stream.
pub(super) struct Watcher {
    conn: ConnId,
    /// The last revision that it got.
    at: u64,
    secrets: Secrets,
    /// Whether its connection is full; it catches up when that is writable.
    behind: bool,
}

impl Admin {
    /// Answers with a stream that begins after revision `from`, by default after the current one.
    pub(super) fn watch(&mut self, cx: &mut Cx, conn: ConnId, from: Option<u64>, secrets: Secrets) {
        if self.watchers.len() >= WATCHERS_MAX {
            let detail = format!("{WATCHERS_MAX} watch already");
            let problem =
                ProblemDetails::new(&problem::OVERLOADED, detail).header("Retry-After", &10);
            return problem.answer(cx, conn);
        }
        let head = http::Response {
            status: 200,
            headers: &[("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")],
            body: b"retry: 1000\n\n",
        };
        let id = cx.outstanding(conn);
        if id.and_then(|id| cx.start_stream(id, &head, http::Framing::UntilClose)).is_err() {
            return cx.abort(conn);
        }
        let at = from.unwrap_or(self.store.head().revision);
        self.watchers.push(Watcher { conn, at, secrets, behind: false });
        let progress = self.progress();
        let _ = cx.write(conn, &progress);
        let last = self.watchers.len() - 1;
        self.catch_up(cx, last);
    }

    /// Handles that revisions after `before` were confirmed.
    pub(super) fn notify_watchers(&mut self, cx: &mut Cx, before: u64) {
        if self.watchers.is_empty() {
            return;
        }
        // Encoded once for all watchers that have `before`, by which secrets are shown.
        let mut encoded: [Option<Vec<u8>>; 3] = [None, None, None];
        for at in 0..self.watchers.len() {
            let watcher = &self.watchers[at];
            if watcher.behind || watcher.at != before {
                if !watcher.behind {
                    self.catch_up(cx, at);
                }
                continue;
            }
            let (conn, secrets) = (watcher.conn, watcher.secrets);
            let form = secrets as usize;
            let head = self.store.head().revision;
            let events = encoded[form].get_or_insert_with(|| {
                let mut events = Vec::new();
                for revision in self.store.since(before).into_iter().flatten() {
                    change_event(revision, secrets, &mut events);
                }
                events
            });
            let watcher = &mut self.watchers[at];
            match cx.write(conn, events) {
                Ok(()) => watcher.at = head,
                Err(_) => watcher.behind = true,
            }
        }
    }

    /// Handles that a watcher's connection is writable again.
    pub(super) fn watcher_writable(&mut self, cx: &mut Cx, conn: ConnId) {
        if let Some(at) = self.watchers.iter().position(|watcher| watcher.conn == conn) {
            self.watchers[at].behind = false;
            self.catch_up(cx, at);
        }
    }

    pub(super) fn remove_watcher(&mut self, conn: ConnId) {
        self.watchers.retain(|watcher| watcher.conn != conn);
    }

    /// Ends all watches because the admin tokens have changed. Readers that are still permitted reconnect and miss nothing
    /// (`Last-Event-ID`).
    pub(super) fn end_watches(&mut self, cx: &mut Cx) {
        for watcher in std::mem::take(&mut self.watchers) {
            cx.close(watcher.conn);
        }
    }

    /// Sends the current revision, so that a reader knows that it missed nothing. Called every ten seconds.
    pub(super) fn notify_progress(&mut self, cx: &mut Cx) {
        let progress = self.progress();
        for watcher in &self.watchers {
            if !watcher.behind && cx.write(watcher.conn, &progress).is_err() {
                // It catches up when its connection is writable.
                continue;
            }
        }
    }

    /// Writes what a watcher has missed: the changes if they are still stored, else the whole configuration.
    fn catch_up(&mut self, cx: &mut Cx, at: usize) {
        let head = self.store.head();
        let Watcher { conn, at: heard, secrets, .. } = self.watchers[at];
        if heard == head.revision {
            return;
        }
        let mut events = Vec::new();
        match self.store.since(heard).filter(|_| heard > 0) {
            Some(revisions) => {
                revisions.for_each(|revision| change_event(revision, secrets, &mut events));
            }
            None => {
                let mut config = Vec::new();
                head.write_json(&Pointer::root(), secrets, &mut config);
                events.extend_from_slice(
                    format!(
                        "event: snapshot\nid: {0}\ndata: {{\"revision\":{0},\"config\":",
                        head.revision
                    )
                    .as_bytes(),
                );
                // Compact JSON has no line end; one would end the field.
                events.extend(config.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')));
                events.extend_from_slice(b"}\n\n");
            }
        }
        let revision = head.revision;
        let watcher = &mut self.watchers[at];
        match cx.write(conn, &events) {
            Ok(()) => watcher.at = revision,
            Err(_) => watcher.behind = true,
        }
    }

    fn progress(&self) -> Vec<u8> {
        let (revision, durable) = (self.store.head().revision, self.durable);
        format!("event: progress\ndata: {{\"revision\":{revision},\"durable\":{durable}}}\n\n")
            .into_bytes()
    }
}

fn change_event(revision: &Revision, secrets: Secrets, out: &mut Vec<u8>) {
    let event = describe(revision, secrets);
    let number = revision.snapshot.revision;
    out.extend_from_slice(format!("event: change\nid: {number}\ndata: {event}\n\n").as_bytes());
}

/// Returns the JSON of a revision for the watch and `GET /config/revisions/{n}`.
pub(super) fn describe(revision: &Revision, secrets: Secrets) -> Value {
    let changes: Vec<Value> = revision
        .changes
        .iter()
        .map(|change| match secrets {
            Secrets::Shown => json!(change),
            Secrets::ButAdmin if !change.pointer.starts_with("/admin") => json!(change),
            Secrets::Hidden | Secrets::ButAdmin => json!(change.hidden()),
        })
        .collect();
    let mut event = summary(revision);
    if let Some(object) = event.as_object_mut() {
        object.insert("changes".into(), changes.into());
    }
    event
}

/// Returns the JSON of a revision for the list.
pub(super) fn summary(revision: &Revision) -> Value {
    let origin = &revision.origin;
    json!({
        "revision": revision.snapshot.revision,
        "previous": revision.previous,
        "when": time::rfc3339(origin.at_unix_ms),
        "who": &*origin.who,
        "token": &*origin.token,
        "from": &*origin.from,
        "comment": &*origin.comment,
        "cluster_revision": origin.cluster.revision,
        "changes": revision.changes.len(),
    })
}
