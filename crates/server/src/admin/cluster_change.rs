//! Changes with `?scope=cluster`, which apply to all nodes.
//!
//! The node that receives the request applies the change first, or rejects it like a change of this node only. Then the
//! control thread appends it to the cluster's log and notifies the other nodes, which apply the log in order. From before
//! the first node applies the change until it is in the log, no other node may append. A node's position in the log is
//! part of its revisions ([`ClusterPosition`]): it is stored and rolled back with the settings.

use std::collections::VecDeque;

use dunlin_cluster::message::{
    ClaimError, ClusterMessage, ClusterStatus, OutOfSync, SharedChange, SharedChangeBatch,
    SharedChangeEvent, SharedChangeRequest,
};
use dunlin_config::store::ClusterPosition;
use dunlin_config::{Change, ConfigErrors};
use dunlin_net::ConnId;
use serde_json::{Value, json};

use super::commit::{ReplyTo, SubmittedChange};
use super::problem::{self, ProblemDetails};
use super::{Admin, Cx, answer_json, respond};

/// How long other nodes may not make changes while this node applies one, in addition to the duration of a canary trial.
const HOLD_MS: u64 = 60_000;
/// Most bytes of a change for all nodes, without its origin.
const CHANGE_BYTES_MAX: usize = 1 << 20;
/// Most offers that wait. The control thread reads the log again for a dropped one.
const OFFERS_MAX: usize = 64;

/// The state of changes for all nodes: one by a caller of this node, and those of other nodes.
pub(super) struct ClusterChanges {
    position: ClusterPosition,
    /// The newest change that was handled; changes after `position` up to it were refused or missed.
    offered: u64,
    own: Option<OwnChange>,
    offers: VecDeque<SharedChangeBatch>,
    /// The change of the first offer that is being applied.
    following: Option<(u64, SharedChange)>,
    /// The outcome of the newest change, as reported to other nodes.
    newest: Value,
    fault: Option<OutOfSync>,
    ended: VecDeque<Ended>,
}

/// How a change ended on this node.
struct Ended {
    to: ReplyTo,
    status: u16,
    body: Vec<u8>,
}

/// A change for all nodes by a caller of this node.
struct OwnChange {
    conn: ConnId,
    id: u64,
    phase: Phase,
    /// The deadline of any wait, in the loop's milliseconds.
    deadline_ms: u64,
    /// Its outcome on this node.
    outcome: Value,
}

enum Phase {
    Claiming(Box<(SubmittedChange, SharedChange)>),
    /// `None`: there is no cluster to notify.
    Running(Option<Box<SharedChange>>),
    Keeping,
    /// The change has this number in the log.
    Announced(u64),
}

impl ClusterChanges {
    pub(super) fn new(position: ClusterPosition) -> ClusterChanges {
        ClusterChanges {
            position,
            offered: position.revision,
            own: None,
            offers: VecDeque::new(),
            following: None,
            newest: Value::Null,
            fault: None,
            ended: VecDeque::new(),
        }
    }

    pub(super) fn position(&self) -> ClusterPosition {
        self.position
    }

    /// Returns the position of the settings that include a change.
    pub(super) fn position_with(&self, before: ClusterPosition, to: ReplyTo) -> ClusterPosition {
        match (to, &self.own) {
            (ReplyTo::First(_), Some(own)) if !own.is_alone() => {
                ClusterPosition { tried: own.id, ..before }
            }
            (ReplyTo::Follow(revision), _) => ClusterPosition { revision, ..before },
            _ => before,
        }
    }

    /// Records the end of a change for all nodes on this node; it is handled at the end of the turn.
    pub(super) fn handle_ended(&mut self, to: ReplyTo, status: u16, body: Vec<u8>) {
        self.ended.push_back(Ended { to, status, body });
    }

    /// Skips a change of another node without applying it.
    fn skip(&mut self, number: u64, outcome: Value, fault: OutOfSync) {
        self.offered = number;
        self.newest = outcome;
        tracing::error!(number, ?fault, "this node does not run a change for all nodes");
        self.fault = Some(fault);
    }

