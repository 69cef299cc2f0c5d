//! The servers of an engine, as the settings name them.

use dunlin_engine::{Server, ServerRole};
use dunlin_net::Tls;

/// Whom certificates have to be signed by, if the servers are spoken to by TLS. Roots that cannot be read were refused when
/// they were set.
pub(super) fn tls_of(config: &dunlin_config::Engine) -> Option<Tls> {
    let tls = match (config.tls, &config.ca) {
        (false, _) => None,
        (true, Some(ca)) => Tls::with_roots(ca.as_bytes()).ok(),
        (true, None) => Tls::system().ok(),
    };
    match (&config.tls_client_cert, &config.tls_client_key) {
        (Some(chain), Some(key)) => {
            tls?.with_client_certificate(chain.as_bytes(), key.reveal().as_bytes()).ok()
        }
        _ => tls,
    }
}

/// The servers of an engine.
pub(super) fn servers(config: &dunlin_config::Engine, role: ServerRole) -> Vec<Server> {
    let server = |address: &String| {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Server { host, port: port.parse().unwrap_or_default(), role }
    };
    config.addresses.iter().map(server).collect()
}
