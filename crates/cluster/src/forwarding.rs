//! The call part of the agent: sends calls of this node to the nodes concerned, and calls of other nodes to a local worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use dunlin_access::auth::revocation::TokenId;
use dunlin_api::server_api::{AboutUser, ApiErrorCode, Method};
use tokio::time::Instant;

use super::agent::{Agent, TaskResult};
use super::calls::{CallOrigin, CompletedCall};
use super::kept::{self, KeptRead};
use super::lease::Node;
use super::node_message::{NodeMessage, unix_ms};
use super::state::ClusterMetric;
use super::store::{Destination, StoreError};
use crate::message::{ClusterCommand, ClusterOutput, ClusterReply, ClusterToWorker, TargetNodes};

/// Represents the store among the nodes that a call waits for: it keeps the call for disconnected nodes.
pub(super) const KEPT: &str = "kept";
/// The longest time a worker may take to execute a command; the requesting node has given up by then.
const SERVED_MAX: Duration = Duration::from_secs(60);

/// Barred tokens in one message, some 100 kB.
const BARS_MAX: usize = 4_096;

/// Whether a command changes sessions and is not kept: a node that does not receive it never executes it.
fn concerns_sessions(method: Method) -> bool {
    matches!(method, Method::Disconnect | Method::Subscribe | Method::Unsubscribe | Method::Refresh)
}

/// Whether such a command does nothing on a node without sessions of the user, except what [`AboutUser`] says.
fn is_about_users(method: Method) -> bool {
    matches!(
        method,
        Method::Disconnect
            | Method::Subscribe
            | Method::Unsubscribe
            | Method::Refresh
            | Method::Send
            | Method::Connections
    )
}

/// The response to such a command.
pub(super) fn answer_without(method: Method) -> &'static [u8] {
    match method {
        Method::Send => br#"{"result":{"num_clients":0}}"#,
        Method::Connections => br#"{"result":{"connections":{}}}"#,
        _ => br#"{"result":{}}"#,
    }
}

