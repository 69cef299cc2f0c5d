//! The bounds of a worker on what it accepts: rates of connections and TLS handshakes, and the number of descriptors.

use dunlin_config::Limits;

use super::{AcceptGate, AddressRates};
use crate::limits::admission::CountedAddress;
use crate::metrics::log_gate::LogGate;

/// The accept limits of one worker.
pub(crate) struct AcceptLimits {
    connections: AcceptGate,
    handshakes: AcceptGate,
    handshake_rates: AddressRates,
    /// The number of connections that the descriptors suffice for.
    connections_max: usize,
    log: LogGate,
}

/// The decision about a TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// The rate of its address is used up.
    Refused,
    /// It begins. `pause_ms`: how long later ones wait in the backlogs.
    Begins { pause_ms: Option<u64> },
}

impl AcceptLimits {
    pub(crate) fn new(
        limits: &Limits,
        workers: usize,
        connections_max: usize,
        seed: u64,
    ) -> AcceptLimits {
        AcceptLimits {
            connections: AcceptGate::new(limits.accepts_per_s_max, workers),
            handshakes: AcceptGate::new(limits.handshakes_per_s_max, workers),
            handshake_rates: AddressRates::new(seed, workers),
            connections_max,
            log: LogGate::default(),
        }
    }

    /// Whether there is a descriptor for one more connection.
    pub(crate) fn has_room(&self, connections: usize) -> bool {
        connections < self.connections_max
    }

    /// Of so many connections that may be unauthenticated, those that leave room for others.
    pub(crate) fn unauthenticated_max(&self, share: usize) -> usize {
        share.min(self.connections_max / 2)
    }

    /// Counts an accepted connection. `Some`: how long later ones wait in the backlogs, in milliseconds.
    pub(crate) fn handle_accept(&mut self, now_ms: u64, limits: &Limits) -> Option<u64> {
        self.connections.handle_accept(now_ms, limits.accepts_per_s_max)
    }

    /// Handles the timer of the listeners' pause. `Some`: the milliseconds by which the pause is prolonged.
    pub(crate) fn handle_accept_timer(&mut self, now_ms: u64, limits: &Limits) -> Option<u64> {
        self.connections.handle_timer(now_ms, limits.accepts_per_s_max)
    }

    /// Decides about a TLS handshake; `None`: the peer is a proxy, whose own rate is not bounded.
    pub(crate) fn handle_handshake(
        &mut self,
        now_ms: u64,
        address: Option<CountedAddress>,
        limits: &Limits,
    ) -> Handshake {
        let rate_per_s = limits.handshakes_per_address_per_s_max;
        let has_own = |address| self.handshake_rates.take(address, now_ms, rate_per_s);
        if !address.is_none_or(has_own) {
            return Handshake::Refused;
        }
        let pause_ms = self.handshakes.handle_accept(now_ms, limits.handshakes_per_s_max);
        Handshake::Begins { pause_ms }
    }

    /// Handles the timer of the TLS listeners' pause. `Some`: the milliseconds by which the pause is prolonged.
    pub(crate) fn handle_handshake_timer(&mut self, now_ms: u64, limits: &Limits) -> Option<u64> {
        self.handshakes.handle_timer(now_ms, limits.handshakes_per_s_max)
    }

    /// Counts a failed accept. `Some`: this may be logged, with the number of those not logged before it.
    pub(crate) fn handle_failure(&mut self, now_ms: u64) -> Option<u64> {
        self.log.pass(now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_handshakes_and_all_together_have_theirs() {
        let address = CountedAddress::of([192, 0, 2, 1].into(), 64);
        let limits = Limits {
            handshakes_per_s_max: 5,
            handshakes_per_address_per_s_max: 2,
            ..Limits::default()
        };
        let mut accepts = AcceptLimits::new(&limits, 1, 10, 7);
        let begins = Handshake::Begins { pause_ms: None };
        assert_eq!(accepts.handle_handshake(0, Some(address), &limits), begins);
        assert_eq!(accepts.handle_handshake(0, Some(address), &limits), begins);
        let refused = accepts.handle_handshake(0, Some(address), &limits);
        assert_eq!(refused, Handshake::Refused, "which takes nothing from the others");
        // A proxy has no rate of its own: it goes on until all together have had theirs.
        let paused = (0..10).find_map(|_| match accepts.handle_handshake(0, None, &limits) {
            Handshake::Begins { pause_ms } => pause_ms,
            Handshake::Refused => panic!("a proxy is not refused"),
        });
        let pause_ms = paused.expect("the rate of all is used up");
        assert!(accepts.handle_handshake_timer(0, &limits).is_some());
        assert_eq!(accepts.handle_handshake_timer(pause_ms, &limits), None);
        assert_eq!(accepts.handle_accept(0, &limits), None, "connections have a rate of their own");
    }

    #[test]
    fn descriptors_bound_connections_and_half_of_them_those_without_a_name() {
        let accepts = AcceptLimits::new(&Limits::default(), 1, 10, 7);
        assert!(accepts.has_room(9) && !accepts.has_room(10));
        assert_eq!((accepts.unauthenticated_max(3), accepts.unauthenticated_max(9)), (3, 5));
    }
}
