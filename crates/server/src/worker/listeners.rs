//! The open listeners of a worker, which follow the settings.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::sync::Arc;

use dunlin_config::{Config, Effect, Effects, Ingress};
use dunlin_net::{Context, IpNet, ListenConfig, ListenerId, http};

use super::link::Link;
use crate::state::ServerState;
use crate::state::settings::Settings;

/// The open listeners of one worker.
pub(super) struct Listeners<'w> {
    /// This worker's listener on the address that the process started with.
    boot: &'w TcpListener,
    open: Vec<OpenListener>,
}

/// A listener of `listeners`; the one of `server.client_addr` has no name.
struct OpenListener {
    name: Arc<str>,
    id: ListenerId,
    /// Proxies that may name the address they act for.
    proxies: Arc<[IpNet]>,
    speaks_tls: bool,
    /// A program speaks the protocol of its clients.
    by_program: bool,
}

/// The address of a listener, its backlog, and how connections reach it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ListenerSpec<'c> {
    address: SocketAddr,
    backlog: u32,
    ingress: &'c Ingress,
    /// A program speaks the protocol of its clients.
    by_program: bool,
}

/// The change of one listener between two configurations.
#[derive(Debug, PartialEq)]
enum ListenerChange<'c> {
    Open(Arc<str>, ListenerSpec<'c>),
    /// It closes, and another may open under its name.
    Close(Arc<str>),
    /// It stays open.
    Update(Arc<str>, ListenerSpec<'c>),
}

impl<'w> Listeners<'w> {
    /// Creates the set without an open listener.
    pub(super) fn new(boot: &'w TcpListener) -> Listeners<'w> {
        Listeners { boot, open: Vec::new() }
    }

    /// Opens the listeners at the start of a worker. One beside the first that fails to open is skipped and logged: for a
    /// restarted worker that is better than to serve none.
    pub(super) fn open_all(
        &mut self,
        cx: &mut Context<Link>,
        state: &ServerState,
        settings: &Settings,
    ) -> io::Result<()> {
        let config = &settings.config;
        let main = self.listen(cx, state, settings, (&Arc::from(""), main_place(config)))?;
        self.open.push(main);
        for (name, listener) in config.listeners.iter_shared() {
            match self.listen(cx, state, settings, (name, place(listener))) {
                Ok(open) => self.open.push(open),
                Err(error) => {
                    tracing::error!(%name, address = %listener.addr, %error, "a listener is missing");
                }
            }
        }
        Ok(())
    }

    /// Opens, moves and closes listeners; a draining worker opens none. A failure to open one changes nothing.
    ///
    /// # Errors
    /// The setting at fault, and the error of the kernel.
    pub(super) fn apply(
        &mut self,
        cx: &mut Context<Link>,
        state: &ServerState,
        (before, after): (&Settings, &Settings),
        effects: Effects,
        drains: bool,
    ) -> Result<(), String> {
        let all = effects.intersects(Effects::of(&[Effect::Tls, Effect::RequestLimits]));
        if !all && !effects.contains(Effect::Listeners) {
            return Ok(());
        }
        let (old, new) = (&before.config, &after.config);
        let changes = changes(old, new, drains);
        let mut opened = Vec::new();
        for change in &changes {
            let ListenerChange::Open(name, place) = change else { continue };
            match self.listen(cx, state, after, (name, *place)) {
                Ok(open) => opened.push(open),
                Err(error) => {
                    opened.iter().for_each(|open: &OpenListener| cx.close_listener(open.id));
                    return Err(format!("{}: {} {error}", key_of(name), place.address));
                }
            }
        }
        self.open.retain(|open| {
            let closes = changes
                .iter()
                .any(|of| matches!(of, ListenerChange::Close(name) if *name == open.name));
            if closes {
                cx.close_listener(open.id);
            }
            !closes
        });
        self.open.append(&mut opened);
        for open in &mut self.open {
            let updated = changes.iter().find_map(|change| match change {
                ListenerChange::Update(name, place) if *name == open.name => Some(*place),
                _ => None,
            });
            if let Some(place) = updated {
                cx.set_backlog(open.id, clamp(place.backlog))
                    .map_err(|error| format!("{}: backlog: {error}", key_of(&open.name)))?;
            }
            if updated.is_none() && !all {
                continue;
            }
            let Some(place) = place_of(new, &open.name) else { continue };
            let updated = listen_config(after, place)
                .and_then(|listen| cx.update_listener(open.id, &listen).map(|()| listen));
            let listen = updated.map_err(|error| format!("{}: {error}", key_of(&open.name)))?;
            (open.proxies, open.speaks_tls) = (proxies(place), listen.tls.is_some());
        }
        Ok(())
    }

    /// Whether a peer that connected to a listener is one of its proxies.
    pub(super) fn is_proxy(&self, listener: ListenerId, peer: IpAddr) -> bool {
        self.trusts(peer, |open| open.id == listener)
    }

    /// The same of the listener of this name; that of `server.client_addr` has none.
    pub(super) fn is_proxy_of(&self, name: &str, peer: IpAddr) -> bool {
        self.trusts(peer, |open| *open.name == *name)
    }

    fn trusts(&self, peer: IpAddr, is_it: impl Fn(&OpenListener) -> bool) -> bool {
        let proxies = self.open.iter().find(|open| is_it(open)).map(|open| &open.proxies);
        let peer = peer.to_canonical();
        proxies.is_some_and(|proxies| proxies.iter().any(|network| network.contains(&peer)))
    }

    /// Whether connections of a listener begin with a TLS handshake.
    pub(super) fn speaks_tls(&self, listener: ListenerId) -> bool {
        self.open.iter().any(|open| open.id == listener && open.speaks_tls)
    }

    /// Whether a program speaks the protocol of a listener's clients.
    pub(super) fn speaks_by_program(&self, listener: ListenerId) -> bool {
        self.open.iter().any(|open| open.id == listener && open.by_program)
    }

    /// Stops accepting.
    pub(super) fn close_all(&mut self, cx: &mut Context<Link>) {
        self.open.drain(..).for_each(|open| cx.close_listener(open.id));
    }

    fn listen(
        &self,
        cx: &mut Context<Link>,
        state: &ServerState,
        settings: &Settings,
        (name, place): (&Arc<str>, ListenerSpec<'_>),
    ) -> io::Result<OpenListener> {
        let listen = listen_config(settings, place)?;
        let id = if name.is_empty() && state.is_boot(place.address) {
            let id = cx.adopt_listener(self.boot.try_clone()?, &listen)?;
            cx.set_backlog(id, listen.backlog)?;
            id
        } else {
            cx.listen(place.address, &listen)?
        };
        let speaks_tls = listen.tls.is_some();
        Ok(OpenListener {
            name: Arc::clone(name),
            id,
            proxies: proxies(place),
            speaks_tls,
            by_program: place.by_program,
        })
    }
}

/// Returns the differences between two configurations. A listener whose backlog alone changes stays open.
fn changes<'c>(old: &'c Config, new: &'c Config, drains: bool) -> Vec<ListenerChange<'c>> {
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
            (Some(before), Some(after))
                if before.address == after.address && before.by_program == after.by_program =>
            {
                changes.push(ListenerChange::Update(name, after));
            }
            (before, after) => {
                changes.extend(before.map(|_| ListenerChange::Close(Arc::clone(&name))));
                changes.extend(after.map(|place| ListenerChange::Open(name, place)));
            }
        }
    }
    changes
}

fn main_place(config: &Config) -> ListenerSpec<'_> {
    let server = &config.server;
    let (address, backlog) = (server.client_addr, server.backlog);
    ListenerSpec { address, backlog, ingress: &server.client_ingress, by_program: false }
}