impl Agent {
    /// Sends a command to every node that it concerns.
    pub(super) fn ask_nodes(
        &mut self,
        origin: CallOrigin,
        (method, request, about): (Method, Arc<[u8]>, Option<AboutUser<'static>>),
        to: &TargetNodes,
    ) {
        let own = &self.lease.uid;
        let living = || self.nodes.values().filter(|node| node.is_alive() && node.uid != *own);
        let is_known =
            |number| number == self.lease.number || living().any(|node| node.number == number);
        let only = match to {
            // An unknown number may belong to a node that has changed its number.
            TargetNodes::Holder(number) if is_known(*number) => Some(std::slice::from_ref(number)),
            TargetNodes::All | TargetNodes::Holder(_) => None,
            TargetNodes::Nodes(numbers) => Some(&**numbers),
        };
        let is_asked = |number| only.is_none_or(|only| only.contains(&number));
        let (to_all, is_elsewhere) = (only.is_none(), !is_asked(self.lease.number));
        let others = living().filter(|node| is_asked(node.number));
        let others: Vec<_> = others.map(|node| Arc::clone(&node.uid)).collect();
        let (nodes, server) = (&self.nodes, self.address.server());
        let named = |uid: &Arc<str>| (Arc::clone(uid), name_in(nodes, server)(uid));
        let mut waiting: HashMap<Arc<str>, Arc<str>> = others.iter().map(named).collect();
        if !is_elsewhere {
            waiting.insert(Arc::clone(own), self.node.name());
        }
        // A revocation must reach disconnected nodes, too.
        let kept_as = kept::field(method, &request);
        let mut asked = others;
        asked.extend(kept_as.is_some().then(|| Arc::from(KEPT)));
        waiting.extend(asked.iter().map(named));
        let gone = only.unwrap_or_default().iter().filter(|number| !is_known(**number));
        let mut missing: Vec<Arc<str>> = gone
            .map(|number| match self.nodes.get(number) {
                Some(node) => Arc::clone(&node.facts.name),
                None => format!("node {number}").into(),
            })
            .collect();
        if to_all && concerns_sessions(method) {
            missing.extend(self.cut_off());
        }
        if self.store.is_none() {
            missing.extend(asked.drain(..).filter_map(|uid| waiting.remove(&uid)));
            if !self.has_joined {
                missing.push("nodes that are not known yet".into());
            }
        }
        self.node.cluster().counters.count(ClusterMetric::Calls);
        let deadline = Instant::now() + self.call_timeout;
        let nobody = waiting.is_empty();
        self.calls.answer_bytes_max = self.node.snapshot().config.limits.answer_bytes_max;
        let id = self.calls.open(origin, method, deadline, waiting, missing);
        if nobody && let Some(answered) = self.calls.handle_missing(id, "") {
            return self.answer(answered);
        }
        if let Some(store) = self.store.clone().filter(|_| !asked.is_empty()) {
            let message = NodeMessage {
                id,
                call: Some(method.name().into()),
                request: serde_json::from_slice(&request).ok(),
                about,
                ..NodeMessage::from(&self.lease.uid)
            };
            let message = message.encode();
            let others = asked.iter().filter(|uid| &***uid != KEPT);
            let to = others.map(|uid| {
                if to_all { Destination::All } else { Destination::Node(Arc::clone(uid)) }
            });
            let messages = to.take(if to_all { 1 } else { usize::MAX });
            let sent = store.send(messages.map(|to| (to, message.clone())).collect());
            let kept = kept_as.zip(kept::stored(method, &request));
            let kept = kept.map(|(name, (call, _))| store.keep(&name, call));
            self.jobs.spawn(async move {
                let sent = async {
                    sent.await?;
                    match kept {
                        Some(kept) => kept.await,
                        None => Ok(()),
                    }
                };
                match sent.await {
                    Ok(()) => TaskResult::Sent(id),
                    Err(_) => TaskResult::Unsent(id, asked),
                }
            });
        }
        if !is_elsewhere {
            self.carry_out(method, request, Some((Arc::clone(&self.lease.uid), id)));
        }
    }

    /// Names of nodes that may still serve clients although their leases have expired.
    fn cut_off(&self) -> Vec<Arc<str>> {
        let nodes = || self.nodes.values();
        let of_them = nodes().filter(|node| node.may_be_cut_off() && !node.is_succeeded(nodes()));
        of_them.map(|node| Arc::clone(&node.facts.name)).collect()
    }

    /// Whether a command of another node concerns only a user without a session on this node. The user's tokens are barred before
    /// this check: a worker counts a connection before it checks the bars again, so no connection is missed in between.
    pub(super) fn is_without(&self, method: Method, about: Option<&AboutUser<'_>>) -> bool {
        let (Some(about), Some(table)) = (about, self.node.user_connections()) else {
            return false;
        };
        if !is_about_users(method) {
            return false;
        }
        if about.bars {
            let snapshot = self.node.snapshot();
            let token = &snapshot.config.client.token;
            self.node.revocations().bar_user(&about.user, token, unix_ms());
        }
        !table.may_have(&about.user, self.node.workers())
    }

    /// Has a worker of this node execute a command, for another node or for this one.
    pub(super) fn carry_out(
        &mut self,
        method: Method,
        request: Arc<[u8]>,
        for_whom: Option<(Arc<str>, u64)>,
    ) {
        let revocations_max = self.node.snapshot().config.client.token.revocations_max;
        // Twice the bound, to include those that were withdrawn.
        self.known_calls.add(method, &request, 2 * revocations_max as usize);
        self.served += 1;
        let request_id = self.served;
        if let Some(for_whom) = for_whom {
            let (uid, id) = for_whom;
            self.serving.insert(request_id, (uid, id, Instant::now()));
            if self.outbox.is_full() {
                let why = "too much waits for the workers of this node; repeat the call";
                let (_, body) = ApiErrorCode::Internal.with_reason(why).response(false);
                return self.handle_served(request_id, &body);
            }
        }
        let worker = (request_id % self.node.workers() as u64) as usize;
        let command = Box::new(ClusterCommand { request_id, method, request });
        let _ = self.outbox.send(ClusterOutput::Worker(worker, ClusterToWorker::Command(command)));
    }

    /// Forgets commands whose workers have died.
    pub(super) fn expire_served(&mut self) {
        self.serving.retain(|_, (_, _, since)| since.elapsed() < SERVED_MAX);
    }

    /// The store has confirmed a call that is kept for disconnected nodes.
    pub(super) fn handle_sent(&mut self, id: u64) {
        if let Some(answered) = self.calls.handle_response(id, KEPT, br#"{"result":{}}"#) {
            self.answer(answered);
        }
    }

    /// A worker of this node has executed a command.
    pub(super) fn handle_served(&mut self, request_id: u64, response: &[u8]) {
        self.tell_bars();
        let Some((uid, id, _)) = self.serving.remove(&request_id) else { return };
        if self.changes.offered.take_if(|of| *of == request_id).is_some() {
            self.node.cluster().release_agent();
        }
        if uid == self.lease.uid {
            if let Some(answered) = self.calls.handle_response(id, &uid, response) {
                self.answer(answered);
            }
            return;
        }
        self.node.cluster().counters.count(ClusterMetric::CallsServed);
        self.respond(&uid, id, response);
    }

    /// Tells the other nodes which tokens a call has barred here, before it is answered: a client that was disconnected by its id
    /// may come back at another node.
    pub(super) fn tell_bars(&mut self) {
        let bars = self.node.revocations().take_unsent();
        if bars.is_empty() {
            return;
        }
        let now_ms = unix_ms();
        let left = |(token, until_ms): &(TokenId, u64)| (token.0, until_ms.saturating_sub(now_ms));
        let message = |bars: &[(TokenId, u64)]| {
            let bars = bars.iter().map(left).collect();
            NodeMessage { bars, ..NodeMessage::from(&self.lease.uid) }.encode()
        };
        let messages = bars.chunks(BARS_MAX).map(|bars| (Destination::All, message(bars)));
        self.say(messages.collect());
    }

    /// Another node has barred tokens.
    pub(super) fn handle_bars(&self, bars: &[(u64, u64)]) {
        let (now_ms, settings) = (unix_ms(), self.node.snapshot());
        let token = &settings.config.client.token;
        for &(id, left_ms) in bars {
            let until_ms = now_ms.saturating_add(left_ms.min(token.bar_after_disconnect_ms));
            let max = token.revocations_max as usize;
            self.node.revocations().bar(TokenId(id), until_ms, now_ms, max);
        }
    }

    /// Sends another node the response to its call.
    pub(super) fn respond(&mut self, uid: &str, id: u64, response: &[u8]) {
        let Ok(response) = serde_json::from_slice(response) else { return };
        let message =
            NodeMessage { id, response: Some(response), ..NodeMessage::from(&self.lease.uid) };
        self.say(vec![(Destination::Node(uid.into()), message.encode())]);
    }

    /// Passes a completed call to its requester.
    pub(super) fn answer(&self, answered: CompletedCall) {
        if !answered.is_complete {
            self.node.cluster().counters.count(ClusterMetric::CallsIncomplete);
        }
        self.answer_worker(answered.origin, ClusterReply::Command(answered.result));
    }

    pub(super) fn answer_worker(
        &self,
        CallOrigin { worker, token }: CallOrigin,
        reply: ClusterReply,
    ) {
        let reply = ClusterToWorker::Reply { token, reply: Box::new(reply) };
        let _ = self.outbox.send(ClusterOutput::Worker(worker, reply));
    }

    /// Reads the revocations made while this node was disconnected, and executes them.
    pub(super) fn read_missed(&mut self) {
        let Some(store) = self.store.clone() else { return };
        self.jobs.spawn(async move { TaskResult::Missed(kept::read(&*store).await) });
    }

    /// Executes the revocations that were read. Stores again those that this node knows and the store has lost.
    pub(super) fn handle_missed(&mut self, read: Result<KeptRead, StoreError>) {
        let KeptRead { names, calls } = match read {
            Ok(read) => read,
            Err(error) => {
                self.is_missed_due = true;
                return self.handle_failure(&error);
            }
        };
        let absent = self.known_calls.absent(&names);
        for (method, request) in calls {
            self.carry_out(method, request, None);
        }
        let Some(store) = self.store.as_ref().filter(|_| !absent.is_empty()) else { return };
        let count = absent.len();
        let kept = store.keep_absent(absent);
        self.jobs.spawn(async move { TaskResult::KeptAgain(count, kept.await) });
    }

    pub(super) fn handle_kept_again(&mut self, count: usize, kept: Result<(), StoreError>) {
        let server = self.address.server();
        match kept {
            Ok(()) => tracing::warn!(count, "{server} has lost revocations; they were kept again"),
            Err(error) => {
                // The lease may not have been written over this connection yet.
                tracing::debug!(%error, count, "{server} has lost revocations, and does not take them");
                self.is_missed_due = true;
            }
        }
    }
}

/// How an error names what has not responded to a call: a node by its name, or the store, `server`, by what it was to do.
fn name_in<'a>(
    nodes: &'a BTreeMap<u16, Node>,
    server: &'a str,
) -> impl Fn(&Arc<str>) -> Arc<str> + 'a {
    move |uid| {
        if **uid == *KEPT {
            return format!("{server}, which keeps it for nodes that are away").into();
        }
        let node = nodes.values().find(|node| node.uid == *uid);
        node.map_or_else(|| Arc::clone(uid), |node| Arc::clone(&node.facts.name))
    }
}
