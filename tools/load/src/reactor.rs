//! The part of an event loop that this crate and `dunlin-bench` share: one epoll instance, a timer with the kernel's
//! resolution, and the sockets to watch.
//!
//! It does not use `dunlin-net` because the server is what is measured: every system call and instruction of the
//! generator counts against the result. A wait is one `epoll_wait`; callers assign tokens and handle the events.

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

/// The timer's token. Its events only end a wait.
pub(crate) const TIMER: u64 = u64::MAX;
/// The token of a server's listener.
pub const LISTENER: u64 = u64::MAX - 1;
/// For a socket that is read and written, edge-triggered: the flags need not change as its buffers fill and empty.
pub const STREAM: Flags = Flags::IN.union(Flags::OUT).union(Flags::RDHUP).union(Flags::ET);
/// The end of a stream, in one direction or both. If it arrives together with data, no other event reports it.
pub const ENDS: Flags = Flags::RDHUP.union(Flags::HUP).union(Flags::ERR);

/// Events per wait, enough to make waits rare.
pub const EVENTS_MAX: usize = 1024;

/// The buffer for the events of one wait. It is separate from [`Reactor`], so that the reactor can be used while
/// iterating over the events.
#[allow(missing_debug_implementations, reason = "the kernel's record has none")]
pub struct Events(Vec<epoll::Event>);

impl Events {
    /// Allocates space for `events`; further ready events are returned by the next wait.
    pub fn with_capacity(events: usize) -> Self {
        Self(Vec::with_capacity(events))
    }

    /// Iterates over the events: token and flags of each.
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
    /// Opens an epoll instance.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot open epoll")?;
        Ok(Self { epoll, timer: None, armed_ns: 0 })
    }

    /// Watches a descriptor for events, which carry this token.
    ///
    /// # Errors
    /// When the kernel refuses.
    #[inline]
    pub fn watch(&self, fd: impl AsFd, token: u64, flags: Flags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)?)
    }

    /// Stops watching a descriptor that stays open.
    pub fn forget(&self, fd: impl AsFd) {
        // Fails only if it is not watched.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events, for at most `timeout_ns` if given, and returns their number.
    ///
    /// # Errors
    /// When the kernel fails; an interruption is no error.
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

    /// Ends a wait at `due_ns` with an event of `TIMER`. `now_ns` is the current time of the same clock, before
    /// `due_ns`.
    ///
    /// `epoll_wait` counts in milliseconds, which would make schedules and delays up to a millisecond late, and
    /// `epoll_pwait2` is not available on every supported kernel.
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
            // Edge-triggered, because the timer is never read.
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

/// Reduces this thread's timer slack to the minimum: the default of 50 µs would add to measured latencies.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn sleep_exactly() -> Result<(), Error> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
        .context("cannot set the timer slack")
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
}

/// Flags of every socket.
pub const NONBLOCKING: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Creates a non-blocking TCP socket for this address family.
///
/// # Errors
/// When no descriptor is left.
pub fn socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, NONBLOCKING, None)
}

/// Listens at an address. If `shared`, other threads may listen there too (`SO_REUSEPORT`).
///
/// # Errors
/// The message names the address.
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

/// Returns the address of a listener, with the port if the kernel chose it.
///
/// # Errors
/// When the kernel fails.
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