    fn handle_run(&mut self, number: u64, outcome: Value) {
        self.position.revision = number;
        self.offered = self.offered.max(number);
        self.newest = outcome;
        if matches!(self.fault, Some(OutOfSync::Refused(_))) {
            self.fault = None;
        }
    }
}

impl OwnChange {
    fn is_alone(&self) -> bool {
        matches!(self.phase, Phase::Running(None))
    }
}

impl Admin {
    /// Applies a change on all nodes, this one first.
    pub(super) fn change_all(
        &mut self,
        cx: &mut Cx,
        conn: ConnId,
        mut submitted: SubmittedChange,
    ) -> Result<(), ProblemDetails> {
        if let Change::Restore(wanted) = &submitted.change {
            submitted.change = Change::difference(self.store.head(), wanted);
        }
        if let Some(place) = submitted.change.node_setting() {
            let place = match place.is_root() {
                true => "the whole".to_owned(),
                false => place.to_string(),
            };
            let detail = format!("{place} is, or holds, what each node has for itself");
            return Err(ProblemDetails::new(&problem::NODE_SETTING, detail));
        }
        if self.cluster_changes.own.is_some() {
            return Err(self.under_way("this node makes another one"));
        }
        submitted.to = ReplyTo::First(conn);
        let mut id = [0; 8];
        // Without random bytes, no node recognises the change as its own.
        let _ = getrandom::fill(&mut id);
        let hold_ms = HOLD_MS + submitted.canary.map_or(0, |canary| canary.seconds * 1000);
        let (id, deadline_ms) = (u64::from_ne_bytes(id), cx.now_ms() + hold_ms);
        let settings = self.state.settings.load();
        let phase = match &settings.config.cluster.engine {
            None => {
                self.cluster_changes.own = Some(OwnChange {
                    conn,
                    id,
                    phase: Phase::Running(None),
                    deadline_ms,
                    outcome: Value::Null,
                });
                self.submit(cx, submitted);
                return Ok(());
            }
            Some(_) if settings.config.cluster.secret.is_none() => {
                let detail = "`cluster.secret` is not set, which seals what nodes tell each other";
                return Err(ProblemDetails::new(&problem::NO_CLUSTER_SECRET, detail));
            }
            Some(_) if !self.cluster_changes.offers.is_empty() => {
                return Err(self.under_way("this node is about to run one of another node"));
            }
            Some(_) => {
                let change = submitted.change.to_shared().unwrap_or_default();
                if change.to_string().len() > CHANGE_BYTES_MAX {
                    let detail = "a change of all nodes has at most 1 MiB: make it in several";
                    return Err(ProblemDetails::new(&problem::TOO_LARGE, detail)
                        .with("limit", CHANGE_BYTES_MAX));
                }
                let shared = SharedChange { id, change, origin: submitted.origin.clone() };
                self.send_change_request(SharedChangeRequest::Claim { hold_ms });
                Phase::Claiming(Box::new((submitted, shared)))
            }
        };
        self.cluster_changes.own =
            Some(OwnChange { conn, id, phase, deadline_ms, outcome: Value::Null });
        Ok(())
    }

    fn under_way(&self, why: &str) -> ProblemDetails {
        let detail = format!("{why}; nothing was changed");
        ProblemDetails::new(&problem::CLUSTER_CHANGE_UNDER_WAY, detail)
            .with("cluster_revision", self.cluster_changes.position.revision)
            .header("Retry-After", &1)
    }

    fn send_change_request(&mut self, request: SharedChangeRequest) {
        // If the ring is full, the change times out at its deadline.
        let request = ClusterMessage::SharedChangeRequest(request);
        let _ = self.endpoint.send(self.state.bus.control(), request);
    }

    /// Handles an event of the control thread.
    pub(super) fn handle_change_event(&mut self, cx: &mut Cx, event: SharedChangeEvent) {
        match event {
            SharedChangeEvent::Offer(offer) => {
                let changes = &mut self.cluster_changes;
                if changes.offers.len() < OFFERS_MAX {
                    changes.offers.push_back(offer);
                }
                self.follow_offers(cx);
            }
            event => self.handle_own_event(cx, event),
        }
    }

