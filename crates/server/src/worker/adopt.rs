//! The switch to another snapshot of the settings, at the boundary of the loop.
//!
//! A worker that slept takes the newest snapshot before it looks at anything; one that is awake, at the end of
//! each turn. So it is nobody's business to wake a worker for a change, unless something has to be done now:
//! see [`dunlin_bus::Rollout`] for why nothing older is acted on once the change was acknowledged.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_config::Config;
use dunlin_net::{ConnId, Context, ListenerId};
use dunlin_protocol::centrifuge::DisconnectCode;

use super::link::{Link, Role};
use super::{Worker, hub_config, listen_config};
use crate::bus_message::BusMessage;
use crate::crash;
use crate::settings::Settings;

/// A listener of `listeners`; without a name that of `server.client_addr`.
pub(super) struct Open {
    name: Arc<str>,
    id: ListenerId,
}

/// Where a listener is, and how many connections the kernel queues for it.
type Place = (SocketAddr, u32);

fn main_place(config: &Config) -> Place {
    (config.server.client_addr, config.server.backlog)
}

fn place(listener: &dunlin_config::Listener) -> Place {
    (listener.addr, listener.backlog)
}

impl Worker<'_> {
    /// Switches to the newest snapshot, if there is one.
    pub(super) fn adopt_newest(&mut self, cx: &mut Context<Link>) {
        let generation = self.state.generation();
        if generation == self.generation {
            return;
        }
        crash::reach("adopt");
        let newest = self.state.newest_for(self.index);
        if let Err(reason) = self.switch_to(cx, &newest) {
            tracing::warn!(worker = self.index, revision = newest.revision, reason, "not switched");
            self.state.refuse(self.index, generation, reason);
        }
        self.generation = generation;
        self.state.loop_stats[self.index].runs(self.settings.revision);
        let is_awaited = self.state.rollout.adopted(self.index, generation);
        crash::reach("adopted");
        if is_awaited {
            self.confirm_adoption();
        }
    }

    /// The admin thread waits to hear that this worker has switched. Nothing is lost if its ring is full: it
    /// looks for itself, only later.
    pub(super) fn confirm_adoption(&mut self) {
        let _ = self.endpoint.send(self.state.admin_endpoint(), BusMessage::SettingsAdopted);
    }

    fn switch_to(&mut self, cx: &mut Context<Link>, newest: &Arc<Settings>) -> Result<(), String> {
        if crash::is_refused(self.index, &newest.config) {
            return Err("told to".into());
        }
        let before = std::mem::replace(&mut self.settings, Arc::clone(newest));
        let (old, new) = (&before.config, &newest.config);
        let switched = self.switch_node(old, new).and_then(|()| self.switch_listeners(cx, old));
        if let Err(reason) = switched {
            // Nobody was opened under another number meanwhile, so there is room for the one before.
            let _ = self.hub.set_node(old.server.node);
            self.settings = before;
            return Err(reason);
        }
        if old.server.pin_workers != new.server.pin_workers {
            let core = new.server.pin_workers.then_some(self.index);
            if let Err(error) = dunlin_net::pin(core) {
                // It runs as well elsewhere, and what is open by now cannot be taken back any more.
                tracing::warn!(worker = self.index, %error, "server.pin_workers has no effect");
            }
        }
        if old.limits != new.limits {
            self.hub.set_limits(&hub_config(self.index, 0, &self.state, newest, 0));
            self.endpoint.set_ring_slots(new.limits.bus_slots as usize);
        }
        self.apply_pacing(Some(&before));
        self.apply_hooks();
        if old.client.token != new.client.token {
            self.close_revoked(cx);
        }
        Ok(())
    }

    /// Names sessions by another number from now on; those that are open keep the ids they were told.
    fn switch_node(&mut self, old: &Config, new: &Config) -> Result<(), String> {
        if old.server.node == new.server.node {
            return Ok(());
        }
        self.hub.set_node(new.server.node).map_err(|_| {
            "server.node: sessions of eight former numbers are still open; wait until those of one have ended".into()
        })
    }

    /// Opens, moves and closes listeners. Those that cannot be opened leave everything as it was.
    fn switch_listeners(&mut self, cx: &mut Context<Link>, old: &Config) -> Result<(), String> {
        let settings = Arc::clone(&self.settings);
        let new = &settings.config;
        let (mut opened, mut closed) = (Vec::new(), Vec::new());
        let mut queues = Vec::new();
        let mut differences = Vec::new();
        if main_place(old) != main_place(new) {
            differences.push((Arc::from(""), Some(main_place(old)), Some(main_place(new))));
        }
        for (name, before, after) in new.listeners.changes_from(&old.listeners) {
            let [before, after] = [before, after].map(|listener| listener.map(|of| place(of)));
            differences.push((Arc::clone(name), before, after));
        }
        for (name, before, after) in differences {
            let after = after.filter(|_| self.drain.is_none());
            if let (Some((from, _)), Some((to, backlog))) = (before, after)
                && from == to
            {
                queues.push((name, backlog));
                continue;
            }
            if before.is_some() {
                closed.push(Arc::clone(&name));
            }
            let Some(place) = after else { continue };
            match self.open(cx, &name, place) {
                Ok(open) => opened.push(open),
                Err(error) => {
                    opened.iter().for_each(|open: &Open| cx.close_listener(open.id));
                    return Err(format!("{}: {} {error}", key_of(&name), place.0));
                }
            }
        }
        self.listeners.retain(|open| {
            let gone = closed.contains(&open.name);
            if gone {
                cx.close_listener(open.id);
            }
            !gone
        });
        self.listeners.append(&mut opened);
        for (name, backlog) in queues {
            for open in self.listeners.iter().filter(|open| open.name == name) {
                let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
                let set = cx.set_backlog(open.id, backlog);
                set.map_err(|error| format!("{}: backlog: {error}", key_of(&name)))?;
            }
        }
        if old.limits != new.limits {
            let limits = listen_config(&settings).limits;
            for open in &self.listeners {
                cx.update_listener(open.id, &limits).map_err(|error| format!("limits: {error}"))?;
            }
        }
        Ok(())
    }

    /// The listeners this worker begins with. One beside the first that cannot be opened is left out and said: in
    /// a worker's later life that is better than none at all.
    pub(super) fn open_listeners(&mut self, cx: &mut Context<Link>) -> io::Result<()> {
        let settings = Arc::clone(&self.settings);
        let main = self.open(cx, &Arc::from(""), main_place(&settings.config))?;
        self.listeners.push(main);
        for (name, listener) in settings.config.listeners.iter_shared() {
            match self.open(cx, name, place(listener)) {
                Ok(open) => self.listeners.push(open),
                Err(error) => {
                    tracing::error!(worker = self.index, %name, address = %listener.addr, %error, "a listener is missing");
                }
            }
        }
        Ok(())
    }

    fn open(&self, cx: &mut Context<Link>, name: &Arc<str>, place: Place) -> io::Result<Open> {
        let (address, backlog) = place;
        let mut config = listen_config(&self.settings);
        config.backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        let id = if name.is_empty() && self.state.is_boot(address) {
            let id = cx.adopt_listener(self.boot.try_clone()?, &config)?;
            cx.set_backlog(id, config.backlog)?;
            id
        } else {
            cx.listen(address, &config)?
        };
        Ok(Open { name: Arc::clone(name), id })
    }

    pub(super) fn close_listeners(&mut self, cx: &mut Context<Link>) {
        self.listeners.drain(..).for_each(|open| cx.close_listener(open.id));
    }

    /// Ends the sessions that were let in by a key which lets nobody in any more. They may come back with a
    /// new token.
    fn close_revoked(&mut self, cx: &mut Context<Link>) {
        let verifier = Arc::clone(&self.settings.verifier);
        if self.params.sessions_without(|key| verifier.keeps(key)) == 0 {
            return;
        }
        let open: Vec<ConnId> = cx.connections().collect();
        for conn in open {
            let Some(&mut link) = cx.data(conn) else { continue };
            let key = self.params.get(link.params()).and_then(|params| params.key);
            if matches!(link.role, Role::Client(_)) && key.is_some_and(|key| !verifier.keeps(key)) {
                let why = DisconnectCode::Expired.with_reason("the key of its token was revoked");
                self.disconnect(cx, conn, &why);
            }
        }
    }
}

fn key_of(name: &str) -> String {
    match name {
        "" => "server.client_addr".to_owned(),
        name => format!("listeners.{name}"),
    }
}
