//! The control thread's services for workers: it fetches key sets, and connects them to the cluster.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dunlin_bus::Endpoint;
use tokio::time::sleep;

use super::key_fetcher::KeyFetcher;
use crate::cluster::ClusterHandle;
use crate::message::bus::BusMessage;
use crate::message::to_workers::{ForWorkers, bytes_of};
use crate::state::ServerState;

/// How often the settings are checked for changes.
const LOOK_MS: u64 = 1_000;
/// Delay before sending again to a worker whose ring is full.
const RETRY: Duration = Duration::from_millis(5);

/// Does it until it is dropped. `to_workers` is what the control thread and its tasks send them.
pub(crate) async fn run(
    state: &Arc<ServerState>,
    endpoint: &mut Endpoint<BusMessage>,
    to_workers: &mut ForWorkers,
    cluster: &mut ClusterHandle,
) {
    let doorbell = match endpoint.async_doorbell() {
        Ok(doorbell) => doorbell,
        Err(error) => {
            tracing::error!(%error, "key sets are not fetched, and there is no cluster");
            return std::future::pending().await;
        }
    };
    let mut fetcher = KeyFetcher::new(state);
    // For workers whose rings are full.
    let mut refused = VecDeque::new();
    loop {
        while let Some((from, message)) = endpoint.recv() {
            match message {
                // The requester has set the reason.
                BusMessage::WantKeys => {}
                message => cluster.handle(from, message),
            }
        }
        cluster.follow();
        let wait_ms = fetcher.fetch_due().min(LOOK_MS);
        send(endpoint, &mut refused, to_workers);
        if !endpoint.prepare_sleep() {
            tokio::task::yield_now().await;
            continue;
        }
        let retry = sleep(if refused.is_empty() { Duration::from_millis(wait_ms) } else { RETRY });
        let first = tokio::select! {
            _ = doorbell.rung() => None,
            () = fetcher.fetched() => {
                // One whose ring is full looks again by itself.
                (0..state.workers()).for_each(|worker| {
                    let _ = endpoint.send(worker, BusMessage::KeysFetched);
                });
                None
            }
            message = to_workers.recv() => message,
            () = retry => None,
        };
        endpoint.wake();
        refused.extend(first);
        send(endpoint, &mut refused, to_workers);
    }
}

/// Sends all pending messages, in order for each worker.
fn send(
    endpoint: &mut Endpoint<BusMessage>,
    refused: &mut VecDeque<(usize, BusMessage)>,
    to_workers: &mut ForWorkers,
) {
    while let Some(message) = to_workers.try_recv() {
        refused.push_back(message);
    }
    let mut full = 0_u128;
    for _ in 0..refused.len() {
        let Some((worker, message)) = refused.pop_front() else { break };
        let bit = 1 << worker;
        if full & bit != 0 {
            refused.push_back((worker, message));
            continue;
        }
        let bytes = bytes_of(&message);
        match endpoint.send(worker, message) {
            Err(error) if error.is_full() => {
                full |= bit;
                refused.push_back((worker, error.into_value()));
            }
            _ => to_workers.has_left(bytes),
        }
    }
    endpoint.flush();
}
