//! Calls of the server API that several nodes execute, and their responses.

use std::collections::HashMap;
use std::sync::Arc;

use dunlin_api::server_api::{ApiError, Method, NodesAsked};
use tokio::time::Instant;

use super::answers::combine;
use super::forwarding::KEPT;

/// The requester on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallOrigin {
    pub(super) worker: usize,
    pub(super) token: u64,
}

/// A call of this node that awaits responses.
#[derive(Debug)]
struct ClusterCall {
    origin: CallOrigin,
    method: Method,
    deadline: Instant,
    /// Nodes that have not answered: uids, and names.
    waiting: HashMap<Arc<str>, Arc<str>>,
    nodes: NodesAsked,
    responses: Vec<Box<[u8]>>,
}

/// An answered call.
pub(super) struct CompletedCall {
    pub(super) origin: CallOrigin,
    pub(super) result: Result<Box<[u8]>, ApiError>,
    pub(super) is_complete: bool,
}

/// The calls of this node.
#[derive(Default)]
pub(super) struct Calls {
    /// The most bytes of the combined pages of several nodes.
    pub(super) answer_bytes_max: usize,
    opened: u64,
    open: HashMap<u64, ClusterCall>,
}

impl Calls {
    /// Opens a call to these nodes, by uid and name, including this one if it executes the call, too. `missing` are nodes known not to respond.
    pub(super) fn open(
        &mut self,
        origin: CallOrigin,
        method: Method,
        deadline: Instant,
        waiting: HashMap<Arc<str>, Arc<str>>,
        missing: Vec<Arc<str>>,
    ) -> u64 {
        let id = self.new_id();
        let nodes = NodesAsked { unreachable: missing, ..NodesAsked::default() };
        let call = ClusterCall { origin, method, deadline, waiting, nodes, responses: Vec::new() };
        self.open.insert(id, call);
        id
    }

    /// Returns an unused call id.
    pub(super) fn new_id(&mut self) -> u64 {
        self.opened += 1;
        self.opened
    }

    /// Takes the response of a node.
    pub(super) fn handle_response(
        &mut self,
        id: u64,
        uid: &str,
        response: &[u8],
    ) -> Option<CompletedCall> {
        let call = self.open.get_mut(&id)?;
        // `None`: it has responded before, or was not asked.
        let name = call.waiting.remove(uid)?;
        if uid != KEPT {
            call.nodes.answered.push(name);
        }
        call.responses.push(response.into());
        self.finish_if_answered(id)
    }

    /// Records that a node could not be reached.
    pub(super) fn handle_missing(&mut self, id: u64, uid: &str) -> Option<CompletedCall> {
        let call = self.open.get_mut(&id)?;
        call.nodes.unreachable.extend(call.waiting.remove(uid));
        self.finish_if_answered(id)
    }

    /// Ids of the calls that wait for this process.
    pub(super) fn waiting_for(&self, uid: &str) -> Vec<u64> {
        let waits =
            |(id, call): (&u64, &ClusterCall)| call.waiting.contains_key(uid).then_some(*id);
        self.open.iter().filter_map(waits).collect()
    }

    /// The earliest deadline of the calls.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.values().map(|call| call.deadline).min()
    }

    /// Completes the calls whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<CompletedCall> {
        let due = self.open.iter().filter(|(_, call)| call.deadline <= now);
        let due: Vec<u64> = due.map(|(id, _)| *id).collect();
        let mut ended = Vec::new();
        for id in due {
            if let Some(call) = self.open.get_mut(&id) {
                let mut missing: Vec<_> = call.waiting.drain().map(|(_, name)| name).collect();
                missing.sort_unstable();
                call.nodes.unreachable.extend(missing);
            }
            ended.extend(self.finish_if_answered(id));
        }
        ended
    }

    fn finish_if_answered(&mut self, id: u64) -> Option<CompletedCall> {
        if !self.open.get(&id)?.waiting.is_empty() {
            return None;
        }
        let mut call = self.open.remove(&id)?;
        call.nodes.answered.sort_unstable();
        let is_complete = call.nodes.unreachable.is_empty();
        let result = combine(call.method, &call.responses, &call.nodes, self.answer_bytes_max);
        Some(CompletedCall { origin: call.origin, result, is_complete })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ORIGIN: CallOrigin = CallOrigin { worker: 1, token: 7 };

    fn call(calls: &mut Calls, uids: &[&str]) -> u64 {
        let named = |uid: &&str| (Arc::from(*uid), format!("node {uid}").into());
        let waiting = uids.iter().map(named).collect();
        calls.open(ORIGIN, Method::Disconnect, Instant::now(), waiting, Vec::new())
    }

    #[test]
    fn a_call_is_answered_when_all_have_answered_once() {
        let mut calls = Calls::default();
        let id = call(&mut calls, &["a", "b"]);
        assert!(calls.handle_response(id, "a", br#"{"result":{}}"#).is_none());
        assert!(calls.handle_response(id, "a", br#"{"result":{}}"#).is_none());
        assert!(calls.handle_response(id, "stranger", br#"{"result":{}}"#).is_none());
        let answered = calls.handle_response(id, "b", br#"{"result":{}}"#).unwrap();
        assert!(answered.origin == ORIGIN && answered.is_complete && answered.result.is_ok());
        assert!(calls.handle_response(id, "b", b"{}").is_none() && calls.deadline().is_none());
    }

    #[test]
    fn node_that_does_not_answer_is_named() {
        let mut calls = Calls::default();
        let id = call(&mut calls, &["a", "b", "c"]);
        calls.handle_response(id, "a", br#"{"result":{}}"#);
        assert!(calls.handle_missing(id, "c").is_none());
        let late = Instant::now() + Duration::from_secs(1);
        let ended = calls.expire(late);
        let error = ended[0].result.as_ref().unwrap_err();
        assert!(error.message.contains("no answer from node c, node b"), "{error}");
        let nodes = error.nodes.as_deref().unwrap();
        let names = |of: &[Arc<str>]| of.join(" ");
        let named = (names(&nodes.answered), names(&nodes.unreachable));
        assert_eq!(named, ("node a".into(), "node c node b".into()));
        assert!(!ended[0].is_complete && calls.waiting_for("b").is_empty());
    }
}
