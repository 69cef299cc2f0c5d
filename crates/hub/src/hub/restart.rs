//! Restarts of other workers.

use super::Hub;
use crate::config::Now;
use crate::error::Error;
use crate::message::HubMessageKind;
use crate::session_id::SessionId;

impl Hub {
    /// Handles the restart of a worker with this `incarnation`; its former state is lost. Its home channels
    /// begin a new epoch (their subscribers here are unsubscribed with a code after which they subscribe
    /// again), its sessions leave presence, and requests to it fail. The first message of the restarted hub
    /// has the same effect; the later of the two is ignored.
    pub fn handle_worker_restarted(&mut self, now: Now, worker: u8, incarnation: u32) {
        self.now = now;
        if self.is_self(worker) {
            return;
        }
        if let Some(known) = self.peers.get_mut(usize::from(worker))
            && known.is_none_or(|known| known < incarnation)
        {
            *known = Some(incarnation);
            self.inbound.push_back((worker, HubMessageKind::Restarted));
        }
        self.run();
    }

    pub(super) fn handle_restart(&mut self, worker: u8) {
        for key in self.requests.keys(|waiter| waiter.waits_for_home(worker)) {
            self.fail_request(self.requests.id(key), Error::WorkerRestarted);
        }
        // A scatter-gather needs no reply of a dead worker: its sessions are gone.
        for key in self.requests.keys(|waiter| waiter.is_gather()) {
            let request = self.requests.id(key);
            if let Some(gather) = self.requests.gather_mut(request)
                && gather.waiting.remove(worker)
                && gather.waiting.is_empty()
            {
                self.finish_gather(request);
            }
        }

        let orphans: Vec<(u32, u32)> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.home == worker && channel.joined)
            .map(|(at, channel)| (at, channel.incarnation))
            .collect();
        for (at, incarnation) in orphans {
            // A gap can remove another channel: it may disconnect that channel's last subscriber.
            if self.channels.get(at).is_some_and(|channel| channel.incarnation == incarnation) {
                self.gap(at);
            }
        }

        self.forget_cursors_of(worker);
        self.remote_members.forget_worker(worker);
        for at in self.homes.indices() {
            if self.homes.get(at).is_none() {
                continue;
            }
            self.forget_waiting(at, worker, None);
            self.drop_interest(at, worker);
            let members = self.homes[at].members.iter().flat_map(|members| members.sessions());
            let gone: Vec<SessionId> =
                members.filter(|session| session.worker() == worker).collect();
            for session in gone {
                self.remove_member(at, session);
            }
            self.remove_if_empty(at);
        }
    }
}
