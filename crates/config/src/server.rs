use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Ingress, LIVE, NEW_CONNECTIONS, RESTART, Serves};

/// Addresses and threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// The address for clients and backends: WebSocket, SSE, HTTP stream, long-poll and the server API. An
    /// address other than loopback requires `api.keys` and `client.token.hmac_secret`. A change does not
    /// close open connections.
    #[schemars(extend("x-applies" = LIVE, "format" = "socket-address"))]
    pub client_addr: SocketAddr,
    /// What is served at `client_addr`. Everything else is served by `listeners` only.
    #[schemars(extend("x-applies" = LIVE))]
    pub client_serves: Serves,
    /// The proxies and TLS of `client_addr`.
    pub client_ingress: Ingress,
    /// The address of the admin port: health, metrics, configuration. An address other than loopback requires
    /// `admin.token`. A change does not close open connections.
    #[schemars(extend("x-applies" = LIVE, "format" = "socket-address"))]
    pub admin_addr: SocketAddr,
    /// Listens on `admin_addr`. If off, operators can use only the Unix socket in the state directory, which
    /// file permissions protect. A change does not close open connections.
    #[schemars(extend("x-applies" = LIVE))]
    pub admin_tcp: bool,
    /// The proxies and TLS of `admin_addr`.
    pub admin_ingress: Ingress,
    /// Threads that serve connections, each with its own event loop and listener; 0 means one per core.
    #[schemars(range(max = 124), extend("x-applies" = RESTART))]
    pub workers: u8,
    /// Gives each worker its own descriptor table. `RLIMIT_NOFILE` then limits the connections of a worker
    /// instead of the process, and workers do not contend for one table.
    #[schemars(extend("x-applies" = RESTART))]
    pub own_descriptor_tables: bool,
    /// Pins worker i to core i. For machines that run no other load.
    #[schemars(extend("x-applies" = LIVE))]
    pub pin_workers: bool,
    /// The number of this node, part of every session id. With `cluster.engine`, 0 leases a free number, and
    /// any other value requests that number. Sessions that are open during a change keep their ids. Without a
    /// cluster, do not assign the old number to another node until these sessions have ended.
    #[schemars(range(max = 4095), extend("x-applies" = NEW_CONNECTIONS))]
    pub node: u16,
    /// The name of this node in `/info` and in logs; unique in a cluster. Empty: host name and client port,
    /// with the address if `client_addr` has a specific one: `web-1:8000`, `web-1@10.0.0.7:8000`.
    #[schemars(extend("x-applies" = LIVE))]
    pub name: String,
    /// Connections that the kernel queues for each listener until the worker accepts them; limited by
    /// `net.core.somaxconn`.
    #[schemars(range(min = 1, max = 1_048_576), extend("x-applies" = LIVE))]
    pub backlog: u32,
    /// How long a worker may delay reading input of connected clients, in milliseconds, to process many of
    /// them in one wake-up; 0: no delay. Publications to clients are not delayed. For nodes with very many
    /// clients that only receive: it reduces the cost of their pongs. A change from 0 applies to new clients,
    /// any other to all.
    #[schemars(range(max = 100), extend("x-applies" = LIVE))]
    pub coalesce_ms: u32,
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
