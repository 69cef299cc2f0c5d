//! An epoll instance with an endpoint's doorbell, edge-triggered, for threads without sockets.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::{mem::MaybeUninit, os::fd::OwnedFd, time::Duration};

use dunlin_bus::Endpoint;
use rustix::event::{Timespec, epoll};

pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new<T>(endpoint: &Endpoint<T>) -> Epoll {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&fd, endpoint.doorbell(), epoll::EventData::new_u64(0), flags).unwrap();
        Epoll(fd)
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
pub(crate) fn receive<T>(endpoint: &mut Endpoint<T>, epoll: &Epoll) -> (usize, T) {
    loop {
        if let Some(message) = endpoint.recv() {
            return message;
        }
        if endpoint.prepare_sleep() {
            epoll.sleep();
        }
        endpoint.wake();
    }
}
