//! Rates and quanta of broadcasts, and a hand on those under way.

use std::sync::Arc;

use dunlin_config::Map;
use dunlin_hub::Now;

use super::Worker;
use crate::bus_message::{BroadcastCommand, BusMessage};
use crate::settings::Settings;

/// Where a worker stands with its [`FanoutScheduler`](crate::fanout_scheduler::FanoutScheduler).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has nothing to broadcast.
    Unasked,
    /// It may broadcast.
    Had,
    /// Others do; until it is called, what it has to broadcast does not keep it awake.
    Awaited,
}

impl Worker<'_> {
    /// True when a broadcast could go on now.
    pub(super) fn broadcasts_are_due(&self) -> bool {
        self.hub.flush_due_ms().is_some_and(|due_ms| due_ms <= self.now_ms)
    }

    /// Asks whether this worker may broadcast in this turn of its loop, and holds its broadcasts if it may not.
    pub(super) fn await_turn(&mut self) {
        let wants = self.broadcasts_are_due();
        if !wants && self.turn == Turn::Unasked || !self.state.fanout_scheduler.are_limited() {
            return;
        }
        let verdict = self.state.fanout_scheduler.poll(self.index, wants, self.state.uptime_ms());
        self.turn = match verdict.may {
            true => Turn::Had,
            false if wants => Turn::Awaited,
            false => Turn::Unasked,
        };
        if !verdict.may {
            self.hub.hold_broadcasts();
        }
        if let Some(next) = verdict.wake {
            // Refused by a full ring: it is awake then, or asks again by itself.
            let _ = self.endpoint.send(next, BusMessage::FanoutGranted);
        }
    }

    /// Brings the hub's rates from those of one snapshot to those of another; `None`: from none at all.
    pub(super) fn apply_pacing(&mut self, old: Option<&Settings>) {
        let settings = Arc::clone(&self.settings);
        let new = &settings.config;
        let now = Now { ms: self.now_ms, unix_ms: self.unix_ms() };
        self.hub.set_broadcast_quantum(new.limits.broadcast_quantum);
        self.hub.set_worker_pacing(now, pacing(&new.limits.broadcast_pacing));
        let without: Arc<str> = "".into();
        self.hub.set_pacing(now, &without, pacing(&new.channel.without_namespace.pacing));
        let none = Map::default();
        let old = old.map_or(&none, |old| &old.pacings);
        for (name, _, after) in settings.pacings.changes_from(old) {
            self.hub.set_pacing(now, name, after.map(|rates| pacing(rates)).unwrap_or_default());
        }
    }

    /// Does what the admin thread asks, and tells it what came of it.
    pub(super) fn broadcast_command(&mut self, request_id: u64, command: &BroadcastCommand) {
        let mut found = Vec::new();
        let acted = match command {
            BroadcastCommand::List => {
                found.extend(self.hub.broadcasts());
                Some(0)
            }
            BroadcastCommand::Pause(channel) => self.hub.pause_broadcast(channel).then_some(0),
            BroadcastCommand::Resume(channel) => self.hub.resume_broadcast(channel).then_some(0),
            BroadcastCommand::Cancel(channel) => self.hub.cancel_broadcast(channel),
        };
        let reply = BusMessage::BroadcastReply { request_id, worker: self.index, found, acted };
        // Refused by a full ring, this worker is one that kept silent.
        let _ = self.endpoint.send(self.state.admin_endpoint(), reply);
    }
}

fn pacing(of: &dunlin_config::Pacing) -> dunlin_hub::Pacing {
    dunlin_hub::Pacing {
        messages_per_s: of.messages_per_s,
        bytes_per_s: of.bytes_per_s,
        burst_ms: of.burst_ms,
        sessions_per_turn: of.sessions_per_turn,
    }
}
