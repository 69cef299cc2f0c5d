//! The event loop's half that every loop of this crate and of `dunlin-bench` needs: one epoll instance, a timer as fine as
//! the kernel's, and the sockets to put into it.
//!
//! Why not `dunlin-net`: what is measured is the server, so each call and each instruction of a generator counts against
//! the figure. A wait is one `epoll_wait`; who is asked for by a token and what happens then is the caller's.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::{Context, Error};

pub use epoll::EventFlags as Flags;

/// The token of the timer; it asks for nothing but another turn.
pub(crate) const TIMER: u64 = u64::MAX;
/// For the listener of a server.
pub const LISTENER: u64 = u64::MAX - 1;
/// For a socket that is read and written, edge-triggered: nothing is changed as its buffers fill and empty.
pub const STREAM: Flags = Flags::IN.union(Flags::OUT).union(Flags::RDHUP).union(Flags::ET);
/// The end of a stream, in one direction or both. Where it comes together with bytes no other event reports it.
pub const ENDS: Flags = Flags::RDHUP.union(Flags::HUP).union(Flags::ERR);

/// Events of one wait that make calls of it rare.
pub const EVENTS_MAX: usize = 1024;

/// The events of one wait, where the kernel writes them. They are no part of [`Reactor`], so that whoever goes through them
/// has the rest at hand.
#[allow(missing_debug_implementations, reason = "the kernel's record has none")]
pub struct Events(Vec<epoll::Event>);

impl Events {
    /// Room for so many; what is ready beyond them comes with the next wait.
    pub fn with_capacity(events: usize) -> Self {
        Self(Vec::with_capacity(events))
    }

    /// Token and flags of each.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (u64, Flags)> {
        self.0.iter().map(|event| (event.data.u64(), event.flags))
    }
}

/// An epoll instance.
#[derive(Debug)]
pub struct Reactor {
    epoll: OwnedFd,
    timer: Option<OwnedFd>,
    armed_ns: u64,
}

impl Reactor {
    /// # Errors
    /// When no descriptor is left for it.
    pub fn new() -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot open epoll")?;
        Ok(Self { epoll, timer: None, armed_ns: 0 })
    }

    /// Asks for events of a descriptor, each with this token.
    ///
    /// # Errors
    /// What the kernel says.
    #[inline]
    pub fn watch(&self, fd: impl AsFd, token: u64, flags: Flags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)?)
    }

    /// Asks for no more events of a descriptor that stays open.
    pub fn forget(&self, fd: impl AsFd) {
        // Refused only if it is not watched.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events, for so many nanoseconds if it is said, and gives their number.
    ///
    /// # Errors
    /// What the kernel says; an interruption is no error.
    #[inline]
    pub fn wait(&self, timeout_ns: Option<u64>, events: &mut Events) -> Result<usize, Error> {
        events.0.clear();
        let timeout = timeout_ns.map(timespec);
        match epoll::wait(&self.epoll, spare_capacity(&mut events.0), timeout.as_ref()) {
            Ok(ready) => Ok(ready),
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(Error::io("cannot wait for events", error)),
        }
    }

    /// Ends a wait at `due_ns` of a clock that says `now_ns`, which must be earlier, with an event of `TIMER`.
    ///
    /// `epoll_wait` counts in milliseconds, and its finer successor is not there on every kernel Dunlin runs on: a schedule
    /// would leave half a millisecond late, and a delay be that much longer.
    ///
    /// # Errors
    /// When no descriptor is left for the timer.
    pub fn wake_at(&mut self, due_ns: u64, now_ns: u64) -> Result<(), Error> {
        if self.armed_ns == due_ns {
            return Ok(());
        }
        if self.timer.is_none() {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
                .context("cannot open a timer")?;
            // Edge-triggered: it is never read.
            self.watch(&timer, TIMER, Flags::IN | Flags::ET).context("cannot watch a timer")?;
            self.timer = Some(timer);
        }
        let Some(timer) = &self.timer else { return Ok(()) };
        self.armed_ns = due_ns;
        let it_value = timespec(due_ns.saturating_sub(now_ns).max(1));
        let value = Itimerspec { it_interval: Timespec::default(), it_value };
        rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &value)
            .context("cannot set a timer")?;
        Ok(())
    }
}

/// Lets this thread sleep as exactly as the kernel can: 50 µs of the default slack would be the generator's, not the
/// server's.
///
/// # Errors
/// What the kernel says.
pub(crate) fn sleep_exactly() -> Result<(), Error> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
        .context("cannot set the timer slack")
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
}

/// What every socket here is.
pub const NONBLOCKING: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A TCP socket for this address, which does not block.
///
/// # Errors
/// When no descriptor is left for it.
pub fn socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, NONBLOCKING, None)
}

/// Listens, if `shared` at an address where other threads listen too (`SO_REUSEPORT`).
///
/// # Errors
/// Names the address.
pub fn listen(address: SocketAddr, shared: bool) -> Result<OwnedFd, Error> {
    let open = || {
        let listener = socket(address)?;
        sockopt::set_socket_reuseaddr(&listener, true)?;
        if shared {
            sockopt::set_socket_reuseport(&listener, true)?;
        }
        rustix::net::bind(&listener, &address)?;
        rustix::net::listen(&listener, 4096)?;
        Ok::<_, Errno>(listener)
    };
    open().context(format!("cannot listen on {address}"))
}

/// Where a listener listens, with its port if the kernel chose that.
///
/// # Errors
/// What the kernel says.
pub(crate) fn address_of(listener: &OwnedFd) -> Result<SocketAddr, Error> {
    let name = rustix::net::getsockname(listener).context("cannot read the own address")?;
    SocketAddr::try_from(name).context("cannot read the own address")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_socket_and_the_timer_end_a_wait_each_by_its_token() {
        let (mut reactor, mut events) = (Reactor::new().unwrap(), Events::with_capacity(4));
        let listener = listen(([127, 0, 0, 1], 0).into(), false).unwrap();
        reactor.watch(&listener, LISTENER, Flags::IN).unwrap();
        assert_eq!(reactor.wait(Some(0), &mut events).unwrap(), 0);
        let _client = std::net::TcpStream::connect(address_of(&listener).unwrap()).unwrap();
        assert_eq!(reactor.wait(None, &mut events).unwrap(), 1);
        assert_eq!(events.iter().next().unwrap().0, LISTENER);
        reactor.forget(&listener);
        let clock = Clock::new();
        let now_ns = clock.now_ns();
        reactor.wake_at(now_ns + 1_000_000, now_ns).unwrap();
        assert_eq!(reactor.wait(None, &mut events).unwrap(), 1);
        assert_eq!(events.iter().next().unwrap().0, TIMER);
        assert!(clock.now_ns() >= now_ns + 1_000_000);
    }
}
