//! Reads of what grows with members and revocations: in steps, on a connection of their own.
//!
//! Redis ends a connection that subscribes once 32 MB of replies wait for it (`client-output-buffer-limit pubsub`), and what is asked
//! behind a large reply waits for that reply. This connection subscribes to nothing, and no lease waits behind it.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::address::RedisAddress;
use super::link::{Commands, RedisLink, RedisReply};
use crate::cluster::condition::Condition;
use crate::cluster::inbox::Inbox;
use crate::cluster::store::StoreError;

/// Elements that one step looks at: others wait for so long.
pub(super) const ELEMENTS_A_STEP: &[u8] = b"256";
/// The cursor that a scan begins with, and ends with.
pub(super) const CURSOR_0: &[u8] = b"0";

/// The connection; opened when it is used first, and again when it has ended.
pub(super) struct ReadLink {
    address: RedisAddress,
    link: Mutex<Option<Arc<RedisLink>>>,
}

impl ReadLink {
    pub(super) fn new(address: &RedisAddress, opened: Option<RedisLink>) -> ReadLink {
        ReadLink { address: address.clone(), link: Mutex::new(opened.map(Arc::new)) }
    }

    async fn link(&self) -> Result<Arc<RedisLink>, StoreError> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.has_ended()) {
            return Ok(Arc::clone(link));
        }
        let nobody = Inbox::of_nobody();
        Ok(Arc::clone(link.insert(Arc::new(self.address.open(nobody).await?))))
    }

    /// As [`RedisLink::send`].
    pub(super) async fn send(&self, commands: Commands) -> Result<Vec<RedisReply>, StoreError> {
        let link = self.link().await?;
        let replies = link.send(commands).await;
        if let Err(StoreError::Closed(_) | StoreError::Elsewhere(_)) = &replies {
            // What comes late on it is nobody's; the next read opens another.
            self.link.lock().await.take_if(|of| Arc::ptr_eq(of, &link));
        }
        replies
    }

    /// Reads a hash (`HSCAN`) or a set (`SSCAN`), each element once, until `each` has enough of them.
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
                // What grows meanwhile is said twice.
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

/// A step of a scan: where the next begins, and the elements.
pub(super) fn page(reply: Option<&RedisReply>) -> Result<(&[u8], &[RedisReply]), StoreError> {
    match reply.map(RedisReply::list) {
        Some([next, elements]) => Ok((next.bytes().unwrap_or(CURSOR_0), elements.list())),
        _ => {
            let text = "what Redis answers to a scan is no answer";
            Err(StoreError::Refused(Condition::Failed, text.into()))
        }
    }
}
