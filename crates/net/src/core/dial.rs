//! Connecting by name: addresses are tried in order, the next one before the previous one has failed (happy eyeballs,
//! RFC 8305 §5). The connection has its id from the start, and gets the socket of the first address that answers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use dunlin_wire::dial::{Next, Race};
use mio::Interest;
use mio::unix::SourceFd;
use rustix::net::sockopt::socket_error;

use super::config::ConnectConfig;
use super::connect::connect_socket;
use super::connection::{ConnId, Phase};
use super::context::{Context, TimerId};
use super::handler::Handler;
use super::resolver::{Name, Resolver};
use super::timer::Action;
use super::tls::Tls;
use super::token::Token;
use super::url::{ServerAddr, Url};

/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 64;

/// An outgoing connection that has no socket yet.
#[derive(Debug)]
pub(crate) struct Dial {
    conn: ConnId,
    /// The name that was resolved; `None` when the caller passed the addresses.
    name: Option<Name>,
    /// `None` while the name is being resolved.
    race: Option<Race>,
    attempts: Vec<Option<(OwnedFd, SocketAddr)>>,
    /// Timer of the next attempt.
    timer: Option<TimerId>,
    from: Option<SocketAddr>,
    delay_ms: u64,
    /// Error of the first failed attempt, which was to the best address.
    error: Option<io::Error>,
}

/// The outgoing connections of a loop that have no socket yet.
#[derive(Debug, Default)]
pub(crate) struct Dials {
    places: Vec<Option<Dial>>,
    resolver: Option<Resolver>,
}

impl<D: Default> Context<D> {
    /// Connects to a host by name or by an address in text form. The name is resolved, and its addresses are tried in
    /// the order of RFC 8305, each [`attempt_delay_ms`](ConnectConfig::attempt_delay_ms) after the previous one.
    /// Otherwise as [`Context::connect`]; the timeout includes the resolution and all attempts. A name that does not
    /// resolve is reported by `on_connect_failed`, see [`ResolveError`](crate::ResolveError).
    ///
    /// # Errors
    ///
    /// Failure to start the resolver's thread; `QuotaExceeded` when the loop has `connections_max` connections.
    pub fn connect_name(
        &mut self,
        name: &str,
        port: u16,
        config: &ConnectConfig,
    ) -> io::Result<ConnId> {
        if let Ok(address) = name.parse::<IpAddr>() {
            return self.connect_any(&[SocketAddr::new(address, port)], config);
        }
        let now_ms = self.now_ms();
        let resolver = match &mut self.dials.resolver {
            Some(resolver) => resolver,
            none => {
                let resolver = Resolver::start()?;
                let event = Token::Resolver.into();
                let registry = self.poll.registry();
                registry.register(&mut SourceFd(&resolver.bell()), event, Interest::READABLE)?;
                none.insert(resolver)
            }
        };
        let name = (name.to_owned(), port);
        let addresses = resolver.resolve(&name, now_ms);
        self.dial(Some(name), addresses, config)
    }

    /// Connects to the first of these addresses that answers, best first, as [`Context::connect_name`] does.
    ///
    /// # Errors
    ///
    /// `QuotaExceeded` when the loop has `connections_max` connections.
    pub fn connect_any(
        &mut self,
        addresses: &[SocketAddr],
        config: &ConnectConfig,
    ) -> io::Result<ConnId> {
        self.dial(None, Some(addresses.to_vec()), config)
    }

    /// Connects to the server of a URL: by name, and with TLS if the scheme requires it. If [`ConnectConfig::tls`] is
    /// unset, the system's root certificates are trusted.
    ///
    /// # Errors
    ///
    /// Those of [`Context::connect_name`], [`Context::connect_unix`] and [`Tls::system`].
    pub fn connect_url(&mut self, url: &Url, config: &ConnectConfig) -> io::Result<ConnId> {
        let mut config = config.clone();
        match &url.server {
            ServerAddr::Unix(path) => self.connect_unix(path, &config),
            ServerAddr::Network { host, port } => {
                config.tls = match (url.secure, config.tls) {
                    (false, _) => None,
                    (true, None) => Some(Tls::system()?.client(host)?),
                    (true, tls) => tls,
                };
                self.connect_name(host, *port, &config)
            }
        }
    }

    fn dial(
        &mut self,
        name: Option<Name>,
        addresses: Option<Vec<SocketAddr>>,
        config: &ConnectConfig,
    ) -> io::Result<ConnId> {
        let conn = self.begin_connect(None, config)?;
        let places = &mut self.dials.places;
        let place = places.iter().position(Option::is_none).unwrap_or(places.len());
        if place == places.len() {
            places.push(None);
        }
        places[place] = Some(Dial {
            conn,
            name,
            race: addresses.map(|all| race(&all, config.attempt_delay_ms)),
            attempts: Vec::new(),
            timer: None,
            from: config.from,
            delay_ms: config.attempt_delay_ms,
            error: None,
        });
        self.attempt(place as u32);
        Ok(conn)
    }

