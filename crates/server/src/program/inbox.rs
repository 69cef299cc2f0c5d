//! Messages to a worker from threads of the program, which have no endpoint on the bus.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::EventfdFlags;

use super::HttpResponse;
use crate::proxy::AnyDecision;

/// Receives the response of a call.
pub(crate) type OnResponse = Box<dyn FnOnce(&[u8]) + Send>;

/// A message to a worker.
pub(crate) enum InboxMessage {
    /// A later decision; `None`: it was dropped.
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

/// The messages to one worker. Its doorbell is created before the workers get separate descriptor tables.
#[derive(Debug)]
pub(crate) struct Inbox {
    messages: Mutex<VecDeque<InboxMessage>>,
    /// Whether the doorbell was rung and the worker has not taken messages since.
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
        // This fails only if the counter is full; the worker is then awake.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Returns the number of messages that the worker has not taken.
    pub(crate) fn len(&self) -> usize {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the doorbell. Workers register it edge-triggered, so it need not be read.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Takes the oldest messages, at most `max`. If there are more, it rings again.
    pub(crate) fn take(&self, max: usize) -> Vec<InboxMessage> {
        // Cleared before messages are taken, so that a concurrent sender rings again.
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
