//! Opening a connection: the addresses of a host one after another, the next before the last has failed
//! (happy eyeballs, RFC 8305 §5).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use dunlin_net::{ConnId, ConnectConfig, Context, Limits, TimerId, Tls};

use super::core::{Core, Entry, TIMER_DIAL};
use super::host::{Addresses, HostId};
use super::origin::Place;

/// One connection being opened, by one attempt or several at a time.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) host: HostId,
    left: VecDeque<SocketAddr>,
    attempts: Vec<ConnId>,
    timer: Option<TimerId>,
    error: Option<io::Error>,
}

impl Core {
    /// Begins to open a connection to a host, whose name is resolved first if need be.
    pub(crate) fn dial(&mut self, cx: &mut Context<()>, host_id: HostId) {
        let now_ms = cx.now_ms();
        let host = &mut self.hosts[host_id.0 as usize];
        host.dials += 1;
        let left = match (&host.origin.place, &host.addresses) {
            (Place::Unix(_), _) => VecDeque::new(),
            (Place::Network { .. }, Addresses::Known(addresses, until_ms))
                if *until_ms > now_ms =>
            {
                let mut left: VecDeque<SocketAddr> = addresses.iter().copied().collect();
                // Whoever answered last is asked first.
                if let Some(preferred) = host.preferred
                    && let Some(at) = left.iter().position(|&address| address == preferred)
                {
                    left.remove(at);
                    left.push_front(preferred);
                }
                left
            }
            (Place::Network { host: name, port }, addresses) => {
                let asked = matches!(addresses, Addresses::Asked);
                self.unresolved.push(host_id);
                if asked {
                    return;
                }
                let (name, port) = (name.clone(), *port);
                if let Ok(address) = name.parse::<std::net::IpAddr>() {
                    let address = SocketAddr::new(address, port);
                    host.addresses = Addresses::Known(vec![address], u64::MAX);
                    return self.resolved(cx, host_id);
                }
                host.addresses = Addresses::Asked;
                if let Err(error) = self.resolve(cx, host_id, &name, port) {
                    self.hosts[host_id.0 as usize].addresses = Addresses::Unknown;
                    self.unresolved.retain(|&waiting| waiting != host_id);
                    self.dial_failed(cx, host_id, &error);
                }
                return;
            }
        };
        let dial = Dial { host: host_id, left, attempts: Vec::new(), timer: None, error: None };
        let place = self.dials.iter().position(Option::is_none).unwrap_or(self.dials.len());
        if place == self.dials.len() {
            self.dials.push(None);
        }
        self.dials[place] = Some(dial);
        self.attempt(cx, place as u32);
    }

    /// The addresses of a host are known: the dials that waited for them begin.
    pub(crate) fn resolved(&mut self, cx: &mut Context<()>, host_id: HostId) {
        let waiting = self.unresolved.iter().filter(|&&waiting| waiting == host_id).count();
        self.unresolved.retain(|&waiting| waiting != host_id);
        self.hosts[host_id.0 as usize].dials -= waiting as u32;
        for _ in 0..waiting {
            self.dial(cx, host_id);
        }
    }

    /// Tries the next address, and has the one after it tried in a while.
    pub(crate) fn attempt(&mut self, cx: &mut Context<()>, place: u32) {
        let Some(Some(dial)) = self.dials.get_mut(place as usize) else { return };
        if let Some(timer) = dial.timer.take() {
            cx.cancel(timer);
        }
        let host = &self.hosts[dial.host.0 as usize];
        let config = ConnectConfig {
            timeout_ms: host.config.connect_timeout_ms,
            limits: Limits { output_bytes_max: usize::MAX, ..Limits::default() },
            tls: None,
            ..ConnectConfig::tcp()
        };
        loop {
            let attempt = match &host.origin.place {
                Place::Unix(path) if dial.attempts.is_empty() && dial.error.is_none() => {
                    cx.connect_unix(path, &config)
                }
                Place::Unix(_) => break,
                Place::Network { host: name, .. } => {
                    let Some(address) = dial.left.pop_front() else { break };
                    match secure(host.origin.secure, host.config.tls.as_ref(), name) {
                        Ok(tls) => cx.connect(address, &ConnectConfig { tls, ..config.clone() }),
                        Err(error) => Err(error),
                    }
                }
            };
            match attempt {
                Ok(conn) => {
                    dial.attempts.push(conn);
                    put(&mut self.entries, conn, Entry::Dialing(place));
                    if !dial.left.is_empty() {
                        let delay_ms = self.config.attempt_delay_ms;
                        dial.timer = Some(cx.run_after(delay_ms, TIMER_DIAL | u64::from(place)));
                    }
                    return;
                }
                // No route to this family, most often: the next may have one.
                Err(error) => dial.error = Some(error),
            }
        }
        if dial.attempts.is_empty() {
            let host = dial.host;
            let error = dial.error.take().unwrap_or_else(|| io::ErrorKind::NotFound.into());
            self.dials[place as usize] = None;
            self.dial_failed(cx, host, &error);
        }
    }

    /// An attempt has failed.
    pub(crate) fn attempt_failed(
        &mut self,
        cx: &mut Context<()>,
        place: u32,
        conn: ConnId,
        error: &io::Error,
    ) {
        let Some(Some(dial)) = self.dials.get_mut(place as usize) else { return };
        dial.attempts.retain(|&attempt| attempt != conn);
        // The first that failed says most: it was the best address.
        dial.error.get_or_insert_with(|| super::core::copy_error(error));
        self.attempt(cx, place);
    }

    /// An attempt has succeeded: the others are not needed. Returns the host.
    pub(crate) fn attempt_won(
        &mut self,
        cx: &mut Context<()>,
        place: u32,
        conn: ConnId,
    ) -> Option<HostId> {
        let dial = self.dials.get_mut(place as usize)?.take()?;
        if let Some(timer) = dial.timer {
            cx.cancel(timer);
        }
        for loser in dial.attempts.into_iter().filter(|&attempt| attempt != conn) {
            put(&mut self.entries, loser, Entry::Free);
            cx.close(loser);
        }
        let preferred = cx.peer_addr(conn);
        let host = &mut self.hosts[dial.host.0 as usize];
        host.dials -= 1;
        host.failures = 0;
        host.preferred = preferred.or(host.preferred);
        Some(dial.host)
    }
}

/// How to speak TLS to a name, if that is wanted.
fn secure(
    secure: bool,
    tls: Option<&Tls>,
    name: &str,
) -> io::Result<Option<dunlin_net::ClientTls>> {
    if !secure {
        return Ok(None);
    }
    match tls {
        Some(tls) => tls.client(name).map(Some),
        None => Tls::system()?.client(name).map(Some),
    }
}

pub(crate) fn put(entries: &mut Vec<Entry>, conn: ConnId, entry: Entry) {
    let index = conn.index() as usize;
    if entries.len() <= index {
        entries.resize_with(index + 1, || Entry::Free);
    }
    entries[index] = entry;
}
