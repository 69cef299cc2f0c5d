//! Starts and stops the agent as the settings require.

use std::sync::Arc;
use std::time::Duration;

use dunlin_config::{Cluster, Effect, Engine, Keys};
use dunlin_hub::MemberListError;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::agent::{Agent, Input};
use super::local_node::LocalNode;
use crate::api::ApiErrorCode;
use crate::message::bus::BusMessage;
use crate::message::cluster::{
    ClaimError, ClusterReply, ClusterRequest, ClusterStatus, SharedChangeEvent, SharedChangeRequest,
};
use crate::message::to_workers::ToWorkers;

/// The most requests of workers that wait for the agent. More are refused.
const INPUTS_MAX: usize = 65_536;

/// The agent, if there is a cluster.
pub(crate) struct ClusterHandle {
    node: Arc<dyn LocalNode>,
    to_workers: ToWorkers,
    running: Option<RunningAgent>,
    /// The value of `limits.connections_per_user_max` that was last sent to the agent.
    user_bound: u32,
}

/// The settings that an agent runs with.
#[derive(Clone)]
struct AgentSettings {
    cluster: Cluster,
    engine: Arc<Engine>,
    /// `server.node`.
    number: u16,
}

struct RunningAgent {
    settings: AgentSettings,
    input: mpsc::Sender<Input>,
    task: JoinHandle<()>,
}

impl ClusterHandle {
    /// `to_workers` takes the messages of the agent to workers.
    pub(crate) fn new(node: Arc<dyn LocalNode>, to_workers: ToWorkers) -> ClusterHandle {
        ClusterHandle { node, to_workers, running: None, user_bound: 0 }
    }

    /// Applies the settings. An agent whose settings have changed leaves the former cluster before the next one joins.
    pub(crate) fn follow(&mut self) {
        let snapshot = self.node.snapshot();
        let user_bound = snapshot.config.limits.connections_per_user_max;
        if user_bound != self.user_bound
            && let Some(running) = &self.running
            && running.input.try_send(Input::Bus(0, BusMessage::UsersChanged)).is_ok()
        {
            self.user_bound = user_bound;
        }
        let cluster = &snapshot.config.cluster;
        let number = snapshot.config.server.node;
        let engine = cluster.engine.as_deref();
        let engine = engine.and_then(|name| snapshot.config.engines.get_shared(name));
        let is_followed = match (&self.running, engine) {
            (Some(RunningAgent { settings: of, .. }), Some(engine)) => {
                !of.cluster.effects(cluster).contains(Effect::Cluster)
                    && of.number == number
                    && of.engine.is_same_place(engine)
            }
            (running, engine) => running.is_none() && engine.is_none(),
        };
        // A shared change may be the one that replaces the agent: the agent first sends it to the others and collects their
        // results.
        if is_followed || self.running.is_some() && self.node.cluster().keeps_agent() {
            return;
        }
        let wanted = engine.map(|engine| AgentSettings {
            cluster: cluster.clone(),
            engine: Arc::clone(engine),
            number,
        });
        let former = self.running.take();
        let (input, inputs) = mpsc::channel(INPUTS_MAX);
        let (node, to_workers) = (Arc::clone(&self.node), self.to_workers.clone());
        let former_number = node.cluster().number().filter(|_| former.is_some());
        let settings = wanted.clone();
        let task = tokio::spawn(async move {
            if let Some(former) = former {
                let _ = former.input.send(Input::Leave).await;
                let _ = former.task.await;
            }
            if let Some(AgentSettings { cluster, engine, number }) = settings {
                let numbers = (number, former_number);
                let agent = Agent::new(node, &cluster, &engine, numbers, to_workers);
                agent.run(inputs).await;
            }
        });
        self.running = wanted.map(|settings| RunningAgent { settings, input, task });
    }

    /// Handles a message of a worker about the cluster.
    pub(crate) fn handle(&self, worker: usize, message: BusMessage) {
        let refused = match &self.running {
            Some(running) => match running.input.try_send(Input::Bus(worker, message)) {
                Ok(()) => return,
                Err(refused) => refused.into_inner(),
            },
            None => Input::Bus(worker, message),
        };
        let answer = match refused {
            Input::Bus(_, BusMessage::ClusterRequest { token, request }) => {
                let why = "this node is not in touch with its cluster; try again";
                let error = ApiErrorCode::Internal.with_reason(why);
                let reply = match *request {
                    ClusterRequest::Command { .. } => ClusterReply::Command(Err(error)),
                    ClusterRequest::Presence { .. } => ClusterReply::Presence(Err(error)),
                    ClusterRequest::OtherMembers { .. } => {
                        ClusterReply::OtherMembers(Err(MemberListError::Unavailable))
                    }
                    ClusterRequest::PresenceStats { .. } => ClusterReply::PresenceStats(Err(error)),
                };
                BusMessage::ClusterReply { token, reply: Box::new(reply) }
            }
            Input::Bus(_, BusMessage::OnlineQuery { request_id, .. }) => {
                BusMessage::OnlineReply { request_id, online: Vec::new() }
            }
            Input::Bus(_, BusMessage::StatusQuery { request_id, .. }) => {
                let mut status = ClusterStatus { request_id, ..ClusterStatus::default() };
                if self.running.is_some() {
                    status.unreachable.push("nodes with which this one is not in touch".into());
                }
                BusMessage::ClusterStatus(Box::new(status))
            }
            Input::Bus(_, BusMessage::SharedChangeRequest(SharedChangeRequest::Append(_))) => {
                let why = "this node is not in touch with its cluster".to_owned();
                BusMessage::SharedChangeEvent(Box::new(SharedChangeEvent::Unkept(why)))
            }
            Input::Bus(_, BusMessage::SharedChangeRequest(SharedChangeRequest::Claim { .. })) => {
                let refusal = ClaimError::Unreachable("it has not joined it yet".to_owned());
                BusMessage::SharedChangeEvent(Box::new(SharedChangeEvent::Refused(refusal)))
            }
            // The worker reports them again.
            Input::Bus(_, BusMessage::Occupancy(changes)) if self.running.is_some() => {
                BusMessage::Occupancy(changes)
            }
            Input::Bus(_, BusMessage::Members(_)) => return self.node.cluster().drop_members(),
            _ => return,
        };
        // The control thread holds the receiving end.
        let _ = self.to_workers.send((worker, answer));
    }

    /// Leaves the cluster and removes this node's records, waiting at most `bound`.
    pub(crate) async fn leave(&mut self, bound: Duration) {
        let Some(running) = self.running.take() else { return };
        let left = timeout(bound, async {
            let _ = running.input.send(Input::Leave).await;
            running.task.await
        });
        if left.await.is_err() {
            tracing::warn!("there is no answer; the other nodes will see this one's lease end");
        }
    }
}
