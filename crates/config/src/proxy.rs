use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret};

/// A backend that is asked before something is done: whether a client may connect, subscribe or publish, or what a
/// remote procedure returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Proxy {
    /// Where requests are posted: `http://10.0.0.7:3000/centrifugo/connect`, or `https://`. With `upstream`, path and query
    /// alone: `/centrifugo/connect`.
    #[schemars(extend("x-applies" = LIVE))]
    pub endpoint: Arc<str>,
    /// Spreads requests over the members of this upstream, of `webhooks.upstreams`; its `tls` and `ca` hold, the other
    /// bounds are the proxy's.
    #[schemars(extend("x-applies" = LIVE))]
    pub upstream: Option<Arc<str>>,
    /// How long the backend may take to answer a request.
    #[schemars(range(min = 10, max = 600_000), extend("x-applies" = LIVE))]
    pub timeout_ms: u64,
    /// How long a connection to the backend may take to open.
    #[schemars(range(min = 10, max = 60_000), extend("x-applies" = LIVE))]
    pub connect_timeout_ms: u64,
    /// Connections to the backend, to each member of an upstream, each with one request at a time; the workers share them.
    #[schemars(range(min = 1, max = 65_535), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Requests that may wait for a connection; the workers share them. One more is answered at once, as `on_failure`
    /// says.
    #[schemars(range(max = 1_000_000), extend("x-applies" = LIVE))]
    pub queue_max: u32,
    /// How long a request may wait for a connection.
    #[schemars(range(min = 10, max = 600_000), extend("x-applies" = LIVE))]
    pub queue_timeout_ms: u64,
    /// Bytes of an answer. A longer one is cut off.
    #[schemars(range(min = 1_024, max = 67_108_864), extend("x-applies" = LIVE))]
    pub answer_bytes_max: usize,
    /// After so many requests in a row that the backend, or the member of an upstream, did not answer, it is not asked for a
    /// second, and longer each time, up to 30 s; meanwhile others are asked, or `on_failure` decides at once. 0: it is
    /// always asked.
    #[schemars(range(max = 1_000_000), extend("x-applies" = LIVE))]
    pub breaker_failures_max: u32,
    /// What is decided when the backend gives no valid answer.
    #[schemars(extend("x-applies" = LIVE))]
    pub on_failure: OnFailure,
    /// Headers of the client's own HTTP request that are passed on: `["Cookie", "Origin"]`.
    #[schemars(extend("x-applies" = LIVE))]
    pub http_headers: Arc<[String]>,
    /// Headers from the `headers` of the client's connect command that are passed on, where its HTTP request does
    /// not have them. The client writes what it likes: name those alone that your backend verifies.
    #[schemars(extend("x-applies" = LIVE))]
    pub emulated_headers: Arc<[String]>,
    /// Headers that every request has: `Authorization = "Bearer ..."`. A header of the same name from the client takes
    /// its place, if it is passed on.
    #[schemars(extend("x-applies" = LIVE))]
    pub static_headers: Map<Secret>,
    /// Passes the connection's `meta` on, which its token or the connect proxy has given it.
    #[schemars(extend("x-applies" = LIVE))]
    pub include_connection_meta: bool,
    /// Certificates in PEM, trusted in place of the system's: those of a private authority.
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

/// What is decided when a backend gives no valid answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OnFailure {
    /// The client is answered with error 100 (internal server error) and may try again.
    #[default]
    Error,
    /// As if there were no proxy: the namespace's `allow_…` keys, or `client.anonymous`.
    Rules,
}

/// Which proxy is asked about what concerns no channel; each a name of `proxies`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientProxy {
    /// Asked whether a client without a token may connect, and as whom.
    #[schemars(extend("x-applies" = LIVE))]
    pub connect: Option<Arc<str>>,
    /// Asked whether a connection that the connect proxy let in until a time (`expire_at`) goes on when that has come.
    #[schemars(extend("x-applies" = LIVE))]
    pub refresh: Option<Arc<str>>,
    /// Carries out the remote procedures that clients call; of those with a namespace, see `rpc.namespaces`.
    #[schemars(extend("x-applies" = LIVE))]
    pub rpc: Option<Arc<str>>,
}

/// Remote procedures that clients call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Rpc {
    /// Namespaces of methods: `users` has `users:list`. With any, a method of a namespace that is not among them is refused
    /// (error 104).
    #[schemars(extend("x-applies" = LIVE))]
    pub namespaces: Map<RpcNamespace>,
}

/// Methods that one backend carries out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RpcNamespace {
    /// The backend; a name of `proxies`.
    #[schemars(extend("x-applies" = LIVE))]
    pub proxy: Arc<str>,
}

/// A method is of a namespace that `rpc.namespaces` does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such namespace of methods; add it to rpc.namespaces")]
pub struct UnknownRpcNamespace;

impl Rpc {
    /// The proxy that carries a method out, where it has a namespace and there are any.
    ///
    /// # Errors
    /// The method is of a namespace that is not there.
    pub fn proxy_of(&self, method: &str) -> Result<Option<&Arc<str>>, UnknownRpcNamespace> {
        match method.split_once(':') {
            Some((namespace, _)) if !self.namespaces.is_empty() => {
                self.namespaces.get(namespace).map(|of| Some(&of.proxy)).ok_or(UnknownRpcNamespace)
            }
            _ => Ok(None),
        }
    }
}
