use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Map, Secret};

settings! {
    /// A backend that decides whether a client may connect, subscribe or publish, or that executes remote
    /// procedures.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Proxy {
        /// The URL to post requests to: `http://10.0.0.7:3000/centrifugo/connect`, or `https://`. With `upstream`
        /// only path and query: `/centrifugo/connect`.
        pub endpoint: Arc<str> => Proxies,
        /// Distributes requests over the members of this upstream, a name of `webhooks.upstreams`. Its `tls` and
        /// `ca` apply; the other limits are those of the proxy.
        pub upstream: Option<Arc<str>> => Proxies,
        /// Time limit for the response to a request.
        #[schemars(range(min = 10, max = 600_000))]
        pub timeout_ms: u64 => Proxies,
        /// Time limit for opening a connection to the backend.
        #[schemars(range(min = 10, max = 60_000))]
        pub connect_timeout_ms: u64 => Proxies,
        /// Most connections to the backend, or to each member of an upstream, each with one request at a time;
        /// the workers share them.
        #[schemars(range(min = 1, max = 65_535))]
        pub connections_max: u32 => Proxies,
        /// Most requests that wait for a connection; the workers share them. One user, or one address of clients
        /// without a user, may have as many as there is room for others. `on_failure` applies at once to a further
        /// one.
        #[schemars(range(max = 1_000_000))]
        pub queue_max: u32 => Proxies,
        /// How long a request may wait for a connection.
        #[schemars(range(min = 10, max = 600_000))]
        pub queue_timeout_ms: u64 => Proxies,
        /// Most bytes of a response. A longer one is invalid.
        #[schemars(range(min = 1_024, max = 67_108_864))]
        pub answer_bytes_max: usize => Proxies,
        /// After this many failed requests in a row, the backend, or the member of an upstream, gets no requests
        /// for a second, then for longer each time, up to 30 s. Meanwhile other members get the requests, or
        /// `on_failure` applies at once. 0 disables this.
        #[schemars(range(max = 1_000_000))]
        pub breaker_failures_max: u32 => Proxies,
        /// The result if the backend gives no valid response.
        pub on_failure: OnFailure => Proxies,
        /// Headers of the client's HTTP request to forward: `["Cookie", "Origin"]`.
        pub http_headers: Arc<[String]> => Proxies,
        /// Headers in `headers` of the client's connect command to forward, if its HTTP request does not have
        /// them. The client chooses their values: list only headers that your backend verifies.
        pub emulated_headers: Arc<[String]> => Proxies,
        /// Headers of every request: `Authorization = "Bearer ..."`. A forwarded header of the client with the
        /// same name replaces it.
        pub static_headers: Map<Secret> => Proxies,
        /// Forwards the `meta` of the connection, from its token or the connect proxy.
        pub include_connection_meta: bool => Proxies,
        /// Certificate authorities in PEM to trust instead of the system's.
        pub ca: Option<Arc<str>> => Proxies,
    }
}

impl Default for Proxy {
    fn default() -> Proxy {
        Proxy {
            endpoint: Arc::default(),
            upstream: None,
            timeout_ms: 1_000,
            connect_timeout_ms: 1_000,
            connections_max: 1_024,
            queue_max: 65_536,
            queue_timeout_ms: 10_000,
            answer_bytes_max: 1 << 20,
            breaker_failures_max: 16,
            on_failure: OnFailure::Error,
            http_headers: Arc::default(),
            emulated_headers: Arc::default(),
            static_headers: Map::new(),
            include_connection_meta: false,
            ca: None,
        }
    }
}

/// The result if a backend gives no valid response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OnFailure {
    /// The client is answered with error 100 (internal server error) and may try again.
    #[default]
    Error,
    /// The rules that apply without a proxy: the namespace's `allow_…` keys, or `client.anonymous`.
    Rules,
}

settings! {
    /// The proxies for events without a channel; each is a name of `proxies` or `programs`.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct ClientProxy {
        /// Decides whether a client without a token may connect, and as which user.
        pub connect: Option<Arc<str>> => Read,
        /// Decides whether a connection with an expiry (`expire_at`) from the connect proxy continues after that
        /// time.
        pub refresh: Option<Arc<str>> => Read,
        /// Executes the remote procedures that clients call; those with a namespace see `rpc.namespaces`.
        pub rpc: Option<Arc<str>> => Read,
    }
}

settings! {
    /// Remote procedures that clients call.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Rpc {
        /// Namespaces of methods: `users` has `users:list`. If there are any, a method of an unknown namespace is
        /// refused (error 104).
        pub namespaces: Map<RpcNamespace> | Read,
    }
}

settings! {
    /// Methods that one backend executes.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct RpcNamespace {
        /// The backend; a name of `proxies` or `programs`.
        pub proxy: Arc<str> => Read,
    }
}

/// The method's namespace is not in `rpc.namespaces`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such namespace of methods; add it to rpc.namespaces")]
pub struct UnknownRpcNamespace;

impl Rpc {
    /// Returns the proxy that executes a method; `None` if no namespaces are configured or the method has none.
    /// # Errors
    /// The method's namespace does not exist.
    pub fn proxy_of(&self, method: &str) -> Result<Option<&Arc<str>>, UnknownRpcNamespace> {
        match method.split_once(':') {
            Some((namespace, _)) if !self.namespaces.is_empty() => {
                self.namespaces.get(namespace).map(|of| Some(&of.proxy)).ok_or(UnknownRpcNamespace)
            }
            _ => Ok(None),
        }
    }
}