    /// Tries the next address, and schedules the one after it. When no address is left and no attempt is in progress,
    /// the connect has failed.
    pub(crate) fn attempt(&mut self, place: u32) {
        let Some(Some(dial)) = self.dials.places.get_mut(place as usize) else { return };
        let Some(race) = &mut dial.race else { return };
        if let Some(timer) = dial.timer.take() {
            self.timers.disarm(timer);
        }
        loop {
            let address = match race.poll(self.now_ms) {
                Next::Connect(address) => address,
                Next::Wait(at_ms) => {
                    let arm = |at_ms| self.timers.arm(at_ms, None, Action::Dial(place));
                    dial.timer = at_ms.map(arm);
                    return;
                }
                Next::Failed => break,
            };
            let attempt = dial.attempts.len() as u32;
            let started = connect_socket(address, dial.from).and_then(|fd| {
                let event = Token::Attempt { dial: place, attempt }.into();
                let registry = self.poll.registry();
                registry.register(&mut SourceFd(&fd.as_raw_fd()), event, Interest::WRITABLE)?;
                Ok(fd)
            });
            match started {
                Ok(fd) => dial.attempts.push(Some((fd, address))),
                // Often there is no route for this family: try the next address.
                Err(error) => {
                    dial.error.get_or_insert(error);
                    race.handle_failure();
                }
            }
        }
        if let Some(dial) = self.dials.places[place as usize].take() {
            if let (Some(name), Some(resolver)) = (&dial.name, &mut self.dials.resolver) {
                resolver.forget(name);
            }
            let none = || io::Error::new(io::ErrorKind::NotFound, "there is no address to try");
            self.fail_connect(dial.conn, dial.error.unwrap_or_else(none));
        }
    }

    /// Handles an event of an attempt.
    pub(crate) fn attempt_event<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        place: u32,
        attempt: u32,
    ) {
        let Some(Some(dial)) = self.dials.places.get_mut(place as usize) else { return };
        let Some(Some((fd, address))) = dial.attempts.get(attempt as usize) else { return };
        let failed = match socket_error(fd) {
            Ok(Ok(())) => match rustix::net::getpeername(fd) {
                Ok(_) => None,
                // An event of an earlier attempt in the same place.
                Err(_) => return,
            },
            Ok(Err(errno)) | Err(errno) => Some(io::Error::from(errno)),
        };
        if let Some(error) = failed {
            dial.error.get_or_insert(error);
            dial.attempts[attempt as usize] = None;
            dial.race.iter_mut().for_each(Race::handle_failure);
            return self.attempt(place);
        }
        let (conn, address) = (dial.conn, *address);
        let Some(mut dial) = self.dials.places[place as usize].take() else { return };
        if let Some(timer) = dial.timer {
            self.timers.disarm(timer);
        }
        let Some((fd, _)) = dial.attempts[attempt as usize].take() else { return };
        if let (Some(name), Some(resolver)) = (&dial.name, &mut self.dials.resolver) {
            resolver.prefer(name, address);
        }
        let both = Interest::READABLE | Interest::WRITABLE;
        let event = Token::Conn(conn).into();
        let moved = self.poll.registry().reregister(&mut SourceFd(&fd.as_raw_fd()), event, both);
        let Some(record) = self.slab.get_mut(conn).filter(|r| r.phase == Phase::Connecting) else {
            return;
        };
        record.fd = Some(fd);
        match moved {
            Ok(()) => self.connected(handler, conn),
            Err(error) => self.fail_connect(conn, error),
        }
    }

    /// Takes the resolver's results.
    pub(crate) fn take_resolved(&mut self) {
        let until_ms = self.now_ms() + self.config.name_cache_ms;
        let results = self.dials.resolver.as_mut().map(|resolver| resolver.take(until_ms));
        for (name, result) in results.unwrap_or_default() {
            for place in 0..self.dials.places.len() {
                let Some(dial) = &mut self.dials.places[place] else { continue };
                if dial.race.is_some() || dial.name.as_ref() != Some(&name) {
                    continue;
                }
                dial.race = Some(match &result {
                    Ok(addresses) => race(addresses, dial.delay_ms),
                    Err(error) => {
                        dial.error = Some(error.clone().into());
                        Race::default()
                    }
                });
                self.attempt(place as u32);
            }
        }
    }

    /// Cancels the attempts of a connection that ends before it has a socket.
    pub(crate) fn cancel_dial(&mut self, conn: ConnId) {
        let places = &mut self.dials.places;
        for place in places.iter_mut() {
            if let Some(dial) = place.take_if(|dial| dial.conn == conn)
                && let Some(timer) = dial.timer
            {
                self.timers.disarm(timer);
            }
        }
    }
}

fn race(addresses: &[SocketAddr], delay_ms: u64) -> Race {
    Race::new(addresses.iter().copied().take(ADDRESSES_MAX), delay_ms)
}