    fn handle_own_event(&mut self, cx: &mut Cx, event: SharedChangeEvent) {
        let Some(mut own) = self.cluster_changes.own.take() else { return };
        let conn = own.conn;
        match (event, own.phase) {
            (SharedChangeEvent::Claimed, Phase::Claiming(change)) => {
                let (submitted, shared) = *change;
                own.phase = Phase::Running(Some(Box::new(shared)));
                self.cluster_changes.own = Some(own);
                self.submit(cx, submitted);
            }
            (SharedChangeEvent::Refused(refusal), Phase::Claiming(_)) => {
                self.refused_change(refusal).answer(cx, conn);
            }
            (SharedChangeEvent::Kept { log, revision }, Phase::Keeping) => {
                self.cluster_changes.position = ClusterPosition { log, revision, tried: 0 };
                self.cluster_changes.offered = revision;
                own.phase = Phase::Announced(revision);
                self.cluster_changes.own = Some(own);
                self.show_settings_position();
            }
            (SharedChangeEvent::Unkept(why), Phase::Keeping) => {
                ProblemDetails::new(&problem::CLUSTER_UNCERTAIN, why)
                    .with("revision", own.outcome["revision"].clone())
                    .with("cluster_revision", self.cluster_changes.position.revision)
                    .answer(cx, conn);
            }
            (SharedChangeEvent::Answered(status), Phase::Announced(number)) => {
                self.answer_change(cx, conn, Some(number), own.outcome, &status);
            }
            // An event of a change that was abandoned.
            (_, phase) => {
                own.phase = phase;
                self.cluster_changes.own = Some(own);
            }
        }
    }

    fn refused_change(&self, refusal: ClaimError) -> ProblemDetails {
        let (why, current) = match refusal {
            ClaimError::UnderWay(current) => ("another node makes one", current),
            ClaimError::Behind(current) => ("this node does not run the newest one yet", current),
            ClaimError::OtherSecret(why) => {
                return ProblemDetails::new(&problem::CLUSTER_SECRET_DIFFERS, why);
            }
            ClaimError::Unreachable(why) => {
                return ProblemDetails::new(&problem::CLUSTER_UNREACHABLE, why)
                    .header("Retry-After", &1);
            }
        };
        self.under_way(why).with("cluster_revision", current)
    }

    /// Handles changes that have ended on this node. Returns whether there were any, since that may have submitted
    /// further changes.
    pub(super) fn handle_ended_changes(&mut self, cx: &mut Cx) -> bool {
        let ended = std::mem::take(&mut self.cluster_changes.ended);
        let some = !ended.is_empty();
        for Ended { to, status, body } in ended {
            match to {
                ReplyTo::Caller(_) | ReplyTo::File => {}
                ReplyTo::First(_) => self.handle_first(cx, status, &body),
                ReplyTo::Follow(number) => {
                    if self.handle_followed(number, status, &body) {
                        self.follow_offers(cx);
                    }
                }
            }
        }
        some
    }

    /// Handles that this node has applied or refused its caller's change.
    fn handle_first(&mut self, cx: &mut Cx, status: u16, body: &[u8]) {
        let Some(mut own) = self.cluster_changes.own.take() else { return };
        let Phase::Running(shared) = own.phase else { return };
        if status >= 300 {
            if shared.is_some() {
                self.send_change_request(SharedChangeRequest::Release);
            }
            let headers =
                [("Content-Type", "application/problem+json"), ("Cache-Control", "no-store")];
            return respond(cx, own.conn, status, &headers, body);
        }
        own.outcome = serde_json::from_slice(body).unwrap_or_default();
        let Some(shared) = shared else {
            let nobody = ClusterStatus::default();
            return self.answer_change(cx, own.conn, None, own.outcome, &nobody);
        };
        self.cluster_changes.position.tried = own.id;
        self.send_change_request(SharedChangeRequest::Append(shared));
        own.phase = Phase::Keeping;
        self.cluster_changes.own = Some(own);
    }

