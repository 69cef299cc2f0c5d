use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::NEW_CONNECTIONS;

/// How connections reach an address: through which proxies, and whether by TLS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ingress {
    /// Networks of proxies that are believed whose connection or request they pass on: `10.0.0.0/8`, `2001:db8::/32`,
    /// `192.0.2.7`. They are believed the header of the PROXY protocol if `proxy_protocol` is set, and on a client port
    /// the last address in `X-Forwarded-For` that is not of such a network. What anybody else says of it is ignored.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub trusted_proxies: Arc<[String]>,
    /// Connections from `trusted_proxies` begin with a header of the PROXY protocol, version 1 or 2; one that does not
    /// is closed.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub proxy_protocol: bool,
    /// Speaks TLS 1.2 and 1.3, with the certificates of `tls.certificates`.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub tls: bool,
    /// Certificates in PEM: who connects has to show one that one of these has signed (mutual TLS). Not for an address
    /// that browsers connect to.
    #[schemars(extend("x-applies" = NEW_CONNECTIONS))]
    pub client_ca: Option<Arc<str>>,
}

impl Ingress {
    /// The networks of the proxies. A text that names no network is left out; validation refuses it.
    pub fn proxies(&self) -> impl Iterator<Item = IpNet> {
        self.trusted_proxies.iter().filter_map(|network| parse_network(network))
    }
}

/// An address, or a network with the length of its prefix.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}
