use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Ingress, LIVE, NEW_CONNECTIONS, RESTART, Serves};

/// Addresses and threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Where clients connect and a backend publishes: WebSocket, SSE, HTTP stream, long-poll and the
    /// server API share this address. An address other than loopback is refused unless `api.keys`
    /// and `client.token.hmac_secret` are set. Open connections stay.
    #[schemars(extend("x-applies" = LIVE, "format" = "socket-address"))]
    pub client_addr: SocketAddr,
    /// What is served at `client_addr`; the rest is served by `listeners`, or by nothing.
    #[schemars(extend("x-applies" = LIVE))]
    pub client_serves: Serves,
    /// How connections reach `client_addr`.
    pub client_ingress: Ingress,
    /// Where an operator looks: health, metrics, information. An address other than loopback is
    /// refused unless `admin.token` is set. Open connections stay.
    #[schemars(extend("x-applies" = LIVE, "format" = "socket-address"))]
    pub admin_addr: SocketAddr,
    /// Listens on `admin_addr`. Off: only the Unix socket in the state directory lets an operator in, whom the permissions of
    /// files know. Open connections stay.
    #[schemars(extend("x-applies" = LIVE))]
    pub admin_tcp: bool,
    /// How connections reach `admin_addr`.
    pub admin_ingress: Ingress,
    /// Threads that serve connections, each with its own event loop and listener; 0 means one per
    /// core.
    #[schemars(range(max = 124), extend("x-applies" = RESTART))]
    pub workers: u8,
    /// Gives each worker its own descriptor table, so that `RLIMIT_NOFILE` bounds the connections
    /// of a worker and not of the process, and workers do not contend for one table.
    #[schemars(extend("x-applies" = RESTART))]
    pub own_descriptor_tables: bool,
    /// Pins worker i to core i. For machines that run nothing else.
    #[schemars(extend("x-applies" = LIVE))]
    pub pin_workers: bool,
    /// This node's number, part of every session id. With `cluster.engine`, 0 means that the node leases a number
    /// that no other has; any other number is the one it asks for. Sessions that are open when it changes keep
    /// their ids and are found by them, so without a cluster give the former number to no other node before they
    /// have ended.
    #[schemars(range(max = 4095), extend("x-applies" = NEW_CONNECTIONS))]
    pub node: u16,
    /// This node's name in `/info` and in logs, another for each node of a cluster; empty means host name and client port,
    /// with the address where `client_addr` has one of its own: `web-1:8000`, `web-1@10.0.0.7:8000`.
    #[schemars(extend("x-applies" = LIVE))]
    pub name: String,
    /// Connections the kernel queues for each listener until the worker accepts them; the kernel
    /// caps it at `net.core.somaxconn`.
    #[schemars(range(min = 1, max = 1_048_576), extend("x-applies" = LIVE))]
    pub backlog: u32,
    /// How late a worker may look at what connected clients send, in milliseconds, so that it wakes once for many of them;
    /// 0: at once. What is published to them leaves at once in any case. For a node with very many clients that only listen:
    /// their pongs cost less then. A change from 0 holds for clients that connect after it, any other for all.
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
