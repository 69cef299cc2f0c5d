//! The switch to another snapshot of the settings, at the boundary of the loop.
//!
//! A worker that slept takes the newest snapshot before it looks at anything; one that is awake, at the end of
//! each turn. So it is nobody's business to wake a worker for a change, unless something has to be done now:
//! see [`dunlin_bus::Adoption`] for why nothing older is acted on once the change was acknowledged.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_config::Config;
use dunlin_net::{ConnId, Context, ListenerId};
use dunlin_protocol::centrifuge::DisconnectCode;

use super::link::{Link, Role};
use super::{Worker, hub_config, listen_config};
use crate::parcel::Parcel;
use crate::settings::Settings;

/// A listener of `listeners`, beside that of `server.client_addr`.
pub(super) struct Extra {
    name: Arc<str>,
    id: ListenerId,
}

impl Worker<'_> {
    /// Switches to the newest snapshot, if there is one.
    pub(super) fn adopt_newest(&mut self, cx: &mut Context<Link>) {
        let generation = self.node.generation();
        if generation == self.generation {
            return;
        }
        let newest = self.node.newest_for(self.index);
        if let Err(reason) = self.switch_to(cx, &newest) {
            tracing::warn!(worker = self.index, revision = newest.revision, reason, "not switched");
            self.node.refuse(self.index, generation, reason);
        }
        self.generation = generation;
        self.node.pulses[self.index].runs(self.settings.revision);
        if self.node.adoption.adopted(self.index, generation) {
            self.tell_adopted();
        }
    }

    /// The admin thread waits to hear that this worker has switched. Nothing is lost if its ring is full: it
    /// looks for itself, only later.
    pub(super) fn tell_adopted(&mut self) {
        let _ = self.endpoint.send(self.node.admin_endpoint(), Parcel::Adopted);
    }

    fn switch_to(&mut self, cx: &mut Context<Link>, newest: &Arc<Settings>) -> Result<(), String> {
        #[cfg(test)]
        if newest.config.server.name == "refused by worker 1" && self.index == 1 {
            return Err("told to".into());
        }
        let before = std::mem::replace(&mut self.settings, Arc::clone(newest));
        if let Err(reason) = self.switch_listeners(cx, &before.config) {
            self.settings = before;
            return Err(reason);
        }
        let (old, new) = (&before.config, &newest.config);
        if old.limits != new.limits {
            self.hub.set_limits(&hub_config(self.index, 0, &self.node, newest, 0));
        }
        self.apply_pacing(Some(&before.config));
        if old.client.token != new.client.token {
            self.close_revoked(cx);
        }
        Ok(())
    }

    /// Opens, moves and closes listeners. Those that cannot be opened leave everything as it was.
    fn switch_listeners(&mut self, cx: &mut Context<Link>, old: &Config) -> Result<(), String> {
        let settings = Arc::clone(&self.settings);
        let new = &settings.config;
        let mut opened = Vec::new();
        let mut closed = Vec::new();
        for (name, before, after) in new.listeners.changes_from(&old.listeners) {
            let address = |listener: &dunlin_config::Listener| listener.addr;
            if before.map(|of| address(of)) == after.map(|of| address(of)) {
                // The kernel takes another backlog from the next start of the listener.
                continue;
            }
            if before.is_some() {
                closed.push(Arc::clone(name));
            }
            let Some(listener) = after.filter(|_| self.drain.is_none()) else { continue };
            match self.open_extra(cx, name, listener.addr, listener.backlog) {
                Ok(extra) => opened.push(extra),
                Err(error) => {
                    opened.iter().for_each(|extra: &Extra| cx.close_listener(extra.id));
                    return Err(format!("listeners.{name}: {} {error}", listener.addr));
                }
            }
        }
        self.extras.retain(|extra| {
            let gone = closed.contains(&extra.name);
            if gone {
                cx.close_listener(extra.id);
            }
            !gone
        });
        self.extras.append(&mut opened);
        if old.limits != new.limits {
            let limits = listen_config(&settings).limits;
            let ids = self.listener.into_iter().chain(self.extras.iter().map(|extra| extra.id));
            for id in ids {
                cx.update_listener(id, &limits).map_err(|error| format!("limits: {error}"))?;
            }
        }
        Ok(())
    }

    /// The listeners this worker begins with. One that cannot be opened is left out and said: in a worker's
    /// later life that is better than none at all.
    pub(super) fn open_extras(&mut self, cx: &mut Context<Link>) {
        let settings = Arc::clone(&self.settings);
        for (name, listener) in settings.config.listeners.iter_shared() {
            match self.open_extra(cx, name, listener.addr, listener.backlog) {
                Ok(extra) => self.extras.push(extra),
                Err(error) => {
                    tracing::error!(worker = self.index, %name, address = %listener.addr, %error, "a listener is missing");
                }
            }
        }
    }

    fn open_extra(
        &self,
        cx: &mut Context<Link>,
        name: &Arc<str>,
        address: SocketAddr,
        backlog: u32,
    ) -> io::Result<Extra> {
        let mut config = listen_config(&self.settings);
        config.backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        Ok(Extra { name: Arc::clone(name), id: cx.listen(address, &config)? })
    }

    pub(super) fn close_extras(&mut self, cx: &mut Context<Link>) {
        self.extras.drain(..).for_each(|extra| cx.close_listener(extra.id));
    }

    /// Ends the sessions that were let in by a key which lets nobody in any more. They may come back with a
    /// new token.
    fn close_revoked(&mut self, cx: &mut Context<Link>) {
        let verifier = Arc::clone(&self.settings.verifier);
        if self.terms.sessions_without(|key| verifier.keeps(key)) == 0 {
            return;
        }
        let open: Vec<ConnId> = cx.connections().collect();
        for conn in open {
            let Some(&mut link) = cx.data(conn) else { continue };
            let key = self.terms.get(link.terms()).and_then(|terms| terms.key);
            if matches!(link.role, Role::Client(_)) && key.is_some_and(|key| !verifier.keeps(key)) {
                let why = DisconnectCode::Expired.because("the key of its token was revoked");
                self.disconnect(cx, conn, &why);
            }
        }
    }
}
