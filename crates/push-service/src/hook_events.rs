//! Outcomes from the feed as webhook events.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use dunlin_config::HookEventKind;
use dunlin_webhooks::{FilterCache, HookEvent, HookEventBody};

use super::thread::Shared;
use crate::clock::unix_ms;
use crate::message::PushOutput;

/// Most events on their way to the bus. Further ones are dropped and hooks are notified of their number; the feed has
/// all.
const EVENTS_MAX: u64 = 16_384;

/// The filter of events that hooks want, and counters of queued and dropped events.
#[derive(Default)]
pub(super) struct HookEvents {
    filter: Mutex<FilterCache>,
    queued: AtomicU64,
    dropped: AtomicU64,
}

impl std::fmt::Debug for HookEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HookEvents").field("queued", &self.queued).finish_non_exhaustive()
    }
}

impl HookEvents {
    /// Handles that an event was sent over the bus.
    pub(super) fn handle_sent(&self) {
        self.queued.fetch_sub(1, Relaxed);
    }
}

impl Shared {
    /// Emits outcomes from the feed, if a hook wants them.
    pub(super) fn emit_outcomes<'l>(&self, lines: impl Iterator<Item = &'l [u8]>) {
        let HookEvents { filter, queued, dropped } = &self.hook_events;
        let mut filter = filter.lock().unwrap_or_else(PoisonError::into_inner);
        filter.set_filter(&self.node.event_filter());
        if !filter.wants(HookEventKind::PushOutcome) {
            return;
        }
        drop(filter);
        let send = |body| {
            queued.fetch_add(1, Relaxed);
            let event = HookEvent { unix_ms: unix_ms(), body };
            self.send(PushOutput::Webhooks(Box::new(event)));
        };
        for line in lines {
            if queued.load(Relaxed) >= EVENTS_MAX {
                dropped.fetch_add(1, Relaxed);
                continue;
            }
            match dropped.swap(0, Relaxed) {
                0 => {}
                count => send(HookEventBody::Missed { count, owner: None }),
            }
            send(HookEventBody::PushOutcome { outcome: line.into() });
        }
    }
}
