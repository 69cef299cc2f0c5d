//! What the machines of a worker share, and what each of them is called with.
//!
//! A machine ([`clients`](super::clients), [`api`](super::api), [`engines`](super::engines), …) owns its parts, and no machine has
//! another's. What a method needs of the rest is its argument: a [`Turn`] if it works on connections, the [`Core`] if not.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_bus::SendError;
use dunlin_hub::{Hub, Now};
use dunlin_net::{ConnId, Context};
use dunlin_protocol::FrameEncoder;
use dunlin_wire::backoff::Jitter;

use super::link::Link;
use super::logged::Requests;
use super::parts::{
    AdoptedSettings, Budgets, Clock, CommandPlace, PeerAddresses, PendingRequests, WebhookEmitter,
};
use crate::api::CommandResult;
use crate::message::bus::Endpoint;
use crate::message::worker::WorkerMessage;
use crate::metrics::Metric;
use crate::metrics::labelled::LabelledCounters;
use crate::state::ServerState;

/// The hub of a worker, its endpoint on the bus, the settings it runs, and what all its machines account for.
pub(super) struct Core<'w> {
    pub(super) index: usize,
    pub(super) state: Arc<ServerState>,
    pub(super) settings: AdoptedSettings,
    pub(super) endpoint: &'w mut Endpoint<WorkerMessage>,
    pub(super) hub: Hub,
    /// Encodes replies; the hub has its own encoder for pushes.
    pub(super) encoder: FrameEncoder,
    pub(super) clock: Clock,
    pub(super) jitter: Jitter,
    pub(super) peers: PeerAddresses,
    pub(super) budgets: Budgets,
    /// Requests to the hub and to other threads.
    pub(super) pending: PendingRequests,
    /// Answers to commands of the server API that its machine has not taken. While there are any, the worker does not sleep.
    pub(super) api_answers: VecDeque<(CommandPlace, CommandResult)>,
    /// Replies to commands of programs that these have not taken, with the ids of the commands.
    pub(super) program_answers: VecDeque<(ConnId, u32, Vec<u8>)>,
    /// What the log needs of requests that are not answered.
    pub(super) requests: Requests,
    pub(super) emitter: WebhookEmitter,
    /// The control thread was not notified of some joins and leaves.
    pub(super) members_lost: bool,
}

/// The core, together with the connections of the event loop.
pub(super) struct Turn<'t, 'w> {
    pub(super) core: &'t mut Core<'w>,
    pub(super) cx: &'t mut Context<Link>,
}

impl<'w> Core<'w> {
    pub(super) fn turn<'t>(&'t mut self, cx: &'t mut Context<Link>) -> Turn<'t, 'w> {
        Turn { core: self, cx }
    }

    pub(super) fn count(&self, metric: Metric) {
        self.state.counters[self.index].count(metric);
    }

    /// Returns this worker's counters with labels.
    pub(super) fn labelled(&self) -> &LabelledCounters {
        &self.state.labelled[self.index]
    }

    /// Sends the hub's messages to other workers, and wakes those that sleep.
    pub(super) fn transmit(&mut self) {
        self.report_members();
        self.report_occupancy();
        while let Some((to, message)) = self.hub.poll_transmit() {
            let worker = self.state.bus.worker(to.into());
            let refused = self.endpoint.send(worker, WorkerMessage::Hub(message)).err();
            if let Some(WorkerMessage::Hub(message)) = refused.map(SendError::into_value) {
                self.hub.requeue(to, message);
            }
        }
        let woken = self.endpoint.flush();
        self.state.counters[self.index].add(Metric::BusWakes, woken as u64);
    }
}

impl Turn<'_, '_> {
    /// Sets the clock to the loop's time.
    pub(super) fn now(&mut self) -> Now {
        self.core.clock.set(self.cx.now_ms())
    }
}
