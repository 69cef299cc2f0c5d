use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Map, Pattern, Secret};

settings! {
    /// Webhooks: events posted to your backend over HTTP.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Webhooks {
        /// Groups of servers that requests are distributed over.
        pub upstreams: Map<Upstream> | Upstreams,
        /// Hooks: the events that each upstream receives.
        pub hooks: Map<Hook> | Hooks,
    }
}

settings! {
    /// A group of servers that requests are distributed over.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Upstream {
        /// Uses TLS to the members. Their certificates are verified and must have the host of their address.
        pub tls: bool => Upstreams,
        /// Certificate authorities in PEM to trust instead of the system's.
        pub ca: Option<Arc<str>> => Upstreams,
        /// Time limit for opening a connection to a member.
        #[schemars(range(min = 10, max = 60_000))]
        pub connect_timeout_ms: u64 => Upstreams,
        /// Time limit for the response of a member.
        #[schemars(range(min = 10, max = 600_000))]
        pub timeout_ms: u64 => Upstreams,
        /// Connections kept open to each member.
        #[schemars(range(min = 1, max = 65_535))]
        pub connections_per_member_max: u32 => Upstreams,
        /// Checks the health of members; unhealthy ones get no requests.
        pub health_check: HealthCheck,
        /// Its servers, each under an id of your choice.
        pub members: Map<Member> | Upstreams,
    }
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

settings! {
    /// Health checks of the members of an upstream.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct HealthCheck {
        /// Path and query of a `GET` to each member, as in `/health`. Not set: members are not checked.
        pub path: Option<Arc<str>> => Upstreams,
        /// Time from the end of a check to the start of the next.
        #[schemars(range(min = 100, max = 3_600_000))]
        pub interval_ms: u64 => Upstreams,
        /// Time limit of a check, including connecting.
        #[schemars(range(min = 10, max = 60_000))]
        pub timeout_ms: u64 => Upstreams,
        /// The status of a healthy member. Not set: any from 200 to 399.
        #[schemars(range(min = 200, max = 599))]
        pub status: Option<u16> => Upstreams,
        /// Failed checks in a row after which a member gets no more requests.
        #[schemars(range(min = 1, max = 1_000))]
        pub fall: u32 => Upstreams,
        /// Successful checks in a row after which it gets requests again.
        #[schemars(range(min = 1, max = 1_000))]
        pub rise: u32 => Upstreams,
    }
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
    /// Returns whether members are checked.
    pub fn is_on(&self) -> bool {
        self.path.is_some()
    }

    /// Returns whether a member that responds with this status is healthy.
    pub fn passes(&self, status: u16) -> bool {
        self.status.map_or((200..400).contains(&status), |of| of == status)
    }
}

settings! {
    /// One server of an upstream.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Member {
        /// The address of the server: `10.0.0.7:8080`, `push-backend:80`, `[2001:db8::7]:80`.
        pub address: Arc<str> => Upstreams,
        /// Its share of the requests relative to other members.
        #[schemars(range(min = 1, max = 65_535))]
        pub weight: u32 => Upstreams,
        /// Sends it no requests until this is set to false.
        pub down: bool => Upstreams,
    }
}

impl Default for Member {
    fn default() -> Member {
        Member { address: Arc::default(), weight: 1, down: false }
    }
}

settings! {
    /// Events that an upstream receives.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Hook {
        /// The id of the upstream; a name of `webhooks.upstreams`.
        pub upstream: Arc<str> => Hooks,
        /// Path and query of the request.
        pub path: Arc<str> => Hooks,
        /// The events.
        pub events: Arc<[HookEventKind]> => Hooks,
        /// A pattern of full channel names, for example `chat:*`; not set: all channels. `connect` and
        /// `disconnect` have no channel and are always sent.
        pub channels: Option<Pattern> => Hooks,
        /// Sends only events of this tenant, a name of `tenants`; channel names are the tenant's. Not set: events
        /// of no tenant.
        pub tenant: Option<Arc<str>> => Hooks,
        /// Posts events of this app, a name of `pusher.apps`, in Pusher's format: channel names without the
        /// namespace, `time_ms` and `events` in one object, signed with the app's secret in `X-Pusher-Signature`.
        pub pusher_app: Option<Arc<str>> => Hooks,
        /// The secret that signs each request (HMAC-SHA256 of the body), so that your backend can authenticate
        /// it; at least 16 bytes.
        pub secret: Option<Secret> => Hooks,
        /// Most events of one request. Events that occur while a request is in flight are sent together.
        #[schemars(range(min = 1, max = 10_000))]
        pub batch_events_max: u32 => Hooks,
        /// Most bytes of the body of a request; a larger event is sent alone.
        #[schemars(range(min = 1_024, max = 16_777_216))]
        pub batch_bytes_max: usize => Hooks,
        /// Most bytes of queued events. Beyond it the user or channel with the most queued events loses its newest;
        /// they are counted, and your backend is notified of their number.
        #[schemars(range(min = 65_536))]
        pub queue_bytes_max: usize => Hooks,
        /// Attempts to send a request that is answered with 408, 425, 429 or 5xx, or gets no valid response;
        /// after that its events are dropped. While no member can be reached, events wait and no attempt is
        /// counted.
        #[schemars(range(min = 1, max = 1_000))]
        pub attempts_max: u32 => Hooks,
    }
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

/// An event of a client or a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum HookEventKind {
    /// A client connected.
    Connect,
    /// A client disconnected.
    Disconnect,
    /// A client subscribed to a channel.
    Subscribe,
    /// A client unsubscribed from a channel.
    Unsubscribe,
    /// A message was published.
    Publish,
    /// A channel has its first subscriber.
    ChannelOccupied,
    /// A channel has no subscribers any more.
    ChannelVacated,
    /// A user joined a presence channel of the Pusher protocol.
    MemberAdded,
    /// The last connection of a user left a presence channel of the Pusher protocol.
    MemberRemoved,
    /// A client of the Pusher protocol sent an event to others.
    ClientEvent,
    /// A push has ended whose outcome is in the feed of outcomes: a durable push, or one whose caller has
    /// disconnected. It has no channel.
    PushOutcome,
}
