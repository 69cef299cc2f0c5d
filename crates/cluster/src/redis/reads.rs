//! Reads of data that grows with members and revocations: in steps, over a separate connection.
//!
//! Redis closes a subscribed connection once 32 MB of output wait for it (`client-output-buffer-limit pubsub`), and a large reply
//! delays the replies after it. This connection has no subscriptions, and no lease renewal waits behind its replies.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::address::RedisAddress;
use super::link::{Commands, RedisLink, RedisReply};
use crate::condition::Condition;
use crate::inbox::Inbox;
use crate::store::StoreError;

/// Elements that one step scans. Redis serves no other client meanwhile.
pub(super) const ELEMENTS_A_STEP: &[u8] = b"256";
/// The cursor at the beginning and at the end of a scan.
pub(super) const CURSOR_0: &[u8] = b"0";

/// The connection. It is opened on first use, and reopened once it has ended.
pub(super) struct ReadLink {
    address: RedisAddress,
    link: Mutex<Option<Arc<RedisLink>>>,
}

impl ReadLink {
    pub(super) fn new(address: &RedisAddress) -> ReadLink {
        ReadLink { address: address.clone(), link: Mutex::default() }
    }

    async fn link(&self) -> Result<Arc<RedisLink>, StoreError> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.has_ended()) {
            return Ok(Arc::clone(link));
        }
        let nobody = Inbox::of_nobody();
        Ok(Arc::clone(link.insert(Arc::new(self.address.open(nobody).await?))))
    }

    /// Sends commands like [`RedisLink::send`], over the connection for reads.
    pub(super) async fn send(&self, commands: Commands) -> Result<Vec<RedisReply>, StoreError> {
        let link = self.link().await?;
        let replies = link.send(commands).await;
        if let Err(StoreError::Closed(_) | StoreError::Elsewhere(_)) = &replies {
            // Drops the connection and any late replies; the next read opens a new one.
            self.link.lock().await.take_if(|of| Arc::ptr_eq(of, &link));
        }
        replies
    }

    /// Scans a hash (`HSCAN`) or a set (`SSCAN`), each element once, until `each` returns `false`.
    pub(super) async fn scan(
        &self,
        command: &str,
        key: &[u8],
        mut each: impl FnMut(&[RedisReply]) -> bool + Send,
    ) -> Result<(), StoreError> {
        let width = if command == "HSCAN" { 2 } else { 1 };
        let (mut cursor, mut seen) = (Box::from(CURSOR_0), HashSet::<Box<[u8]>>::new());
        loop {
            let mut commands = Commands::default();
            commands.push(&[command.as_bytes(), key, &cursor, b"COUNT", ELEMENTS_A_STEP]);
            let replies = self.send(commands).await?;
            let (next, elements) = page(replies.first())?;
            for element in elements.chunks_exact(width) {
                // A scan may return an element twice if the table is resized meanwhile.
                let is_new = element[0].bytes().is_some_and(|name| seen.insert(name.into()));
                if is_new && !each(element) {
                    return Ok(());
                }
            }
            if next == CURSOR_0 {
                return Ok(());
            }
            cursor = next.into();
        }
    }
}

/// Parses a step of a scan: the next cursor, and the elements.
pub(super) fn page(reply: Option<&RedisReply>) -> Result<(&[u8], &[RedisReply]), StoreError> {
    match reply.map(RedisReply::list) {
        Some([next, elements]) => Ok((next.bytes().unwrap_or(CURSOR_0), elements.list())),
        _ => {
            let text = "what Redis answers to a scan is no answer";
            Err(StoreError::Refused(Condition::Failed, text.into()))
        }
    }
}
