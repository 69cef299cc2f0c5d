use std::net::SocketAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Map, Secret};

settings! {
    /// Messages between this server and servers of other owners: see `docs/operating/federation.md`. To change it takes the role
    /// `program`.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Federation {
        /// Whether there are links to peers, and `user@domain` may mean a user of one.
        pub enabled: bool => Federation,
        /// The domain of this server, as its peers name it: `a.example`. Its users are `user@a.example` there.
        pub domain: Arc<str> => Federation,
        /// The private key of this domain, by which peers know it: 64 hexadecimal digits. `dunlin federation key` makes one, and
        /// prints the public key for the peers.
        pub key: Option<Secret> => Federation,
        /// The address to which peers connect, with TLS: `0.0.0.0:7443`. Not set: links are only dialed.
        #[schemars(extend("format" = "socket-address"))]
        pub listen: Option<SocketAddr> => Federation,
        /// Who among the clients may send to users of peers, by the remote procedure `dunlin.send`.
        pub client_send: ClientSend => Read,
        /// How long a call that sends a message waits for its delivery. After that it is answered with `queued`, and a message that
        /// fails later is reported to its sender.
        #[schemars(range(max = 10_000))]
        pub answer_timeout_ms: u64 => Federation,
        /// Most bytes that wait for one peer. A further message fails with `queue_full`.
        #[schemars(range(min = 65_536, max = 1_099_511_627_776_i64))]
        pub queue_bytes_max: usize => Federation,
        /// How old a message may become that cannot be delivered. It then fails with `expired`.
        #[schemars(range(min = 1_000, max = 2_592_000_000_i64))]
        pub expiry_ms: u64 => Federation,
        /// The domains that messages are exchanged with, each by its name.
        pub peers: Map<FederationPeer> | Federation,
    }

    /// Another domain.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct FederationPeer {
        /// Host and port of its `federation.listen`: `b.example:7443`. Empty: it connects to this server.
        pub address: Arc<str> => Federation,
        /// Its public key, or two while it changes from one to the other.
        pub keys: Arc<[String]> => Federation,
        /// There is no link, and messages to it fail with `no_peer`.
        pub blocked: bool => Federation,
        /// Users here to whom it may send; empty: all. Others are unreachable, as if they did not exist.
        pub recipients: Arc<[String]> => Federation,
        /// Its users whose messages are refused, by their names there.
        pub blocked_users: Arc<[String]> => Federation,
        /// Messages a minute of each of its users; further ones fail with `limited`. 0: unlimited.
        pub user_messages_per_minute_max: u32 => Federation,
        /// Pairs of a sender and a recipient a minute that have not been seen before; messages of further ones fail with `limited`.
        /// 0: unlimited.
        pub new_pairs_per_minute_max: u32 => Federation,
        /// Bytes of messages a second that it may send; it waits with more. 0: unlimited.
        pub bytes_per_s: u64 => Federation,
    }
}

/// Who among the clients may send to users of peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ClientSend {
    /// None; the server API may.
    #[default]
    Nobody,
    /// Every client that has a user.
    Users,
}

impl Default for Federation {
    fn default() -> Federation {
        Federation {
            enabled: false,
            domain: "".into(),
            key: None,
            listen: None,
            client_send: ClientSend::default(),
            answer_timeout_ms: 1_000,
            queue_bytes_max: 64 << 20,
            expiry_ms: 86_400_000,
            peers: Map::new(),
        }
    }
}

impl Federation {
    /// Returns the peer of a domain, unless federation is off or the peer is blocked.
    pub fn peer(&self, domain: &str) -> Option<&FederationPeer> {
        self.peers.get(domain).filter(|peer| self.enabled && !peer.blocked)
    }
}
