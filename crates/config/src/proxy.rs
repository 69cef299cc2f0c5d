use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret};

/// A backend that decides whether a client may connect, subscribe or publish, or that executes remote
/// procedures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Proxy {
    /// The URL to post requests to: `http://10.0.0.7:3000/centrifugo/connect`, or `https://`. With `upstream`
    /// only path and query: `/centrifugo/connect`.
    #[schemars(extend("x-applies" = LIVE))]
    pub endpoint: Arc<str>,
    /// Distributes requests over the members of this upstream, a name of `webhooks.upstreams`. Its `tls` and
    /// `ca` apply; the other limits are those of the proxy.
    #[schemars(extend("x-applies" = LIVE))]
    pub upstream: Option<Arc<str>>,
    /// Time limit for the response to a request.
    #[schemars(range(min = 10, max = 600_000), extend("x-applies" = LIVE))]
    pub timeout_ms: u64,
    /// Time limit for opening a connection to the backend.
    #[schemars(range(min = 10, max = 60_000), extend("x-applies" = LIVE))]
    pub connect_timeout_ms: u64,
    /// Most connections to the backend, or to each member of an upstream, each with one request at a time;
    /// the workers share them.
    #[schemars(range(min = 1, max = 65_535), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Most requests that wait for a connection; the workers share them. One user, or one address of clients
    /// without a user, may have as many as there is room for others. `on_failure` applies at once to a further
    /// one.
    #[schemars(range(max = 1_000_000), extend("x-applies" = LIVE))]
    pub queue_max: u32,
    /// How long a request may wait for a connection.
    #[schemars(range(min = 10, max = 600_000), extend("x-applies" = LIVE))]
    pub queue_timeout_ms: u64,
    /// Most bytes of a response. A longer one is invalid.
    #[schemars(range(min = 1_024, max = 67_108_864), extend("x-applies" = LIVE))]
    pub answer_bytes_max: usize,
    /// After this many failed requests in a row, the backend, or the member of an upstream, gets no requests
    /// for a second, then for longer each time, up to 30 s. Meanwhile other members get the requests, or
    /// `on_failure` applies at once. 0 disables this.
    #[schemars(range(max = 1_000_000), extend("x-applies" = LIVE))]
    pub breaker_failures_max: u32,
    /// The result if the backend gives no valid response.
    #[schemars(extend("x-applies" = LIVE))]
    pub on_failure: OnFailure,
    /// Headers of the client's HTTP request to forward: `["Cookie", "Origin"]`.
    #[schemars(extend("x-applies" = LIVE))]
    pub http_headers: Arc<[String]>,
    /// Headers in `headers` of the client's connect command to forward, if its HTTP request does not have
    /// them. The client chooses their values: list only headers that your backend verifies.
    #[schemars(extend("x-applies" = LIVE))]
    pub emulated_headers: Arc<[String]>,
    /// Headers of every request: `Authorization = "Bearer ..."`. A forwarded header of the client with the
    /// same name replaces it.
    #[schemars(extend("x-applies" = LIVE))]
    pub static_headers: Map<Secret>,
    /// Forwards the `meta` of the connection, from its token or the connect proxy.
    #[schemars(extend("x-applies" = LIVE))]
    pub include_connection_meta: bool,
    /// Certificate authorities in PEM to trust instead of the system's.
    #[schemars(extend("x-applies" = LIVE))]
    pub ca: Option<Arc<str>>,
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

/// The proxies for events without a channel; each is a name of `proxies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientProxy {
    /// Decides whether a client without a token may connect, and as which user.
    #[schemars(extend("x-applies" = LIVE))]
    pub connect: Option<Arc<str>>,
    /// Decides whether a connection with an expiry (`expire_at`) from the connect proxy continues after that
    /// time.
    #[schemars(extend("x-applies" = LIVE))]
    pub refresh: Option<Arc<str>>,
    /// Executes the remote procedures that clients call; those with a namespace see `rpc.namespaces`.
    #[schemars(extend("x-applies" = LIVE))]
    pub rpc: Option<Arc<str>>,
}

/// Remote procedures that clients call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Rpc {
    /// Namespaces of methods: `users` has `users:list`. If there are any, a method of an unknown namespace is
    /// refused (error 104).
    #[schemars(extend("x-applies" = LIVE))]
    pub namespaces: Map<RpcNamespace>,
}

/// Methods that one backend executes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RpcNamespace {
    /// The backend; a name of `proxies`.
    #[schemars(extend("x-applies" = LIVE))]
    pub proxy: Arc<str>,
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
