//! Where a thread without sockets sleeps: an epoll with its doorbell in it, edge-triggered.

use std::{mem::MaybeUninit, os::fd::OwnedFd, time::Duration};

use dunlin_bus::Endpoint;
use rustix::event::{Timespec, epoll};

pub(crate) struct Bed(OwnedFd);

impl Bed {
    pub(crate) fn new<T>(endpoint: &Endpoint<T>) -> Bed {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, endpoint.doorbell(), epoll::EventData::new_u64(0), flags).unwrap();
        Bed(epoll)
    }

    /// Blocks until rung.
    pub(crate) fn sleep(&self) {
        while self.wait(None) == 0 {}
    }

    /// Whether it was rung since the last look.
    pub(crate) fn was_rung(&self) -> bool {
        self.wait(Some(Duration::ZERO)) > 0
    }

    fn wait(&self, timeout: Option<Duration>) -> usize {
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap());
        let mut events = [const { MaybeUninit::uninit() }; 4];
        epoll::wait(&self.0, &mut events, timeout.as_ref()).map_or(0, |(events, _)| events.len())
    }
}

/// The next message, asleep until it is there.
pub(crate) fn receive<T>(endpoint: &mut Endpoint<T>, bed: &Bed) -> (usize, T) {
    loop {
        if let Some(message) = endpoint.recv() {
            return message;
        }
        if endpoint.prepare_sleep() {
            bed.sleep();
        }
        endpoint.wake();
    }
}
