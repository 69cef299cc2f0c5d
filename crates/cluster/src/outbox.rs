//! Messages of the agent to the other threads.
//!
//! Messages that wait because rings are full are bounded. Unrequested joins and leaves from other nodes are dropped
//! first, then requests of other nodes are refused. Answers to a thread's own requests are bounded by the number of its
//! requests, and are always queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use crate::message::{ClusterOutput, ClusterToWorker};

/// Above this number of waiting bytes, joins and leaves are dropped.
const ANNOUNCED_BYTES_MAX: usize = 32 << 20;
/// Above this number of waiting bytes, requests of other nodes are refused.
const BYTES_MAX: usize = 64 << 20;
/// The bytes of a message without its texts.
const MESSAGE_BYTES: usize = 256;

/// The sending half.
#[derive(Clone)]
pub struct Outbox {
    queue: mpsc::UnboundedSender<ClusterOutput>,
    waiting_bytes: Arc<AtomicUsize>,
}

/// The receiving half.
pub struct OutboxReader {
    queue: mpsc::UnboundedReceiver<ClusterOutput>,
    waiting_bytes: Arc<AtomicUsize>,
}

/// Creates the outbox of the agent: its half, and the control thread's.
pub fn outbox() -> (Outbox, OutboxReader) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting_bytes = Arc::<AtomicUsize>::default();
    let of_receiver = Arc::clone(&waiting_bytes);
    (
        Outbox { queue: sender, waiting_bytes },
        OutboxReader { queue: receiver, waiting_bytes: of_receiver },
    )
}

impl Outbox {
    /// Sends a message. Returns `false` if it is a join or a leave that was dropped.
    pub(crate) fn send(&self, message: ClusterOutput) -> bool {
        let bytes = message.bytes();
        let waiting = self.waiting_bytes.load(Ordering::Relaxed).saturating_add(bytes);
        if waiting > ANNOUNCED_BYTES_MAX && is_announcement(&message) {
            return false;
        }
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Cannot fail: the control thread keeps the receiver for as long as there are workers.
        let _ = self.queue.send(message);
        true
    }

    /// Whether too much waits to accept requests of other nodes.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting_bytes.load(Ordering::Relaxed) > BYTES_MAX
    }
}

impl OutboxReader {
    /// Returns the next message.
    pub async fn recv(&mut self) -> Option<ClusterOutput> {
        self.queue.recv().await
    }

    /// Returns the next message, if there is one.
    pub fn try_recv(&mut self) -> Option<ClusterOutput> {
        self.queue.try_recv().ok()
    }

    /// Subtracts the bytes of a message that no longer waits.
    pub fn has_left(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn is_announcement(message: &ClusterOutput) -> bool {
    matches!(message, ClusterOutput::Worker(_, ClusterToWorker::RemoteMember(_)))
}

impl ClusterOutput {
    /// Returns the bytes of a waiting message. Texts count only for the kinds of messages that can be many.
    pub fn bytes(&self) -> usize {
        MESSAGE_BYTES
            + match self {
                ClusterOutput::Worker(_, ClusterToWorker::RemoteMember(of)) => {
                    let json =
                        |json: &Option<Box<[u8]>>| json.as_ref().map_or(0, |json| json.len());
                    let info = &of.info;
                    let texts = json(&info.conn_info) + json(&info.chan_info);
                    of.channel.len() + info.user.len() + texts
                }
                ClusterOutput::Worker(_, ClusterToWorker::Command(of)) => of.request.len(),
                _ => 0,
            }
    }
}

#[cfg(test)]
mod tests {
    use dunlin_api::server_api::Method;
    use dunlin_hub::{ClientInfo, SessionId};

    use super::*;
    use crate::message::{ClusterCommand, RemoteMember};

    /// Regression test: the joins and leaves that waited for a worker with a full ring were unbounded.
    #[test]
    fn joins_and_leaves_are_dropped_first_then_what_others_ask_and_answers_never() {
        let (sender, mut receiver) = outbox();
        let info = Arc::new(ClientInfo {
            user_is_number: false,
            foreign_client: None,
            client: SessionId::from_u64(1).expect("an id"),
            user: "ann".into(),
            conn_info: None,
            chan_info: None,
        });
        let join = || {
            let (channel, info) = ("room".into(), Arc::clone(&info));
            let member = Box::new(RemoteMember { channel, info, joined: true });
            ClusterOutput::Worker(0, ClusterToWorker::RemoteMember(member))
        };
        let command = || {
            let (method, request) = (Method::Info, vec![b' '; 1 << 20].into());
            let command = Box::new(ClusterCommand { request_id: 1, method, request });
            ClusterOutput::Worker(0, ClusterToWorker::Command(command))
        };
        let count = std::iter::repeat_with(|| sender.send(join())).take_while(|taken| *taken);
        let count = count.count();
        assert!(count > 10_000 && count * join().bytes() <= ANNOUNCED_BYTES_MAX, "{count}");
        let commands = std::iter::repeat_with(|| sender.send(command()));
        let commands = commands.take_while(|_| !sender.is_full()).count();
        assert!((30..=33).contains(&commands), "{commands}");
        assert!(
            sender.send(ClusterOutput::Worker(0, ClusterToWorker::NodeNumber)),
            "what was asked for is answered"
        );
        assert!(!sender.send(join()));
        while let Some(message) = receiver.try_recv() {
            receiver.has_left(message.bytes());
        }
        assert!(!sender.is_full() && sender.send(join()), "there is room again");
    }
}