    /// Answers the caller with the outcome on each node, once all have replied or timed out.
    fn answer_change(
        &self,
        cx: &mut Cx,
        conn: ConnId,
        number: Option<u64>,
        outcome: Value,
        status: &ClusterStatus,
    ) {
        let settings = self.state.settings.load();
        let own = json!({
            "node": self.state.cluster.number().unwrap_or(settings.config.server.node),
            "name": settings.node_name(),
            "outcome": outcome_of(&outcome),
            "revision": outcome["revision"],
        });
        let mut nodes = vec![own];
        for node in &status.nodes {
            let mut said: Value = serde_json::from_slice(&node.response).unwrap_or_default();
            if said["outcome"].is_null() {
                // The node runs a version without changes for all nodes.
                said = json!({ "outcome": "refused", "problem": { "detail": said["error"]["message"] } });
            }
            said["node"] = node.node.into();
            said["name"] = json!(node.name);
            nodes.push(said);
        }
        let without = |names: &[std::sync::Arc<str>], outcome: &str| -> Vec<Value> {
            names.iter().map(|name| json!({ "name": name, "outcome": outcome })).collect()
        };
        nodes.extend(without(&status.unreachable, "no_answer"));
        nodes.extend(without(&self.state.cluster.gone(), "away"));
        let has = |outcome: &str| nodes.iter().any(|node| node["outcome"] == outcome);
        let refused = has("refused") || has("conflict");
        let (status, detail) = match (refused, has("no_answer")) {
            (true, _) => (
                207,
                "some nodes do not run it: fix the `problem` of those that refused, and make the change again; or undo it on all",
            ),
            (false, true) => (
                207,
                "not every node has answered: those that have not run it as soon as they are in touch with Redis; see GET /cluster",
            ),
            (false, false) => (
                200,
                "every node that is there runs it; those that are away run it when they come back",
            ),
        };
        let mut answer = outcome;
        answer["cluster_revision"] = json!(number);
        answer["detail"] = detail.into();
        answer["nodes"] = nodes.into();
        answer_json(cx, conn, status, &answer);
    }

    /// Abandons an overdue change, and continues with waiting offers. Called once a second.
    pub(super) fn advance_cluster_changes(&mut self, cx: &mut Cx) {
        self.follow_offers(cx);
        let now_ms = cx.now_ms();
        let overdue = |own: &OwnChange| own.deadline_ms <= now_ms && !own.is_alone();
        // A change that this node is applying has its own timeout.
        let is_running = |own: &OwnChange| matches!(own.phase, Phase::Running(_));
        let is_due =
            self.cluster_changes.own.as_ref().is_some_and(|own| overdue(own) && !is_running(own));
        let Some(own) = is_due.then(|| self.cluster_changes.own.take()).flatten() else { return };
        let why = "the thread that speaks to other nodes does not answer";
        match own.phase {
            Phase::Claiming(_) => ProblemDetails::new(&problem::CLUSTER_UNREACHABLE, why),
            _ => ProblemDetails::new(&problem::CLUSTER_UNCERTAIN, why)
                .with("revision", own.outcome["revision"].clone()),
        }
        .answer(cx, own.conn);
    }

