//! What connection tokens let their sessions do in channels, where they say so.

use std::cell::RefCell;

use dunlin_hub::SessionId;
use dunlin_hub::tenant::bare;

use super::FastMap;
use crate::auth::{Allow, Capabilities, Regexes};
use crate::state::settings::Settings;

/// The capabilities of one worker's sessions, and what is compiled of them.
#[derive(Default)]
pub(crate) struct CapabilityTable {
    of: FastMap<SessionId, Capabilities>,
    regexes: RefCell<Regexes>,
}

impl CapabilityTable {
    /// A session's connection token grants this from now on.
    pub(crate) fn set(&mut self, session: SessionId, capabilities: &Capabilities) {
        match capabilities.is_empty() {
            true => self.forget(session),
            false => drop(self.of.insert(session, capabilities.clone())),
        }
    }

    /// The session has ended, or its token grants nothing.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.of.remove(&session);
    }

    /// What a session's connection token lets it do in a channel.
    pub(crate) fn of_session(
        &self,
        settings: &Settings,
        session: SessionId,
        channel: &str,
    ) -> Allow {
        let capabilities = self.of.get(&session);
        capabilities.map_or(Allow::NONE, |of| self.granted(settings, of, channel))
    }

    /// What these capabilities let a client do in a channel, or in all that a wildcard matches.
    pub(crate) fn granted(
        &self,
        settings: &Settings,
        capabilities: &Capabilities,
        channel: &str,
    ) -> Allow {
        let is_wildcard = channel.contains(['*', '>'])
            && settings.namespace(channel).is_some_and(|of| of.options.wildcard);
        match is_wildcard {
            true => capabilities.in_wildcard(bare(channel)),
            false => capabilities.in_channel(bare(channel), &mut self.regexes.borrow_mut()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dunlin_config::{Config, Snapshot};

    use super::*;

    #[test]
    fn a_session_may_what_its_token_grants_until_it_ends() {
        let snapshot = Arc::new(Snapshot::new(1, Config::development()).unwrap());
        let settings = Settings::new(snapshot);
        let caps = r#"[{"channels": ["^room\\d$"], "match": "regex", "allow": ["sub"]},
            {"channels": ["room1"], "allow": ["pub"]}]"#;
        let capabilities: Capabilities = serde_json::from_str(caps).unwrap();
        let (one, other) = (SessionId::pack(0, 0, 0, 1, 0), SessionId::pack(0, 0, 0, 2, 0));
        let mut table = CapabilityTable::default();
        table.set(one, &capabilities);
        let both = Allow::SUBSCRIBE.union(Allow::PUBLISH);
        assert_eq!(table.of_session(&settings, one, "room1"), both);
        assert_eq!(table.of_session(&settings, one, "room2"), Allow::SUBSCRIBE);
        assert_eq!(table.of_session(&settings, one, "room"), Allow::NONE);
        assert_eq!(table.of_session(&settings, other, "room1"), Allow::NONE);
        table.set(one, &Capabilities::default());
        assert_eq!(table.of_session(&settings, one, "room1"), Allow::NONE, "a newer token");
        table.set(one, &capabilities);
        table.forget(one);
        assert!(table.of.is_empty());
    }
}
