//! Decides which address of a name to connect to next, and when (happy eyeballs, RFC 8305). The caller has the sockets
//! and the clock.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// Time in milliseconds until the next attempt starts while none has succeeded (RFC 8305 §8).
pub const ATTEMPT_DELAY_MS: u64 = 250;

/// The addresses of one name, tried in order: the next attempt starts before the previous one has failed (RFC 8305 §5).
///
/// ```
/// use dunlin_wire::dial::{Next, Race};
///
/// let [a, b, c] = ["[::1]:80", "127.0.0.1:80", "127.0.0.2:80"].map(|a| a.parse().unwrap());
/// let mut race = Race::new([a, b, c], 250);
/// assert_eq!(race.poll(0), Next::Connect(a));
/// assert_eq!(race.poll(0), Next::Wait(Some(250)));
/// assert_eq!(race.poll(250), Next::Connect(b));
/// race.handle_failure();
/// assert_eq!(race.poll(260), Next::Connect(c), "a failed attempt is followed at once");
/// assert_eq!(race.poll(900), Next::Wait(None), "two are under way, and there is no other address");
/// race.handle_failure();
/// race.handle_failure();
/// assert_eq!(race.poll(900), Next::Failed);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Race {
    left: VecDeque<SocketAddr>,
    under_way: usize,
    next_ms: u64,
    delay_ms: u64,
}

/// What to do now, from [`Race::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Start an attempt to this address, and poll again.
    Connect(SocketAddr),
    /// Wait for the attempts in progress. Poll again when one fails, or at this time in milliseconds.
    Wait(Option<u64>),
    /// Every address was tried, and every attempt failed.
    Failed,
}

impl Race {
    /// Starts a race over addresses, best first, with a delay in milliseconds between attempts.
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>, delay_ms: u64) -> Race {
        Race { left: addresses.into_iter().collect(), under_way: 0, next_ms: 0, delay_ms }
    }

    /// Returns what to do at `now_ms` of a monotonic clock. The first attempt that succeeds ends the race; the caller
    /// drops the others.
    pub fn poll(&mut self, now_ms: u64) -> Next {
        if (self.under_way == 0 || now_ms >= self.next_ms)
            && let Some(address) = self.left.pop_front()
        {
            self.under_way += 1;
            self.next_ms = now_ms + self.delay_ms;
            return Next::Connect(address);
        }
        match self.under_way {
            0 => Next::Failed,
            _ => Next::Wait((!self.left.is_empty()).then_some(self.next_ms)),
        }
    }

    /// Records that an attempt failed, so that the next one starts at once.
    pub fn handle_failure(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.next_ms = 0;
    }
}

/// Orders addresses so that the families alternate, beginning with the family of the first one (RFC 8305 §4).
pub fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut leading, mut others): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let mut ordered = Vec::new();
    while !(leading.is_empty() && others.is_empty()) {
        ordered.extend(leading.pop_front().into_iter().chain(others.pop_front()));
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate() {
        let [a, b, c, x, y] = ["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1", "10.0.0.2:1"]
            .map(|address| address.parse::<SocketAddr>().expect("an address"));
        assert_eq!(interleave(vec![a, b, c, x, y]), [a, x, b, y, c]);
        assert_eq!(interleave(vec![x, y, a]), [x, a, y]);
        assert_eq!(interleave(vec![]), []);
    }

    #[test]
    fn a_race_without_addresses_has_failed() {
        assert_eq!(Race::default().poll(0), Next::Failed);
    }
}