fn place(listener: &dunlin_config::Listener) -> ListenerSpec<'_> {
    ListenerSpec {
        address: listener.addr,
        backlog: listener.backlog,
        ingress: &listener.ingress,
        by_program: listener.program.is_some(),
    }
}

fn place_of<'c>(config: &'c Config, name: &str) -> Option<ListenerSpec<'c>> {
    match name {
        "" => Some(main_place(config)),
        name => config.listeners.get(name).map(place),
    }
}

fn proxies(place: ListenerSpec<'_>) -> Arc<[IpNet]> {
    place.ingress.proxies().collect()
}

fn clamp(backlog: u32) -> i32 {
    i32::try_from(backlog).unwrap_or(i32::MAX)
}

/// # Errors
/// Its TLS could not be built.
fn listen_config(settings: &Settings, place: ListenerSpec<'_>) -> io::Result<ListenConfig> {
    let limits = &settings.config.limits;
    let mut listen = match place.by_program {
        true => ListenConfig::default(),
        false => ListenConfig::http(),
    };
    listen.limits.output_bytes_max = limits.outbox_bytes_max;
    listen.limits.http = http::Limits {
        head_bytes_max: limits.head_bytes_max,
        headers_max: usize::from(limits.headers_max),
        body_bytes_max: limits.body_bytes_max as u64,
        ..http::Limits::default()
    };
    listen.limits.head_timeout_ms = NonZeroU64::new(limits.head_timeout_ms);
    listen.limits.body_timeout_ms = NonZeroU64::new(limits.head_timeout_ms);
    listen.limits.keep_alive_timeout_ms = NonZeroU64::new(limits.keep_alive_timeout_ms);
    listen.reuse_port = true;
    listen.backlog = clamp(place.backlog);
    listen.tls = settings.tls.server(place.ingress)?;
    if place.ingress.proxy_protocol {
        listen.proxies = proxies(place);
    }
    Ok(listen)
}

