use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Ingress, Serves};

settings! {
    /// Addresses and threads.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Server {
        /// The address for clients and backends: WebSocket, SSE, HTTP stream, long-poll and the server API. An
        /// address other than loopback requires `api.keys` and `client.token.hmac_secret`. A change does not
        /// close open connections.
        #[schemars(extend("format" = "socket-address"))]
        pub client_addr: SocketAddr => Listeners & Name,
        /// What is served at `client_addr`. Everything else is served by `listeners` only.
        pub client_serves: Serves => Read,
        /// The proxies and TLS of `client_addr`.
        pub client_ingress: Ingress | Listeners,
        /// The address of the admin port: health, metrics, configuration. An address other than loopback requires
        /// `admin.token`. A change does not close open connections.
        #[schemars(extend("format" = "socket-address"))]
        pub admin_addr: SocketAddr => AdminPort,
        /// Listens on `admin_addr`. If off, operators can use only the Unix socket in the state directory, which
        /// file permissions protect. A change does not close open connections.
        pub admin_tcp: bool => AdminPort,
        /// The proxies and TLS of `admin_addr`.
        pub admin_ingress: Ingress | AdminPort,
        /// Threads that serve connections, each with its own event loop and listener; 0 means one per core.
        #[schemars(range(max = 124))]
        pub workers: u8 => NextStart,
        /// Gives each worker its own descriptor table. `RLIMIT_NOFILE` then limits the connections of a worker
        /// instead of the process, and workers do not contend for one table.
        pub own_descriptor_tables: bool => NextStart,
        /// Pins worker i to core i. For machines that run no other load.
        pub pin_workers: bool => Pinning,
        /// The number of this node, part of every session id. With `cluster.engine`, 0 leases a free number, and
        /// any other value requests that number. Sessions that are open during a change keep their ids. Without a
        /// cluster, do not assign the old number to another node until these sessions have ended.
        #[schemars(range(max = 4095))]
        pub node: u16 => NewConnections & Node,
        /// The name of this node in `/info` and in logs; unique in a cluster. Empty: host name and client port,
        /// with the address if `client_addr` has a specific one: `web-1:8000`, `web-1@10.0.0.7:8000`.
        pub name: String => Name,
        /// Connections that the kernel queues for each listener until the worker accepts them; limited by
        /// `net.core.somaxconn`.
        #[schemars(range(min = 1, max = 1_048_576))]
        pub backlog: u32 => Listeners,
        /// How long a worker may delay reading input of connected clients, in milliseconds, to process many of
        /// them in one wake-up; 0: no delay. Publications to clients are not delayed. For nodes with very many
        /// clients that only receive: it reduces the cost of their pongs. A change from 0 applies to new clients,
        /// any other to all.
        #[schemars(range(max = 100))]
        pub coalesce_ms: u32 => Coalescing,
    }
}

impl Default for Server {
    fn default() -> Server {
        Server {
            client_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            client_serves: Serves::default(),
            client_ingress: Ingress::default(),
            admin_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 8001)),
            admin_tcp: true,
            admin_ingress: Ingress::default(),
            workers: 0,
            own_descriptor_tables: true,
            pin_workers: false,
            node: 0,
            name: String::new(),
            backlog: 65_535,
            coalesce_ms: 0,
        }
    }
}
