//! The control thread's services for other threads: it fetches key sets, and connects them to the cluster.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dunlin_cluster::message::ClusterOutput;
use dunlin_cluster::{ClusterHandle, OutboxReader};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::key_fetcher::KeyFetcher;
use crate::message::bus::{Addressed, Addresses, Endpoint};
use crate::message::control::ControlMessage;
use crate::message::webhooks::WebhooksMessage;
use crate::message::worker::WorkerMessage;
use crate::state::ServerState;

/// How often the settings are checked for changes.
const LOOK_MS: u64 = 1_000;
/// Delay before sending again to a thread whose ring is full.
const RETRY: Duration = Duration::from_millis(5);

/// Does it until it is dropped. `outputs` is what the agent of the cluster sends; once `drains` is notified, all workers drain.
pub(crate) async fn run(
    state: &Arc<ServerState>,
    endpoint: &mut Endpoint<ControlMessage>,
    outputs: &mut OutboxReader,
    cluster: &mut ClusterHandle,
    drains: &Notify,
) {
    let doorbell = match endpoint.async_doorbell() {
        Ok(doorbell) => doorbell,
        Err(error) => {
            tracing::error!(%error, "key sets are not fetched, and there is no cluster");
            return std::future::pending().await;
        }
    };
    let mut fetcher = KeyFetcher::new(state);
    let mut waiting = Waiting { to: state.bus, messages: VecDeque::new() };
    loop {
        while let Some((from, message)) = endpoint.recv() {
            match message {
                // The requester has set the reason.
                ControlMessage::WantKeys => {}
                ControlMessage::Cluster(message) => cluster.handle(from, message),
            }
        }
        cluster.follow();
        let wait_ms = fetcher.fetch_due().min(LOOK_MS);
        waiting.send(endpoint, outputs);
        if !endpoint.prepare_sleep() {
            tokio::task::yield_now().await;
            continue;
        }
        let pause =
            if waiting.messages.is_empty() { Duration::from_millis(wait_ms) } else { RETRY };
        let mut is_fetched = false;
        tokio::select! {
            _ = doorbell.rung() => {}
            () = fetcher.fetched() => is_fetched = true,
            output = outputs.recv() => output.into_iter().for_each(|output| waiting.push(output)),
            () = drains.notified() => {
                (0..state.workers()).for_each(|worker| waiting.push_drain(worker));
            }
            () = sleep(pause) => {}
        }
        endpoint.wake();
        if is_fetched {
            // One whose ring is full looks again by itself.
            (0..state.workers()).for_each(|worker| {
                let _ = endpoint.send(state.bus.worker(worker), WorkerMessage::KeysFetched);
            });
        }
        waiting.send(endpoint, outputs);
    }
}

/// Messages that are not sent yet, some because rings are full.
struct Waiting {
    to: Addresses,
    /// Each with its bytes in the outbox.
    messages: VecDeque<(Addressed, usize)>,
}

impl Waiting {
    fn push(&mut self, output: ClusterOutput) {
        let (to, bytes) = (self.to, output.bytes());
        let message = match output {
            ClusterOutput::Worker(worker, message) => to.worker(worker).seal(message),
            ClusterOutput::Admin(message) => to.admin().seal(message),
            ClusterOutput::Push(reply) => to.push().seal(reply),
            ClusterOutput::Webhooks(event) => to.webhooks().seal(WebhooksMessage::Event(event)),
        };
        self.messages.push_back((message, bytes));
    }

    fn push_drain(&mut self, worker: usize) {
        self.messages.push_back((self.to.worker(worker).seal(WorkerMessage::Drain), 0));
    }

    /// Sends all messages, in order for each receiver.
    fn send(&mut self, endpoint: &mut Endpoint<ControlMessage>, outputs: &mut OutboxReader) {
        while let Some(output) = outputs.try_recv() {
            self.push(output);
        }
        let mut full = 0_u128;
        for _ in 0..self.messages.len() {
            let Some((message, bytes)) = self.messages.pop_front() else { break };
            let bit = 1 << message.to();
            if full & bit != 0 {
                self.messages.push_back((message, bytes));
                continue;
            }
            match endpoint.send_addressed(message) {
                Err(error) if error.is_full() => {
                    full |= bit;
                    self.messages.push_back((error.into_value(), bytes));
                }
                _ => outputs.has_left(bytes),
            }
        }
        endpoint.flush();
    }
}
