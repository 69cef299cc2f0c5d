//! The listeners of a worker: which it has open, and the switch to those of another configuration.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use dunlin_config::Config;
use dunlin_net::{Context, ListenConfig, ListenerId, http};

use super::link::Link;
use crate::state::ServerState;

/// The listeners that one worker has open.
pub(super) struct Listeners<'w> {
    /// This worker's listener of those that the process began with.
    boot: &'w TcpListener,
    open: Vec<Open>,
}

/// A listener of `listeners`; without a name that of `server.client_addr`.
struct Open {
    name: Arc<str>,
    id: ListenerId,
}

/// Where a listener is, and how many connections the kernel queues for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    address: SocketAddr,
    backlog: u32,
}

/// What becomes of one listener in a change of the configuration.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Open(Arc<str>, Place),
    /// It closes, and another may open under its name.
    Close(Arc<str>),
    SetBacklog(Arc<str>, u32),
}

impl<'w> Listeners<'w> {
    /// None is open yet.
    pub(super) fn new(boot: &'w TcpListener) -> Listeners<'w> {
        Listeners { boot, open: Vec::new() }
    }

    /// Opens the listeners that the worker begins with. One beside the first that cannot be opened is left out and
    /// logged: for a worker that has restarted that is better than none at all.
    pub(super) fn open_all(
        &mut self,
        cx: &mut Context<Link>,
        state: &ServerState,
        config: &Config,
    ) -> io::Result<()> {
        let main = self.listen(cx, state, config, (&Arc::from(""), main_place(config)))?;
        self.open.push(main);
        for (name, listener) in config.listeners.iter_shared() {
            match self.listen(cx, state, config, (name, place(listener))) {
                Ok(open) => self.open.push(open),
                Err(error) => {
                    tracing::error!(%name, address = %listener.addr, %error, "a listener is missing");
                }
            }
        }
        Ok(())
    }

    /// Opens, moves and closes listeners; while the worker drains none opens. Those that cannot be opened leave
    /// everything as it was.
    ///
    /// # Errors
    /// Which setting is at fault, and what the kernel said.
    pub(super) fn switch(
        &mut self,
        cx: &mut Context<Link>,
        state: &ServerState,
        (old, new): (&Config, &Config),
        drains: bool,
    ) -> Result<(), String> {
        let changes = changes(old, new, drains);
        let mut opened = Vec::new();
        for change in &changes {
            let Change::Open(name, place) = change else { continue };
            match self.listen(cx, state, new, (name, *place)) {
                Ok(open) => opened.push(open),
                Err(error) => {
                    opened.iter().for_each(|open: &Open| cx.close_listener(open.id));
                    return Err(format!("{}: {} {error}", key_of(name), place.address));
                }
            }
        }
        self.open.retain(|open| {
            let closes =
                changes.iter().any(|of| matches!(of, Change::Close(name) if *name == open.name));
            if closes {
                cx.close_listener(open.id);
            }
            !closes
        });
        self.open.append(&mut opened);
        for change in &changes {
            let Change::SetBacklog(name, backlog) = change else { continue };
            for open in self.open.iter().filter(|open| open.name == *name) {
                cx.set_backlog(open.id, clamp(*backlog))
                    .map_err(|error| format!("{}: backlog: {error}", key_of(name)))?;
            }
        }
        if old.limits != new.limits {
            let limits = listen_config(new).limits;
            for open in &self.open {
                cx.update_listener(open.id, &limits).map_err(|error| format!("limits: {error}"))?;
            }
        }
        Ok(())
    }

    /// Stops accepting.
    pub(super) fn close_all(&mut self, cx: &mut Context<Link>) {
        self.open.drain(..).for_each(|open| cx.close_listener(open.id));
    }

    fn listen(
        &self,
        cx: &mut Context<Link>,
        state: &ServerState,
        config: &Config,
        (name, place): (&Arc<str>, Place),
    ) -> io::Result<Open> {
        let mut listen = listen_config(config);
        listen.backlog = clamp(place.backlog);
        let id = if name.is_empty() && state.is_boot(place.address) {
            let id = cx.adopt_listener(self.boot.try_clone()?, &listen)?;
            cx.set_backlog(id, listen.backlog)?;
            id
        } else {
            cx.listen(place.address, &listen)?
        };
        Ok(Open { name: Arc::clone(name), id })
    }
}

/// What differs between two configurations. What is only moved to another backlog stays open.
fn changes(old: &Config, new: &Config, drains: bool) -> Vec<Change> {
    let main = (Arc::from(""), Some(main_place(old)), Some(main_place(new)));
    let named = new.listeners.changes_from(&old.listeners).map(|(name, before, after)| {
        let [before, after] = [before, after].map(|listener| listener.map(|of| place(of)));
        (Arc::clone(name), before, after)
    });
    let mut changes = Vec::new();
    for (name, before, after) in std::iter::once(main).chain(named) {
        if before == after {
            continue;
        }
        match (before, after.filter(|_| !drains)) {
            (Some(before), Some(after)) if before.address == after.address => {
                changes.push(Change::SetBacklog(name, after.backlog));
            }
            (before, after) => {
                changes.extend(before.map(|_| Change::Close(Arc::clone(&name))));
                changes.extend(after.map(|place| Change::Open(name, place)));
            }
        }
    }
    changes
}

fn main_place(config: &Config) -> Place {
    Place { address: config.server.client_addr, backlog: config.server.backlog }
}

fn place(listener: &dunlin_config::Listener) -> Place {
    Place { address: listener.addr, backlog: listener.backlog }
}

fn clamp(backlog: u32) -> i32 {
    i32::try_from(backlog).unwrap_or(i32::MAX)
}

fn listen_config(config: &Config) -> ListenConfig {
    let limits = &config.limits;
    let mut listen = ListenConfig::http();
    listen.limits.http = http::Limits {
        head_bytes_max: limits.head_bytes_max,
        headers_max: usize::from(limits.headers_max),
        body_bytes_max: limits.body_bytes_max as u64,
        ..http::Limits::default()
    };
    listen.limits.request_timeout_ms = limits.head_timeout_ms;
    listen.limits.keep_alive_timeout_ms = limits.keep_alive_timeout_ms;
    listen.reuse_port = true;
    listen
}

fn key_of(name: &str) -> String {
    match name {
        "" => "server.client_addr".to_owned(),
        name => format!("listeners.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn config(listeners: &[(&str, u16, u32)]) -> Config {
        let mut config = Config::development();
        for &(name, port, backlog) in listeners {
            let addr = address(port);
            let listener = dunlin_config::Listener { addr, backlog };
            config.listeners.insert(name, listener);
        }
        config
    }

    fn opens(name: &str, port: u16, backlog: u32) -> Change {
        Change::Open(name.into(), Place { address: address(port), backlog })
    }

    #[test]
    fn a_listener_opens_moves_and_closes_and_another_backlog_keeps_it_open() {
        let old = config(&[("gone", 1001, 8), ("moves", 1002, 8), ("stays", 1003, 8)]);
        let new = config(&[("moves", 2002, 8), ("new", 2001, 8), ("stays", 1003, 16)]);
        assert_eq!(changes(&old, &old, false), []);
        let expected = [
            Change::Close("gone".into()),
            Change::Close("moves".into()),
            opens("moves", 2002, 8),
            opens("new", 2001, 8),
            Change::SetBacklog("stays".into(), 16),
        ];
        assert_eq!(changes(&old, &new, false), expected);
    }

    #[test]
    fn the_first_listener_moves_with_server_client_addr() {
        let (old, mut new) = (config(&[]), config(&[]));
        new.server.client_addr = address(9000);
        let place = Place { address: address(9000), backlog: new.server.backlog };
        let expected = [Change::Close("".into()), Change::Open("".into(), place)];
        assert_eq!(changes(&old, &new, false), expected);
    }

    #[test]
    fn a_worker_that_drains_opens_nothing() {
        let (old, new) = (config(&[("moves", 1002, 8)]), config(&[("moves", 2002, 8)]));
        let closes = |of: &Change| matches!(of, Change::Close(_));
        assert!(changes(&old, &new, true).iter().all(closes));
    }
}