fn key_of(name: &str) -> String {
    match name {
        "" => "server.client_addr".to_owned(),
        name => format!("listeners.{name}"),
    }
}

/// Opens one listener for each worker on `address`, all in one `SO_REUSEPORT` group.
///
/// They are opened before the workers get private descriptor tables, so that a listener survives the restart of its
/// worker.
pub(crate) fn listen(
    address: SocketAddr,
    workers: usize,
    backlog: i32,
) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::with_capacity(workers);
    let mut address = address;
    for _ in 0..workers {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM.nonblocking().cloexec(),
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        if listeners.is_empty() && address.port() != 0 {
            // A first bind without SO_REUSEPORT finds another process on this address, which the group
            // would silently share its connections with.
            TcpListener::bind(address).map(drop)?;
        }
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        let listener = TcpListener::from(socket);
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn config(listeners: &[(&str, u16, u32)]) -> Config {
        let mut config = Config::development();
        for &(name, port, backlog) in listeners {
            let addr = address(port);
            let listener = dunlin_config::Listener { addr, backlog, ..Default::default() };
            config.listeners.insert(name, listener);
        }
        config
    }

    fn at(port: u16, backlog: u32) -> ListenerSpec<'static> {
        static INGRESS: LazyLock<Ingress> = LazyLock::new(Ingress::default);
        ListenerSpec { address: address(port), backlog, ingress: &INGRESS, by_program: false }
    }

    fn opens(name: &str, port: u16, backlog: u32) -> ListenerChange<'static> {
        ListenerChange::Open(name.into(), at(port, backlog))
    }

    #[test]
    fn a_listener_opens_moves_and_closes_and_another_backlog_keeps_it_open() {
        let old = config(&[("gone", 1001, 8), ("moves", 1002, 8), ("stays", 1003, 8)]);
        let new = config(&[("moves", 2002, 8), ("new", 2001, 8), ("stays", 1003, 16)]);
        assert_eq!(changes(&old, &old, false), []);
        let expected = [
            ListenerChange::Close("gone".into()),
            ListenerChange::Close("moves".into()),
            opens("moves", 2002, 8),
            opens("new", 2001, 8),
            ListenerChange::Update("stays".into(), at(1003, 16)),
        ];
        assert_eq!(changes(&old, &new, false), expected);
    }

    #[test]
    fn the_first_listener_moves_with_server_client_addr() {
        let (old, mut new) = (config(&[]), config(&[]));
        new.server.client_addr = address(9000);
        let expected = [ListenerChange::Close("".into()), opens("", 9000, new.server.backlog)];
        assert_eq!(changes(&old, &new, false), expected);
    }

    #[test]
    fn a_worker_that_drains_opens_nothing() {
        let (old, new) = (config(&[("moves", 1002, 8)]), config(&[("moves", 2002, 8)]));
        let closes = |of: &ListenerChange<'_>| matches!(of, ListenerChange::Close(_));
        assert!(changes(&old, &new, true).iter().all(closes));
    }

    #[test]
    fn listeners_share_one_port_and_a_second_process_is_refused_it() {
        let listeners = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 3, 16).unwrap();
        let address = listeners[0].local_addr().unwrap();
        assert!(listeners.iter().all(|l| l.local_addr().unwrap() == address));
        let refused = listen(address, 1, 16).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}
