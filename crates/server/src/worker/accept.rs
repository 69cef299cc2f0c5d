//! Admission: the accept rate and the limits on connections.

use dunlin_net::{Admit, ConnId, Context, ListenerId};

use super::Worker;
use super::link::Link;
use super::timer::Timer;
use crate::admission::Admission;
use crate::metrics::Metric;

impl Worker<'_> {
    /// Accepts one connection, or none for a while: they wait in the backlogs.
    pub(super) fn handle_accept(&mut self, cx: &mut Context<Link>) -> Admit {
        let rate_per_s = self.settings.config.limits.accepts_per_s_max;
        let Some(pause_ms) = self.accepts.handle_accept(cx.now_ms(), rate_per_s) else {
            return Admit::Accept;
        };
        self.count(Metric::RefusedRate);
        let listeners: Vec<ListenerId> = cx.listeners().collect();
        listeners.into_iter().for_each(|listener| cx.pause_accept(listener));
        cx.run_after(pause_ms, Timer::Accept as u64);
        Admit::Pause
    }

    /// Accepts on every listener once the rate allows it.
    pub(super) fn accept_again(&mut self, cx: &mut Context<Link>) {
        let rate_per_s = self.settings.config.limits.accepts_per_s_max;
        if let Some(wait_ms) = self.accepts.handle_timer(cx.now_ms(), rate_per_s) {
            cx.run_after(wait_ms, Timer::Accept as u64);
            return;
        }
        let listeners: Vec<ListenerId> = cx.listeners().collect();
        listeners.into_iter().for_each(|listener| cx.resume_accept(listener));
    }

    /// Counts a connection just accepted against the limits, and closes it if one is exceeded.
    pub(super) fn admit(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let Some(peer) = cx.peer_addr(conn) else { return cx.abort(conn) };
        let limits = &self.settings.config.limits;
        let total_max = u64::from(limits.connections_max);
        let per_address_max = limits.connections_per_address_max;
        let refused = match self.state.admissions.admit(peer.ip(), total_max, per_address_max) {
            Admission::Granted => {
                let address = self.peers.intern(peer.ip());
                if let Some(link) = cx.data(conn) {
                    link.address = address;
                }
                return;
            }
            Admission::TotalReached => Metric::RefusedTotal,
            Admission::AddressReached => Metric::RefusedAddress,
        };
        self.count(refused);
        cx.abort(conn);
    }
}
