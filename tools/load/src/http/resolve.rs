//! Resolves names, and finds the address that connects first (Happy Eyeballs, RFC 8305).
//!
//! This is done once, before the threads of the generator start, so no event loop waits for a resolver.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU64;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use dunlin_net::{ConnId, ConnectConfig, Context, EventLoop, Handler, LoopConfig, Tcp};
use dunlin_wire::dial::interleave;

use crate::Error;

/// Returns the addresses of a host with the families alternating, beginning with the resolver's first.
///
/// # Errors
/// A name that does not resolve within `timeout`: the system's resolver may take much longer.
pub(super) fn addresses(
    host: &str,
    port: u16,
    timeout: Duration,
) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let name = host.to_owned();
    let (done, resolved) = sync_channel(1);
    // Detached if it takes too long: it cannot be interrupted, and holds no resources that matter.
    std::thread::spawn(move || {
        let addresses = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
        let _ = done.send(addresses);
    });
    let wrong = |why: &str| {
        Error::new(format!(
            "the name {host} does not resolve: {why}; check its spelling and the resolver, or give an address"
        ))
    };
    match resolved.recv_timeout(timeout) {
        Ok(Ok(addresses)) => Some(interleave(addresses))
            .filter(|addresses| !addresses.is_empty())
            .ok_or_else(|| wrong("it has no address")),
        Ok(Err(error)) => Err(wrong(&error.to_string())),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(wrong(&format!(
            "the resolver said nothing for {timeout:?}, as long as --connect-timeout allows"
        ))),
    }
}

/// Moves the address that connects first to the front. Keeps the order if none connects within `timeout`: the run will
/// report why.
pub(super) fn race(mut addresses: Vec<SocketAddr>, timeout: Duration) -> Vec<SocketAddr> {
    if addresses.len() < 2 {
        return addresses;
    }
    let timeout_ms = NonZeroU64::new(timeout.as_millis() as u64);
    let config = ConnectConfig { timeout_ms, ..ConnectConfig::default() };
    let mut first = First(None);
    // If there is no event loop or no socket, keep the order, as if no address had connected.
    let _ = EventLoop::new(LoopConfig::default()).and_then(|mut event_loop| {
        event_loop.context().connect_any(&addresses, &config)?;
        event_loop.run(&mut first)
    });
    if let Some(at) = addresses.iter().position(|&address| Some(address) == first.0) {
        addresses[..=at].rotate_right(1);
    }
    addresses
}

/// The address that connected first.
struct First(Option<SocketAddr>);

impl Handler for First {
    type Data = ();
    type Protocols = Tcp;

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.0 = cx.peer_addr(conn);
        cx.abort(conn);
        cx.stop();
    }

    fn on_connect_failed(&mut self, cx: &mut Context<()>, _: ConnId, _: (), _: &io::Error) {
        cx.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn an_address_is_not_resolved_and_a_name_that_is_none_is_reported() {
        let here: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!(addresses("::1", 80, Duration::ZERO).unwrap(), [here]);
        let error = addresses("no-such-name.invalid", 80, TIMEOUT).unwrap_err().to_string();
        assert!(error.contains("no-such-name.invalid does not resolve"), "{error}");
    }

    #[test]
    fn a_dead_or_silent_address_does_not_hold_up_the_one_that_answers() {
        let alive = TcpListener::bind("127.0.0.1:0").unwrap();
        let alive_addr = alive.local_addr().unwrap();
        let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // A listener that never accepts and has a full backlog: the kernel does not answer at all.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&silent, 0).unwrap();
        let silent_addr = silent.local_addr().unwrap();
        let filling: Vec<_> = (0..4)
            .filter_map(|_| {
                TcpStream::connect_timeout(&silent_addr, Duration::from_millis(50)).ok()
            })
            .collect();
        assert!(filling.len() < 4, "the backlog is full");
        for first in [silent_addr, refused] {
            assert_eq!(race(vec![first, alive_addr], TIMEOUT), [alive_addr, first]);
        }
        // No address answers: the order is kept, and the timeout bounds the wait.
        let nobody = vec![refused, silent_addr];
        assert_eq!(race(nobody.clone(), Duration::from_millis(300)), nobody);
    }
}