    /// Applies the changes of other nodes, one at a time.
    fn follow_offers(&mut self, cx: &mut Cx) {
        while self.cluster_changes.following.is_none() && self.trial.is_none() {
            let changes = &mut self.cluster_changes;
            let Some(offer) = changes.offers.front_mut() else { return };
            if offer.log != changes.position.log {
                // The log of another cluster, or the first log that this node follows.
                let tried = changes.position.tried;
                changes.position = ClusterPosition { log: offer.log, revision: 0, tried };
                changes.offered = 0;
            }
            if changes.offered < offer.since {
                changes.offered = offer.since;
                changes.fault = Some(OutOfSync::Missed(format!(
                    "changes {} to {} of all nodes' settings are not kept any more",
                    changes.position.revision + 1,
                    offer.since
                )));
            }
            let Some((number, change)) = offer.changes.pop_front() else {
                let (request_id, newest) = (offer.request_id, changes.newest.to_string());
                changes.offers.pop_front();
                let response = newest.into_bytes().into();
                let reply = ClusterMessage::NodeReply { request_id, response };
                // If the ring is full, the other node reports this one as not answering.
                let _ = self.endpoint.send(self.state.bus.control(), reply);
                self.show_settings_position();
                continue;
            };
            if number <= changes.position.revision || number <= changes.offered && !offer.again {
                continue;
            }
            match change {
                None => {
                    let why = format!(
                        "change {number} cannot be read: it was sealed with another `cluster.secret`"
                    );
                    let outcome = refused_outcome("refused", &json!({ "detail": why }));
                    changes.skip(number, outcome, OutOfSync::Refused(why));
                }
                Some(change) if change.id == changes.position.tried => {
                    changes.position.tried = 0;
                    changes.handle_run(number, json!({ "outcome": "applied" }));
                }
                Some(change) => self.run_followed(cx, number, change),
            }
        }
    }

    fn run_followed(&mut self, cx: &mut Cx, number: u64, shared: SharedChange) {
        let change = Change::from_shared(&shared.change);
        match change {
            Ok(change) if change.node_setting().is_none() => {
                let submitted = SubmittedChange {
                    to: ReplyTo::Follow(number),
                    change,
                    expected: None,
                    origin: shared.origin.clone(),
                    secrets: true,
                    durable: false,
                    canary: None,
                };
                self.cluster_changes.following = Some((number, shared));
                self.submit(cx, submitted);
            }
            change => {
                let why = match change {
                    Ok(_) => "it sets what each node has for itself".to_owned(),
                    Err(errors) => first_of(&errors),
                };
                let outcome = refused_outcome("refused", &json!({ "detail": why }));
                let fault =
                    OutOfSync::Refused(format!("change {number} of all nodes' settings: {why}"));
                self.cluster_changes.skip(number, outcome, fault);
            }
        }
    }

    /// Handles that this node has applied or refused another node's change. Returns `false` if it is retried in a second.
    fn handle_followed(&mut self, number: u64, status: u16, body: &[u8]) -> bool {
        let changes = &mut self.cluster_changes;
        let Some((_, shared)) = changes.following.take_if(|(of, _)| *of == number) else {
            return true;
        };
        let said: Value = serde_json::from_slice(body).unwrap_or_default();
        let is_gone_already = status == 404 && shared.change.get("delete").is_some();
        // A trial is in progress, or too many changes wait.
        if status == 503 || status == 409 && said["type"] == "/problems/canary-under-way" {
            if let Some(offer) = changes.offers.front_mut() {
                offer.changes.push_front((number, Some(shared)));
            }
            return false;
        }
        match status {
            200 | 201 => {
                let outcome = json!({ "outcome": outcome_of(&said), "revision": said["revision"] });
                changes.handle_run(number, outcome);
            }
            _ if is_gone_already => changes.handle_run(number, json!({ "outcome": "unchanged" })),
            _ => {
                let kind = if status == 409 { "conflict" } else { "refused" };
                let reason = said["errors"][0]["detail"].as_str().or(said["detail"].as_str());
                let why = format!(
                    "change {number} of all nodes' settings: {}",
                    reason.unwrap_or("it cannot be run")
                );
                let outcome = refused_outcome(kind, &said);
                changes.skip(number, outcome, OutOfSync::Refused(why));
            }
        }
        self.show_settings_position();
        true
    }

    /// Publishes this node's position in the log to the other nodes.
    fn show_settings_position(&self) {
        let changes = &self.cluster_changes;
        self.state.cluster.set_settings(changes.position, changes.fault.clone());
    }
}

/// Returns the outcome of a committed change.
fn outcome_of(said: &Value) -> &'static str {
    if said["changes"] == 0 { "unchanged" } else { "applied" }
}

fn refused_outcome(kind: &str, problem: &Value) -> Value {
    json!({ "outcome": kind, "problem": problem })
}

fn first_of(errors: &ConfigErrors) -> String {
    errors.iter().next().map(ToString::to_string).unwrap_or_default()
}
