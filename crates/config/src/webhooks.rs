use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Pattern, Secret};

/// Webhooks: events posted to your backend over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Webhooks {
    /// Groups of servers that requests are spread over.
    #[schemars(extend("x-applies" = LIVE))]
    pub upstreams: Map<Upstream>,
    /// Which events go to which upstream.
    #[schemars(extend("x-applies" = LIVE))]
    pub hooks: Map<Hook>,
}

/// A group of servers that requests are spread over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Upstream {
    /// Speaks TLS to its members, whose certificates are verified and bear the host of their address.
    #[schemars(extend("x-applies" = LIVE))]
    pub tls: bool,
    /// Certificates in PEM, trusted in place of the system's: those of a private authority.
    #[schemars(extend("x-applies" = LIVE))]
    pub ca: Option<Arc<str>>,
    /// How long a connection to a member may take to open.
    #[schemars(range(min = 10, max = 60_000), extend("x-applies" = LIVE))]
    pub connect_timeout_ms: u64,
    /// How long a member may take to answer.
    #[schemars(range(min = 10, max = 600_000), extend("x-applies" = LIVE))]
    pub timeout_ms: u64,
    /// Connections kept open to each member.
    #[schemars(range(min = 1, max = 65_535), extend("x-applies" = LIVE))]
    pub connections_per_member_max: u32,
    /// Asks the members whether they are well, and gives no requests to those that are not.
    pub health_check: HealthCheck,
    /// Its servers, each under an id of your choice.
    #[schemars(extend("x-applies" = LIVE))]
    pub members: Map<Member>,
}

impl Default for Upstream {
    fn default() -> Upstream {
        Upstream {
            tls: false,
            ca: None,
            connect_timeout_ms: 1_000,
            timeout_ms: 3_000,
            connections_per_member_max: 8,
            health_check: HealthCheck::default(),
            members: Map::new(),
        }
    }
}

/// How the members of an upstream are checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthCheck {
    /// Path and query of a `GET` to each member, as in `/health`. Not set: members are not checked.
    #[schemars(extend("x-applies" = LIVE))]
    pub path: Option<Arc<str>>,
    /// From the end of a check to the next.
    #[schemars(range(min = 100, max = 3_600_000), extend("x-applies" = LIVE))]
    pub interval_ms: u64,
    /// How long a member may take to answer a check, connecting included.
    #[schemars(range(min = 10, max = 60_000), extend("x-applies" = LIVE))]
    pub timeout_ms: u64,
    /// The status of a member that is well. Not set: any from 200 to 399.
    #[schemars(range(min = 200, max = 599), extend("x-applies" = LIVE))]
    pub status: Option<u16>,
    /// Checks in a row that a member must fail to get no more requests.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub fall: u32,
    /// Checks in a row that it must then pass to get requests again.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub rise: u32,
}

impl Default for HealthCheck {
    fn default() -> HealthCheck {
        HealthCheck {
            path: None,
            interval_ms: 5_000,
            timeout_ms: 1_000,
            status: None,
            fall: 3,
            rise: 2,
        }
    }
}

impl HealthCheck {
    /// Whether members are checked.
    pub fn is_on(&self) -> bool {
        self.path.is_some()
    }

    /// Whether a member that answers with this status is well.
    pub fn passes(&self, status: u16) -> bool {
        self.status.map_or((200..400).contains(&status), |of| of == status)
    }
}

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Member {
    /// Where it listens: `10.0.0.7:8080`, `push-backend:80`, `[2001:db8::7]:80`.
    #[schemars(extend("x-applies" = LIVE))]
    pub address: Arc<str>,
    /// Its share of the requests in proportion to the others'.
    #[schemars(range(min = 1, max = 65_535), extend("x-applies" = LIVE))]
    pub weight: u32,
    /// Is given no requests until it is set back to false.
    #[schemars(extend("x-applies" = LIVE))]
    pub down: bool,
}

impl Default for Member {
    fn default() -> Member {
        Member { address: Arc::default(), weight: 1, down: false }
    }
}

/// Events that go to an upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hook {
    /// The upstream's id, of `webhooks.upstreams`.
    #[schemars(extend("x-applies" = LIVE))]
    pub upstream: Arc<str>,
    /// Path and query of the request.
    #[schemars(extend("x-applies" = LIVE))]
    pub path: Arc<str>,
    /// The events.
    #[schemars(extend("x-applies" = LIVE))]
    pub events: Arc<[HookEventKind]>,
    /// Of which channels, by their whole name as in `chat:*`; not set: of all. `connect` and `disconnect` belong to
    /// no channel and are sent whatever it says.
    #[schemars(extend("x-applies" = LIVE))]
    pub channels: Option<Pattern>,
    /// Events of this tenant, a name of `tenants`, and no others; the channels' names are the tenant's. Not set: events
    /// outside of tenants.
    #[schemars(extend("x-applies" = LIVE))]
    pub tenant: Option<Arc<str>>,
    /// Posts as Pusher does, of the channels of this app, a name of `pusher.apps`: their names without the namespace, `time_ms` and
    /// `events` in one object, signed with the app's secret in `X-Pusher-Signature`.
    #[schemars(extend("x-applies" = LIVE))]
    pub pusher_app: Option<Arc<str>>,
    /// Signs each request (HMAC-SHA256 of the body), so that your backend knows who asks; at least
    /// 16 bytes.
    #[schemars(extend("x-applies" = LIVE))]
    pub secret: Option<Secret>,
    /// Events of one request. Those that happen while others are on their way leave together.
    #[schemars(range(min = 1, max = 10_000), extend("x-applies" = LIVE))]
    pub batch_events_max: u32,
    /// Bytes of one request's body; a larger event has a request to itself.
    #[schemars(range(min = 1_024, max = 16_777_216), extend("x-applies" = LIVE))]
    pub batch_bytes_max: usize,
    /// Bytes of events that may wait. Beyond it events are dropped, counted, and your backend is notified how many.
    #[schemars(range(min = 65_536), extend("x-applies" = LIVE))]
    pub queue_bytes_max: usize,
    /// Times a request is sent that is answered with 408, 425, 429 or 5xx, or has no valid answer, until its events are
    /// dropped. While no member can be reached, events wait and nothing counts.
    #[schemars(range(min = 1, max = 1_000), extend("x-applies" = LIVE))]
    pub attempts_max: u32,
}

impl Default for Hook {
    fn default() -> Hook {
        Hook {
            upstream: Arc::default(),
            path: "/".into(),
            events: Arc::default(),
            channels: None,
            tenant: None,
            pusher_app: None,
            secret: None,
            batch_events_max: 100,
            batch_bytes_max: 65_536,
            queue_bytes_max: 16 << 20,
            attempts_max: 20,
        }
    }
}

/// Something that happened to a client or a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum HookEventKind {
    /// A client connected.
    Connect,
    /// A client is gone.
    Disconnect,
    /// A client subscribed to a channel.
    Subscribe,
    /// A client left a channel.
    Unsubscribe,
    /// A message was published.
    Publish,
    /// A channel has its first subscriber.
    ChannelOccupied,
    /// A channel has no subscriber any more.
    ChannelVacated,
    /// A user is in a presence channel of the Pusher protocol.
    MemberAdded,
    /// A user has left a presence channel of the Pusher protocol with his last connection.
    MemberRemoved,
    /// A client of the Pusher protocol sent an event to others.
    ClientEvent,
    /// A push ended whose outcome is in the feed of outcomes: a durable one, or one whose caller has gone. It belongs to no
    /// channel.
    PushOutcome,
}
