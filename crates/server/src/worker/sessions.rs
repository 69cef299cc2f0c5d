//! The machine of sessions: what each of them may and until when, and what of its requests is kept.
//!
//! It verifies tokens ([`connect`](super::connect), [`subscription`](super::subscription)), assembles what a subscription rests on
//! ([`permission`](super::permission)) and schedules pings and expiries ([`deadlines`](super::deadlines)). It ends nothing itself.

use dunlin_hub::SessionId;

use super::parts::{CapabilityTable, FastMap, ForwardedTable, Grants, Heartbeat};

/// The sessions of one worker.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) heartbeat: Heartbeat,
    /// Grants of subscriptions that do not follow from rules.
    pub(super) grants: Grants,
    pub(super) capabilities: CapabilityTable,
    /// What of the requests of clients is forwarded to those who decide.
    pub(super) forwarded: ForwardedTable,
    /// The embedding program decides on commands.
    pub(super) has_authorizer: bool,
    /// Devices that clients name themselves.
    devices: FastMap<SessionId, Box<str>>,
}

impl Sessions {
    /// Forgets a session that has ended.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.heartbeat.set_token(session, None);
        self.grants.forget(session);
        self.capabilities.forget(session);
        self.devices.remove(&session);
    }

    /// Sets the device that a client names itself.
    pub(super) fn set_device(&mut self, session: SessionId, device: Option<&str>) {
        if let Some(device) = device {
            self.devices.insert(session, device.into());
        }
    }

    pub(super) fn device(&self, session: SessionId) -> Option<&str> {
        self.devices.get(&session).map(|device| &**device)
    }
}
