//! Descriptors that are not connections: doorbells, pipes, sockets of other libraries.
#![expect(unsafe_code, reason = "mio lends its epoll descriptor as a number only")]

use std::io;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use mio::Poll;
use mio::unix::SourceFd;
use rustix::event::epoll;

use super::context::Context;
use super::token::Token;

/// The readiness to be notified of.
///
/// ```
/// use dunlin_net::Interest;
///
/// let both = Interest::READABLE | Interest::WRITABLE;
/// let again_and_again = both.level();
/// assert_ne!(both, again_and_again);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// Readable, or closed by the other end.
    pub const READABLE: Interest = Interest(1);
    /// Writable.
    pub const WRITABLE: Interest = Interest(2);
    const LEVEL: u8 = 4;

    /// Makes it level-triggered: one event in every turn while the descriptor is ready. The default is edge-triggered:
    /// one event when it becomes ready.
    #[must_use]
    pub const fn level(self) -> Interest {
        Interest(self.0 | Interest::LEVEL)
    }

    fn has(self, other: u8) -> bool {
        self.0 & other != 0
    }

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, self.has(1));
        flags.set(epoll::EventFlags::OUT, self.has(2));
        flags.set(epoll::EventFlags::ET, !self.has(Interest::LEVEL));
        flags
    }
}

impl BitOr for Interest {
    type Output = Interest;

    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

/// The readiness of a foreign descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// It is readable, or the other end has closed.
    pub readable: bool,
    /// It is writable.
    pub writable: bool,
}

/// Foreign descriptors and their tokens, by place.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    places: Vec<Option<(u64, RawFd)>>,
}

impl Foreign {
    pub(crate) fn token(&self, place: u32) -> Option<u64> {
        self.places.get(place as usize).copied().flatten().map(|(token, _)| token)
    }

    fn find(&self, fd: RawFd) -> Option<usize> {
        self.places.iter().position(|place| place.is_some_and(|(_, raw)| raw == fd))
    }
}

/// Returns the descriptor of an epoll.
pub(crate) fn descriptor(poll: &Poll) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as `poll` is, which the result borrows.
    unsafe { BorrowedFd::borrow_raw(poll.as_raw_fd()) }
}

impl<D> Context<D> {
    /// Watches a descriptor that is not a connection. `on_fd` is called with `token` when it is ready. If it is already
    /// watched, the interest is replaced. The caller keeps it open until [`Context::deregister_fd`].
    ///
    /// # Errors
    ///
    /// Those of `epoll_ctl`, if the descriptor cannot be polled.
    pub fn register_fd(
        &mut self,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let raw = fd.as_raw_fd();
        let known = self.foreign.find(raw);
        let places_len = self.foreign.places.len();
        let place = known
            .or_else(|| self.foreign.places.iter().position(Option::is_none))
            .unwrap_or(places_len);
        let event: mio::Token = Token::Foreign(place as u32).into();
        let data = epoll::EventData::new_u64(event.0 as u64);
        let epoll = descriptor(&self.poll);
        match known {
            Some(_) => epoll::modify(epoll, fd, data, interest.flags())?,
            None => epoll::add(epoll, fd, data, interest.flags())?,
        }
        if place == places_len {
            self.foreign.places.push(None);
        }
        self.foreign.places[place] = Some((token, raw));
        Ok(())
    }

    /// Stops watching a descriptor.
    ///
    /// # Errors
    ///
    /// Those of `epoll_ctl`, if the descriptor is not registered.
    pub fn deregister_fd(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let raw = fd.as_raw_fd();
        self.poll.registry().deregister(&mut SourceFd(&raw))?;
        if let Some(place) = self.foreign.find(raw) {
            self.foreign.places[place] = None;
        }
        Ok(())
    }
}
