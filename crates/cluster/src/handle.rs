//! Starts and stops the agent as the settings require.

use std::sync::Arc;
use std::time::Duration;

use dunlin_api::online::{OnlineQuery, OnlineReply};
use dunlin_api::server_api::ApiErrorCode;
use dunlin_config::{Cluster, Effect, Engine, Keys};
use dunlin_hub::MemberListError;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::agent::{Agent, Input};
use super::local_node::LocalNode;
use super::outbox::Outbox;
use crate::message::{
    ClaimError, ClusterMessage, ClusterOutput, ClusterReply, ClusterRequest, ClusterStatus,
    ClusterToAdmin, ClusterToWorker, SharedChangeEvent, SharedChangeRequest,
};

/// The most requests of workers that wait for the agent. More are refused.
const INPUTS_MAX: usize = 65_536;

/// The agent, if there is a cluster.
pub struct ClusterHandle {
    node: Arc<dyn LocalNode>,
    outbox: Outbox,
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
    /// `outbox` takes the messages of the agent to the other threads.
    pub fn new(node: Arc<dyn LocalNode>, outbox: Outbox) -> ClusterHandle {
        ClusterHandle { node, outbox, running: None, user_bound: 0 }
    }

    /// Applies the settings. An agent whose settings have changed leaves the former cluster before the next one joins.
    pub fn follow(&mut self) {
        let snapshot = self.node.snapshot();
        let user_bound = snapshot.config.limits.connections_per_user_max;
        if user_bound != self.user_bound
            && let Some(running) = &self.running
            && running.input.try_send(Input::Bus(0, ClusterMessage::UsersChanged)).is_ok()
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
        let (node, outbox) = (Arc::clone(&self.node), self.outbox.clone());
        let former_number = node.cluster().number().filter(|_| former.is_some());
        let settings = wanted.clone();
        let task = tokio::spawn(async move {
            if let Some(former) = former {
                let _ = former.input.send(Input::Leave).await;
                let _ = former.task.await;
            }
            if let Some(AgentSettings { cluster, engine, number }) = settings {
                let numbers = (number, former_number);
                let agent = Agent::new(node, &cluster, &engine, numbers, outbox);
                agent.run(inputs).await;
            }
        });
        self.running = wanted.map(|settings| RunningAgent { settings, input, task });
    }

    /// Passes a message of the thread with endpoint `from` to the agent.
    pub fn handle(&self, from: usize, message: ClusterMessage) {
        let refused = match &self.running {
            Some(running) => match running.input.try_send(Input::Bus(from, message)) {
                Ok(()) => return,
                Err(refused) => match refused.into_inner() {
                    Input::Bus(_, message) => message,
                    Input::Leave => return,
                },
            },
            None => message,
        };
        if let Some(answer) = self.refusal(from, refused) {
            // The control thread holds the receiving end.
            let _ = self.outbox.send(answer);
        }
    }

    /// Returns the answer to a message for which there is no agent, or which it has no room for.
    fn refusal(&self, from: usize, refused: ClusterMessage) -> Option<ClusterOutput> {
        Some(match refused {
            ClusterMessage::Request { token, request } => {
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
                let reply = ClusterToWorker::Reply { token, reply: Box::new(reply) };
                ClusterOutput::Worker(from, reply)
            }
            ClusterMessage::OnlineQuery(OnlineQuery { request_id, .. }) => {
                ClusterOutput::Push(OnlineReply { request_id, online: Vec::new() })
            }
            ClusterMessage::StatusQuery { request_id, .. } => {
                let mut status = ClusterStatus { request_id, ..ClusterStatus::default() };
                if self.running.is_some() {
                    status.unreachable.push("nodes with which this one is not in touch".into());
                }
                ClusterOutput::Admin(ClusterToAdmin::Status(Box::new(status)))
            }
            ClusterMessage::SharedChangeRequest(request) => {
                let event = match request {
                    SharedChangeRequest::Append(_) => {
                        let why = "this node is not in touch with its cluster".to_owned();
                        SharedChangeEvent::Unkept(why)
                    }
                    SharedChangeRequest::Claim { .. } => {
                        let why = "it has not joined it yet".to_owned();
                        SharedChangeEvent::Refused(ClaimError::Unreachable(why))
                    }
                    SharedChangeRequest::Release => return None,
                };
                ClusterOutput::Admin(ClusterToAdmin::SharedChangeEvent(Box::new(event)))
            }
            // The worker reports them again.
            ClusterMessage::Occupancy(changes) if self.running.is_some() => {
                ClusterOutput::Worker(from, ClusterToWorker::OccupancyRefused(changes))
            }
            ClusterMessage::Members(_) => {
                self.node.cluster().drop_members();
                return None;
            }
            ClusterMessage::Occupancy(_)
            | ClusterMessage::UsersChanged
            | ClusterMessage::NodeReply { .. } => return None,
        })
    }

    /// Leaves the cluster and removes this node's records, waiting at most `bound`.
    pub async fn leave(&mut self, bound: Duration) {
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
