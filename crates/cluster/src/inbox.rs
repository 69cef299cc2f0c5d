//! Messages of other nodes that wait for the agent, bounded in bytes.
//!
//! Joins and leaves are dropped first, because no caller waits for them. If still more waits, the connection is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::store::RawMessage;

/// Waiting bytes above which joins and leaves are dropped.
const ANNOUNCED_BYTES_MAX: usize = 32 << 20;
/// Waiting bytes above which the connection is closed.
const BYTES_MAX: usize = 128 << 20;
/// Bytes that a message takes in addition to its text.
const MESSAGE_BYTES: usize = 64;
/// The first bytes of a message, in which an announcement is recognized.
const HEAD_BYTES: usize = 128;

/// The reason for closing a connection whose messages are not handled fast enough.
pub(super) const OVERRUN: &str = "more waits of what other nodes say than this node keeps";

/// The sending half of a connection's inbox.
#[derive(Clone)]
pub(super) struct Inbox {
    queue: mpsc::UnboundedSender<RawMessage>,
    waiting_bytes: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

/// The receiving half of a connection's inbox, for the agent.
pub(super) struct InboxReader {
    queue: mpsc::UnboundedReceiver<RawMessage>,
    waiting_bytes: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

/// Creates the inbox of a connection.
pub(super) fn inbox() -> (Inbox, InboxReader) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (waiting_bytes, dropped) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
    let inbox = Inbox {
        queue: sender,
        waiting_bytes: Arc::clone(&waiting_bytes),
        dropped: Arc::clone(&dropped),
    };
    (inbox, InboxReader { queue: receiver, waiting_bytes, dropped })
}

impl Inbox {
    /// Creates an inbox for a connection without subscriptions.
    pub(super) fn of_nobody() -> Inbox {
        inbox().0
    }

    /// Queues a message. Returns `false` if too much waits, and the connection must be closed.
    pub(super) fn put(&self, message: RawMessage) -> bool {
        let bytes = MESSAGE_BYTES + message.len();
        let waiting = self.waiting_bytes.load(Ordering::Relaxed).saturating_add(bytes);
        if waiting > ANNOUNCED_BYTES_MAX && is_announcement(&message) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        if waiting > BYTES_MAX {
            return false;
        }
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        // There is no receiver while the connection is being closed.
        let _ = self.queue.send(message);
        true
    }
}

impl InboxReader {
    /// Returns the number of messages with joins and leaves that were dropped since the last call.
    pub(super) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    /// Returns the next message; `None` after the connection has ended.
    pub(super) async fn next(&mut self) -> Option<RawMessage> {
        let message = self.queue.recv().await?;
        self.waiting_bytes.fetch_sub(MESSAGE_BYTES + message.len(), Ordering::Relaxed);
        Some(message)
    }
}

/// Whether a message only announces joins and leaves. Its head shows it: the members come first, without the id of a call.
fn is_announcement(message: &[u8]) -> bool {
    const ID: &[u8] = br#""id":"#;
    let head = &message[..message.len().min(HEAD_BYTES)];
    let id = head.windows(ID.len()).position(|part| part == ID);
    id.is_some_and(|at| message[at + ID.len()..].starts_with(br#"0,"members":["#))
}

#[cfg(test)]
mod tests {
    use dunlin_hub::{ClientInfo, SessionId};

    use super::*;
    use crate::node_message::{MemberChange, NodeMessage, StoredMember};

    #[tokio::test]
    async fn joins_and_leaves_are_dropped_first_and_too_much_of_all_else_ends_the_connection() {
        let uid = "0123456789abcdef0123456789abcdef";
        let info = ClientInfo {
            user_is_number: false,
            foreign_client: None,
            client: SessionId::from_u64(1).expect("an id"),
            user: "ann".into(),
            conn_info: None,
            chan_info: None,
        };
        let member = StoredMember::new(&uid.into(), &info);
        let change = MemberChange { channel: "room".into(), client: 1, joined: true, member };
        let joins = NodeMessage { members: vec![change], ..NodeMessage::from(uid) }.encode();
        let raw = serde_json::value::to_raw_value(&serde_json::json!({ "id": 0, "members": [1] }));
        let raw = raw.expect("it is JSON");
        let call = Some("publish".into());
        let call =
            NodeMessage { id: 1, call, request: Some(&raw), ..NodeMessage::from(uid) }.encode();
        assert!(is_announcement(&joins) && !is_announcement(&call));

        let (inbox, mut reader) = inbox();
        let large: RawMessage = vec![b' '; ANNOUNCED_BYTES_MAX].into();
        assert!(inbox.put(large.clone()));
        assert!(inbox.put(joins.clone().into()), "it is dropped, and the connection stays");
        assert!(inbox.put(call.clone().into()));
        assert_eq!(reader.next().await.map(|of| of.len()), Some(ANNOUNCED_BYTES_MAX));
        assert_eq!(reader.next().await.as_deref(), Some(&*call));
        assert_eq!((reader.take_dropped(), reader.take_dropped()), (1, 0));
        assert!(inbox.put(joins.clone().into()));
        assert_eq!(reader.next().await.as_deref(), Some(&*joins));
        let taken = std::iter::repeat_with(|| inbox.put(large.clone())).take_while(|taken| *taken);
        assert_eq!(taken.count(), BYTES_MAX / ANNOUNCED_BYTES_MAX - 1);
    }
}
