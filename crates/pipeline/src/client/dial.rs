//! Opens connections to a host. Names, addresses and TLS are handled by the loop.

use std::io;

use dunlin_net::{ConnId, ConnectConfig, Context, Limits, ServerAddr, Tls};

use super::core::{Core, Entry};
use super::host::HostId;

impl Core {
    /// Starts to open a connection to a host.
    pub(crate) fn dial<D: Default>(&mut self, cx: &mut Context<D>, host_id: HostId) {
        let host = &mut self.hosts[host_id.0 as usize];
        host.dials += 1;
        let config = ConnectConfig {
            timeout_ms: host.config.connect_timeout_ms,
            attempt_delay_ms: self.config.attempt_delay_ms,
            limits: Limits { output_bytes_max: usize::MAX, ..Limits::default() },
            ..ConnectConfig::default()
        };
        let dialed = match &host.url.server {
            ServerAddr::Unix(path) => cx.connect_unix(path, &config),
            ServerAddr::Network { host: name, port } => {
                secure(host.url.secure, host.config.tls.as_ref(), name).and_then(|tls| {
                    let config = ConnectConfig { tls, ..config };
                    match host.config.addresses.is_empty() {
                        true => cx.connect_name(name, *port, &config),
                        false => cx.connect_any(&host.config.addresses, &config),
                    }
                })
            }
        };
        match dialed {
            Ok(conn) => put(&mut self.entries, conn, Entry::Dialing(host_id)),
            Err(error) => self.dial_failed(cx, host_id, &error),
        }
    }
}

/// Returns the TLS settings for a name, if the host uses TLS.
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
