//! Calls into a loop from other threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use rustix::event::EventfdFlags;

use crate::core::context::Context;
use crate::core::handler::Handler;

type RemoteFn<H> = Box<dyn FnOnce(&mut H, &mut Context<<H as Handler>::Data>) + Send>;

/// Runs closures in a loop, from any thread. Clones reach the same loop.
///
/// The doorbell is a descriptor: threads with a descriptor table of their own must have it in theirs, so
/// make the pair before starting them, and list it if they keep only some
/// ([`Descriptors::Own`](crate::Descriptors)).
pub struct Remote<H: Handler> {
    shared: Arc<Shared<H>>,
}

/// The receiving end of a [`Remote`], to be given to [`EventLoop::with_inbox`](crate::EventLoop::with_inbox).
pub struct Inbox<H: Handler> {
    shared: Arc<Shared<H>>,
}

/// The loop has been dropped; the call was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event loop has been dropped")]
pub struct LoopGone;

struct Shared<H: Handler> {
    /// `None` once the loop is gone.
    calls: Mutex<Option<Vec<RemoteFn<H>>>>,
    /// The doorbell has been rung and the loop has not looked yet: no need to ring again.
    rung: AtomicBool,
    doorbell: OwnedFd,
}

/// A [`Remote`] and the [`Inbox`] it leads to.
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
    /// Has the loop run a closure in its next turn. Calls of one thread are made in their order; the queue has
    /// no bound, so whoever produces calls from outside input bounds them.
    ///
    /// # Errors
    ///
    /// [`LoopGone`] when the loop has been dropped. A loop dropped later makes no call of those pending.
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

    /// The descriptor that wakes the loop.
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

    /// The calls waiting. The eventfd is registered edge-triggered: it need not be read.
    pub(crate) fn take(&self) -> Vec<RemoteFn<H>> {
        // Before the queue is emptied: a call that comes between rings again.
        self.shared.rung.store(false, Ordering::Release);
        let mut calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl<H: Handler> Drop for Inbox<H> {
    fn drop(&mut self) {
        let calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Outside the lock: what a call captured may hold a `Remote`.
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
