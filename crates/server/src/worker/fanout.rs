//! Broadcasts: this worker's slot among those that share its cores, their rates, and commands about those under way.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use dunlin_config::Map;

use super::parts::FanoutGate;
use super::turn::Core;
use crate::message::admin::AdminMessage;
use crate::message::worker::{BroadcastCommand, WorkerMessage};
use crate::state::settings::Settings;

impl Core<'_> {
    /// True when a broadcast could go on now.
    pub(super) fn broadcasts_are_due(&self) -> bool {
        self.hub.flush_due_ms().is_some_and(|due_ms| due_ms <= self.clock.now().ms)
    }
}

/// The machine of broadcasts.
#[derive(Default)]
pub(super) struct Fanout {
    pub(super) gate: FanoutGate,
}

impl Fanout {
    /// Asks whether this worker may broadcast in this turn of its loop, and holds its broadcasts if it may not.
    pub(super) fn poll_fanout_slot(&mut self, core: &mut Core<'_>) {
        let (state, due) = (&core.state, core.broadcasts_are_due());
        let uptime_ms = || state.uptime_ms();
        let decision = self.gate.poll(&state.fanout_scheduler, core.index, due, uptime_ms);
        let Some(decision) = decision else { return };
        if !decision.granted {
            core.hub.hold_broadcasts();
        }
        if let Some(next) = decision.wake {
            // A worker whose ring is full is awake, or asks again by itself.
            let _ = core.endpoint.send(core.state.bus.worker(next), WorkerMessage::FanoutGranted);
        }
    }

    /// Says which channels are behind, whose publishers wait on all workers.
    pub(super) fn publish_pressure(&mut self, core: &mut Core<'_>) {
        let behind = core.hub.channels_behind().map(|channel| &**channel);
        self.gate.report_behind(&core.state.pressure, core.index, behind);
    }

    /// Brings the hub's rates from those of one snapshot to those of another; `None`: from none at all.
    pub(super) fn apply_pacing(&mut self, core: &mut Core<'_>, old: Option<&Settings>) {
        let settings = core.settings.snapshot();
        let (new, now) = (&settings.config, core.clock.now());
        let quantum = NonZeroU32::new(new.limits.broadcast_quantum);
        core.hub.set_broadcast_quantum(quantum);
        core.hub.set_worker_pacing(now, pacing(&new.limits.broadcast_pacing));
        let without: Arc<str> = "".into();
        core.hub.set_pacing(now, &without, pacing(&new.channel.without_namespace.pacing));
        let none = Map::default();
        let old = old.map_or(&none, |old| &old.pacings);
        for (name, _, after) in settings.pacings.changes_from(old) {
            core.hub.set_pacing(now, name, after.map(|rates| pacing(rates)).unwrap_or_default());
        }
    }

    /// Carries out a command of the admin thread, and replies.
    pub(super) fn broadcast_command(
        &mut self,
        core: &mut Core<'_>,
        request_id: u64,
        command: &BroadcastCommand,
    ) {
        let mut found = Vec::new();
        let acted = match command {
            BroadcastCommand::List => {
                found.extend(core.hub.broadcasts());
                Some(0)
            }
            BroadcastCommand::Pause(channel) => core.hub.pause_broadcast(channel).then_some(0),
            BroadcastCommand::Resume(channel) => core.hub.resume_broadcast(channel).then_some(0),
            BroadcastCommand::Cancel(channel) => core.hub.cancel_broadcast(channel),
        };
        let worker = core.index;
        core.send_to_admin(AdminMessage::BroadcastReply { request_id, worker, found, acted });
    }
}

fn pacing(of: &dunlin_config::Pacing) -> dunlin_hub::Pacing {
    dunlin_hub::Pacing {
        messages_per_s: NonZeroU64::new(of.messages_per_s),
        bytes_per_s: NonZeroU64::new(of.bytes_per_s),
        burst_ms: of.burst_ms,
        sessions_per_turn: NonZeroU32::new(of.sessions_per_turn),
    }
}
