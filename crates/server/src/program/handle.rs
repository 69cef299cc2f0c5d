//! The server API for threads of the program.

use std::hash::BuildHasher;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::inbox::{Inbox, InboxMessage};
use crate::api::Method;

/// Most calls that wait for one worker; further ones are refused.
const WAITING_MAX: usize = 65_536;

/// The server API in this process. Clones use the same server.
///
/// Commands about one channel are executed in the order in which a thread calls them.
#[derive(Clone, Debug, Default)]
pub struct Handle {
    inboxes: Arc<OnceLock<Box<[Arc<Inbox>]>>>,
}

/// Why a call was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server has not started yet.
    #[error("the server does not serve yet")]
    NotServing,
    /// 65,536 calls already wait for the worker.
    #[error("so many calls wait already; call more slowly")]
    Overloaded,
    /// The API has no such method.
    #[error("the server API has no such method")]
    UnknownMethod,
}

impl Handle {
    /// Publishes to a channel. The result is not reported; use [`Handle::call`] to get it.
    ///
    /// # Errors
    ///
    /// Returns an error if the call was not made.
    pub fn publish(&self, channel: &str, data: impl Into<Value>) -> Result<(), CallError> {
        self.call("publish", &json!({"channel": channel, "data": data.into()}), |_| {})
    }

    /// Calls a method of the server API with the fields of its request. `then` receives the response,
    /// `{"result":…}` or `{"error":…}`, on a worker's thread and must not block.
    ///
    /// # Errors
    ///
    /// Returns an error if the call was not made.
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

    /// Returns the inboxes of the workers; `None` before they start.
    pub(crate) fn inboxes(&self) -> Option<&[Arc<Inbox>]> {
        self.inboxes.get().map(|inboxes| &**inboxes)
    }

    /// Creates the inboxes of the workers.
    ///
    /// # Errors
    ///
    /// There are no file descriptors left.
    pub(crate) fn open(&self, workers: usize) -> io::Result<()> {
        let inboxes = (0..workers).map(|_| Inbox::new().map(Arc::new));
        // Only called once.
        let _ = self.inboxes.set(inboxes.collect::<io::Result<_>>()?);
        Ok(())
    }

    /// Returns the descriptors that workers need in their descriptor tables.
    pub(crate) fn doorbells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.inboxes().unwrap_or_default().iter().map(|inbox| inbox.doorbell())
    }
}
