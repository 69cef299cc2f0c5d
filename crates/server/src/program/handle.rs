//! The server API for the program itself, from any of its threads.

use std::hash::BuildHasher;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::inbox::{Inbox, InboxMessage};
use crate::api::Method;

/// Calls that one worker has not taken yet, before further ones are refused.
const WAITING_MAX: usize = 65_536;

/// The server API in this process. Clones reach the same server.
///
/// Commands about one channel are carried out in the order in which one thread calls them.
#[derive(Clone, Debug, Default)]
pub struct Handle {
    inboxes: Arc<OnceLock<Box<[Arc<Inbox>]>>>,
}

/// A call that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server does not serve yet.
    #[error("the server does not serve yet")]
    NotServing,
    /// 65,536 calls wait already.
    #[error("so many calls wait already; call more slowly")]
    Overloaded,
    /// The API has no such method.
    #[error("the server API has no such method")]
    UnknownMethod,
}

impl Handle {
    /// Publishes into a channel. Whether that succeeds is not reported: see [`Handle::call`].
    ///
    /// # Errors
    /// The call was not made.
    pub fn publish(&self, channel: &str, data: impl Into<Value>) -> Result<(), CallError> {
        self.call("publish", &json!({"channel": channel, "data": data.into()}), |_| {})
    }

    /// Calls a method of the server API with the fields of its request. `then` gets the response, `{"result":…}` or
    /// `{"error":…}`, on a worker's thread: it must not block.
    ///
    /// # Errors
    /// The call was not made.
    pub fn call(
        &self,
        method: &str,
        params: &Value,
        then: impl FnOnce(&[u8]) + Send + 'static,
    ) -> Result<(), CallError> {
        let method = Method::find(method).map_err(|_| CallError::UnknownMethod)?;
        let inboxes = self.inboxes().ok_or(CallError::NotServing)?;
        let channel = params.get("channel").and_then(Value::as_str).unwrap_or_default();
        let hash = foldhash::fast::FixedState::default().hash_one(channel);
        let inbox = &inboxes[hash as usize % inboxes.len()];
        if inbox.len() >= WAITING_MAX {
            return Err(CallError::Overloaded);
        }
        let params = params.to_string().into_bytes().into();
        inbox.send(InboxMessage::Call { method, params, then: Box::new(then) });
        Ok(())
    }

    /// Those of the workers, once they are about to start.
    pub(crate) fn inboxes(&self) -> Option<&[Arc<Inbox>]> {
        self.inboxes.get().map(|inboxes| &**inboxes)
    }

    /// Makes the inboxes of so many workers.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn open(&self, workers: usize) -> io::Result<()> {
        let inboxes = (0..workers).map(|_| Inbox::new().map(Arc::new));
        // It is opened once.
        let _ = self.inboxes.set(inboxes.collect::<io::Result<_>>()?);
        Ok(())
    }

    /// What has to be in the workers' descriptor tables.
    pub(crate) fn doorbells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.inboxes().unwrap_or_default().iter().map(|inbox| inbox.doorbell())
    }
}
