//! What threads that have no endpoint on the bus send to a worker: the program's own.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::EventfdFlags;

use super::HttpResponse;
use crate::proxy::AnyDecision;

/// Takes the response of a call.
pub(crate) type OnResponse = Box<dyn FnOnce(&[u8]) + Send>;

/// One thing sent.
pub(crate) enum InboxMessage {
    /// A decision that was to come later; `None`: there will be none.
    Decided { number: u64, decided: Option<AnyDecision> },
    /// The response to a request of a route.
    Responded { conn: u64, incarnation: u32, response: HttpResponse },
    /// A command of the server API.
    Call { method: crate::api::Method, params: Box<[u8]>, then: OnResponse },
}

impl fmt::Debug for InboxMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InboxMessage::Decided { .. } => "Decided",
            InboxMessage::Responded { .. } => "Responded",
            InboxMessage::Call { .. } => "Call",
        })
    }
}

/// The messages of one worker. Its doorbell is made before the workers take descriptor tables of their own.
#[derive(Debug)]
pub(crate) struct Inbox {
    messages: Mutex<VecDeque<InboxMessage>>,
    /// The doorbell was rung, and the worker has not looked yet.
    rung: AtomicBool,
    doorbell: OwnedFd,
}

impl Inbox {
    /// # Errors
    /// Those of `eventfd`.
    pub(crate) fn new() -> io::Result<Inbox> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox { messages: Mutex::default(), rung: AtomicBool::new(false), doorbell })
    }

    pub(crate) fn send(&self, message: InboxMessage) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.ring();
        }
    }

    fn ring(&self) {
        // It fails where the worker has been rung for more often than a number holds, and then it is awake.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// How many the worker has not taken yet.
    pub(crate) fn len(&self) -> usize {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Registered for its edges: it need not be read.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// The oldest that have come, at most so many: for the others it rings again.
    pub(crate) fn take(&self, max: usize) -> Vec<InboxMessage> {
        // Before the list is emptied: who sends between rings again.
        self.rung.store(false, Ordering::Release);
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = messages.len().min(max);
        let taken = messages.drain(..taken).collect();
        if !messages.is_empty() && !self.rung.swap(true, Ordering::AcqRel) {
            self.ring();
        }
        taken
    }
}
