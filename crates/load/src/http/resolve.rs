//! Names to addresses, and which of them answers first (happy eyeballs, RFC 8305).
//!
//! It happens once, before the threads of the generator start: no loop ever waits for a resolver.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU64;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use dunlin_net::{ConnId, ConnectConfig, Context, EventLoop, Handler, LoopConfig, Tcp};
use dunlin_wire::dial::interleave;

use crate::Error;

/// The addresses of a host, families by turns, the family that the resolver puts first leading.
///
/// # Errors
/// A name that does not resolve, or not within `timeout`: the system's resolver has no limit of its own that a
/// person would wait for.
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
    // Left alone when it takes too long: nothing can wake it, and it holds nothing.
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

/// Puts the address that answers first in front. What answers nowhere within `timeout` stays as it was: the run will say
/// why.
pub(super) fn race(mut addresses: Vec<SocketAddr>, timeout: Duration) -> Vec<SocketAddr> {
    if addresses.len() < 2 {
        return addresses;
    }
    let timeout_ms = NonZeroU64::new(timeout.as_millis() as u64);
    let config = ConnectConfig { timeout_ms, ..ConnectConfig::default() };
    let mut first = First(None);
    // Without a loop, or a socket, nothing is known of them: that is as if none had answered.
    let _ = EventLoop::new(LoopConfig::default()).and_then(|mut event_loop| {
        event_loop.context().connect_any(&addresses, &config)?;
        event_loop.run(&mut first)
    });
    if let Some(at) = addresses.iter().position(|&address| Some(address) == first.0) {
        addresses[..=at].rotate_right(1);
    }
    addresses
}

/// The address that answered.
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
        // A listener that accepts nobody and whose backlog is full: the kernel does not answer at all.
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
        // Nobody answers: as it was, and no waiting beyond the timeout.
        let nobody = vec![refused, silent_addr];
        assert_eq!(race(nobody.clone(), Duration::from_millis(300)), nobody);
    }
}
