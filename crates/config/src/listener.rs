use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Ingress;
use crate::effect::settings;

settings! {
    /// A further address clients may connect to.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Listener {
        /// The address. Port 0 lets the kernel choose.
        #[schemars(extend("format" = "socket-address"))]
        pub addr: SocketAddr => Listeners,
        /// Connections the kernel queues for each worker until it accepts them.
        #[schemars(range(min = 1, max = 1_048_576))]
        pub backlog: u32 => Listeners,
        /// What is served at this address.
        pub serves: Serves => Read,
        /// A name of `programs`: clients at this address speak the protocol of this program, over TCP, or TLS if `ingress` says so.
        pub program: Option<Arc<str>> => Listeners,
        /// The proxies and TLS of this address.
        pub ingress: Ingress,
    }
}

impl Default for Listener {
    fn default() -> Listener {
        Listener {
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            backlog: 65_535,
            serves: Serves::default(),
            program: None,
            ingress: Ingress::default(),
        }
    }
}

/// What is served at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Serves {
    /// Clients and the server API.
    #[default]
    All,
    /// Clients, but nothing below `/api`.
    Clients,
    /// Only the server API.
    Api,
}
