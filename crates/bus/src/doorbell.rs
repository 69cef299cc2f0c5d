//! The doorbell of a sleeping endpoint.

#[cfg(not(loom))]
pub(crate) use eventfd::Doorbell;
#[cfg(loom)]
pub(crate) use model::Doorbell;

#[cfg(not(loom))]
mod eventfd {
    use std::{
        io,
        os::fd::{AsFd, BorrowedFd, OwnedFd},
    };

    use rustix::event::EventfdFlags;

    /// An eventfd that is written and never read.
    ///
    /// Registered edge-triggered, each write is a separate event, so the counter is never reset. It
    /// overflows after 2^64 − 2 wakes.
    #[derive(Debug)]
    pub(crate) struct Doorbell(OwnedFd);

    impl Doorbell {
        pub(crate) fn new() -> io::Result<Doorbell> {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            Ok(Doorbell(rustix::event::eventfd(0, flags)?))
        }

        pub(crate) fn ring(&self) -> io::Result<()> {
            rustix::io::retry_on_intr(|| rustix::io::write(&self.0, &1u64.to_ne_bytes()))?;
            Ok(())
        }

        pub(crate) fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(loom)]
#[allow(clippy::unwrap_used, reason = "a model that fails may panic")]
mod model {
    use std::io;

    use loom::sync::{Condvar, Mutex};

    /// An edge-triggered eventfd for loom: a ring is remembered until a wait.
    #[derive(Debug)]
    pub(crate) struct Doorbell {
        rung: Mutex<bool>,
        changed: Condvar,
    }

    impl Doorbell {
        pub(crate) fn new() -> io::Result<Doorbell> {
            Ok(Doorbell { rung: Mutex::new(false), changed: Condvar::new() })
        }

        pub(crate) fn ring(&self) -> io::Result<()> {
            *self.rung.lock().unwrap() = true;
            self.changed.notify_one();
            Ok(())
        }

        #[cfg(test)]
        pub(crate) fn wait(&self) {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.changed.wait(rung).unwrap();
            }
            *rung = false;
        }
    }
}
