//! The push thread's loop: passes messages between the service and the bus.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dunlin_cluster::message::ClusterMessage;
use dunlin_config::ConfigErrors;
use dunlin_push_service::message::{PushMessage, PushOutput};
use dunlin_push_service::{PushInbox, PushOutbox, PushThread};

use crate::error::ServeError;
use crate::message::bus::{Addressed, Endpoint};
use crate::message::webhooks::WebhooksMessage;
use crate::state::ServerState;

/// Messages taken from the bus before other tasks of the runtime run.
const MESSAGES_PER_TURN: usize = 256;
/// Delay before a full ring is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// Starts the thread: see [`PushThread::start`].
pub(crate) fn start(
    state: &Arc<ServerState>,
    endpoint: Endpoint<PushMessage>,
    state_dir: Option<&Path>,
    report: &mut Vec<String>,
) -> Result<(PushThread, ConfigErrors), ServeError> {
    let of_thread = Arc::clone(state);
    let serve = move |inbox, outbox| serve(of_thread, endpoint, inbox, outbox);
    PushThread::start(Arc::clone(state) as _, state_dir, report, serve)
        .map_err(|error| ServeError::Push(error.to_string()))
}

async fn serve(
    state: Arc<ServerState>,
    mut endpoint: Endpoint<PushMessage>,
    inbox: PushInbox,
    mut outbox: PushOutbox,
) -> io::Result<()> {
    let doorbell = endpoint.async_doorbell()?;
    let addressed = |output: PushOutput| -> (Addressed, bool) {
        let to = state.bus;
        match output {
            PushOutput::Worker(index, message) => (to.worker(index).seal(message), false),
            PushOutput::Cluster(query) => {
                (to.control().seal(ClusterMessage::OnlineQuery(query)), false)
            }
            PushOutput::Webhooks(event) => {
                (to.webhooks().seal(WebhooksMessage::Event(event)), true)
            }
        }
    };
    // With each message, whether it is an event.
    let mut waiting: VecDeque<(Addressed, bool)> = VecDeque::new();
    let mut generation = 0;
    loop {
        if generation != state.generation() {
            generation = state.generation();
            let slots = state.settings.load().config.limits.bus_slots;
            endpoint.set_ring_slots(slots as usize);
        }
        let mut taken = 0;
        while taken < MESSAGES_PER_TURN
            && let Some((from, message)) = endpoint.recv()
        {
            taken += 1;
            inbox.handle(from, message);
        }
        while let Some(message) = outbox.try_recv() {
            waiting.push_back(addressed(message));
        }
        // A full ring of one worker briefly delays messages to the others, too; each worker empties its ring every turn.
        while let Some((message, is_event)) = waiting.pop_front() {
            if let Err(refused) = endpoint.send_addressed(message) {
                waiting.push_front((refused.into_value(), is_event));
                break;
            }
            if is_event {
                inbox.handle_event_sent();
            }
        }
        endpoint.flush();
        if !waiting.is_empty() {
            tokio::time::sleep(RETRY).await;
        } else if endpoint.prepare_sleep() {
            tokio::select! {
                rung = doorbell.rung() => rung?,
                Some(message) = outbox.recv() => waiting.push_back(addressed(message)),
                () = inbox.stopped() => return Ok(()),
            }
            endpoint.wake();
        } else {
            tokio::task::yield_now().await;
        }
    }
}
