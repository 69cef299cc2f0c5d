//! Calls into a loop from other threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use rustix::event::EventfdFlags;

use crate::core::context::Context;
use crate::core::handler::Handler;

type RemoteFn<H> = Box<dyn FnOnce(&mut H, &mut Context<<H as Handler>::Data>) + Send>;

/// Runs closures in a loop, from any thread. Clones refer to the same loop.
///
/// The doorbell is a descriptor, so threads with their own descriptor table must have it in theirs: create the pair
/// before starting them, and list the doorbell if they keep only some descriptors
/// ([`Descriptors::Own`](crate::Descriptors)).
pub struct Remote<H: Handler> {
    shared: Arc<Shared<H>>,
}

/// The receiving end of a [`Remote`], for [`EventLoop::with_inbox`](crate::EventLoop::with_inbox).
pub struct Inbox<H: Handler> {
    shared: Arc<Shared<H>>,
}

/// The loop was dropped; the call will not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event loop has been dropped")]
pub struct LoopGone;

struct Shared<H: Handler> {
    /// `None` once the loop was dropped.
    calls: Mutex<Option<Vec<RemoteFn<H>>>>,
    /// The doorbell was rung and the loop has not looked yet: no need to ring again.
    rung: AtomicBool,
    doorbell: OwnedFd,
}

/// Creates a [`Remote`] and its [`Inbox`].
///
/// # Errors
///
/// Those of `eventfd`: no descriptors left.
pub fn remote_pair<H: Handler>() -> io::Result<(Remote<H>, Inbox<H>)> {
    let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared = Arc::new(Shared {
        calls: Mutex::new(Some(Vec::new())),
        rung: AtomicBool::new(false),
        doorbell,
    });
    Ok((Remote { shared: Arc::clone(&shared) }, Inbox { shared }))
}

impl<H: Handler> Remote<H> {
    /// Runs a closure in the loop's next turn. Calls of one thread run in order. The queue is unbounded, so callers
    /// must bound calls that outside input causes.
    ///
    /// # Errors
    ///
    /// [`LoopGone`] when the loop was dropped. If the loop is dropped later, pending calls do not run.
    pub fn run(
        &self,
        call: impl FnOnce(&mut H, &mut Context<H::Data>) + Send + 'static,
    ) -> Result<(), LoopGone> {
        match &mut *self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(calls) => calls.push(Box::new(call)),
            None => return Err(LoopGone),
        }
        if !self.shared.rung.swap(true, Ordering::AcqRel) {
            self.wake();
        }
        Ok(())
    }

    /// Wakes the loop if it sleeps.
    pub fn wake(&self) {
        // Fails only when the counter is full, and then the loop is awake.
        let _ = rustix::io::write(&self.shared.doorbell, &1u64.to_ne_bytes());
    }

    /// Returns the descriptor that wakes the loop.
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }
}

impl<H: Handler> Inbox<H> {
    pub(crate) fn remote(&self) -> Remote<H> {
        Remote { shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared.doorbell.as_fd()
    }

    /// Takes the pending calls. The eventfd is registered edge-triggered and need not be read.
    pub(crate) fn take(&self) -> Vec<RemoteFn<H>> {
        // Before the queue is emptied: a call that arrives in between rings again.
        self.shared.rung.store(false, Ordering::Release);
        let mut calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl<H: Handler> Drop for Inbox<H> {
    fn drop(&mut self) {
        let calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Outside the lock: a closure may own a `Remote`.
        drop(calls);
    }
}

impl<H: Handler> Clone for Remote<H> {
    fn clone(&self) -> Remote<H> {
        Remote { shared: Arc::clone(&self.shared) }
    }
}

impl<H: Handler> fmt::Debug for Remote<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl<H: Handler> fmt::Debug for Inbox<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}
