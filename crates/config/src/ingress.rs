use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;

settings! {
    /// The proxies and the TLS settings of an address.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Ingress {
        /// Networks of trusted proxies: `10.0.0.0/8`, `2001:db8::/32`, `192.0.2.7`. The server accepts the client
        /// address from them: in the header of the PROXY protocol if `proxy_protocol` is set, and on a client
        /// port in the last address of `X-Forwarded-For` that is not in these networks. From other addresses both
        /// are ignored.
        pub trusted_proxies: Arc<[String]> => NewConnections,
        /// Connections from `trusted_proxies` begin with a header of the PROXY protocol, version 1 or 2; a
        /// connection without one is closed.
        pub proxy_protocol: bool => NewConnections,
        /// Uses TLS 1.2 and 1.3 with the certificates of `tls.certificates`.
        pub tls: bool => NewConnections & Tls,
        /// Certificate authorities in PEM: a client must present a certificate signed by one of them (mutual
        /// TLS). Not suitable for an address that browsers connect to.
        pub client_ca: Option<Arc<str>> => NewConnections & Tls,
        /// Logs each request with its status, size and duration, at level `info` under the target `dunlin::access`; a
        /// WebSocket or a stream when it begins. Paths are logged without their queries.
        pub access_log: bool => Read,
    }
}

impl Ingress {
    /// Returns the networks of the proxies. Invalid networks are skipped; validation refuses them.
    pub fn proxies(&self) -> impl Iterator<Item = IpNet> {
        self.trusted_proxies.iter().filter_map(|network| parse_network(network))
    }
}

/// Parses an address, or a network with a prefix length.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}
