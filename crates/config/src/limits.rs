use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{ClientBudget, Pacing, SharedBudget};

settings! {
    /// Limits of the server's resources.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Limits {
        /// Most connections on the client port, all workers together.
        #[schemars(range(min = 1, max = 100_000_000))]
        pub connections_max: u32 => Read,
        /// Most connections from one address, all workers together; 0 means no limit. Behind a proxy every client
        /// has the proxy's address.
        pub connections_per_address_max: u32 => Read,
        /// Most connections of one user, all workers together, and in a cluster on all nodes; a further one is
        /// refused with code 3504, `connection limit`. Clients without a user are not counted. 0 means no limit.
        #[schemars(range(max = 1_000_000))]
        pub connections_per_user_max: u32 => UserCounts,
        /// Most unauthenticated connections, all workers together: those without a connect command, an API key or
        /// the token of a poll so far. A further one closes the oldest of them. A worker uses at most half of its
        /// file descriptors for them.
        #[schemars(range(min = 16, max = 100_000_000))]
        pub unauthenticated_max: u32 => Limits,
        /// Most unauthenticated connections from one address; a further one is closed at once. 0 means no limit.
        pub unauthenticated_per_address_max: u32 => Read,
        /// Bits of an IPv6 address that count as one address in limits per address. A client with one address of
        /// a network usually has its whole /64.
        #[schemars(range(min = 16, max = 128))]
        pub ipv6_prefix_bits: u8 => Read,
        /// Connections accepted per second, all workers together; further ones wait in the backlog. 0 means no
        /// limit.
        pub accepts_per_s_max: u32 => Read,
        /// TLS handshakes per second, all workers together; further ones wait in the backlog. 0 means no limit.
        pub handshakes_per_s_max: u32 => Read,
        /// TLS handshakes per second from one address; further ones are closed. 0 means no limit.
        pub handshakes_per_address_per_s_max: u32 => Read,
        /// Most bytes of the request line and header fields of an HTTP request.
        #[schemars(range(min = 512, max = 1_048_576))]
        pub head_bytes_max: usize => NewConnections & RequestLimits,
        /// Most header fields of an HTTP request.
        #[schemars(range(min = 8, max = 256))]
        pub headers_max: u16 => NewConnections & RequestLimits,
        /// Time limit for the head of a request, including a WebSocket handshake, from its first byte or from the
        /// connect. It also limits the time of the body after that, of a TLS handshake, and of a proxy's header.
        #[schemars(range(min = 100, max = 600_000))]
        pub head_timeout_ms: u64 => NewConnections & RequestLimits,
        /// How long a connection may be idle between two requests.
        #[schemars(range(min = 100, max = 86_400_000))]
        pub keep_alive_timeout_ms: u64 => NewConnections & RequestLimits,
        /// Most bytes of the body of an HTTP request, including a `batch` of the API.
        #[schemars(range(min = 1_024, max = 1_073_741_824))]
        pub body_bytes_max: usize => NewConnections & RequestLimits & Limits,
        /// Most bytes in buffers of connections, all workers together: incomplete requests and messages, and
        /// responses that were not read. Beyond seven eighths of it, connections of the addresses with the most
        /// bytes are closed. 0: an eighth of the memory that this process may use, at most 1 GiB. Else at least 1 MiB.
        #[schemars(range(min = 0))]
        pub buffered_bytes_max: usize => Limits,
        /// Most bytes in buffers of connections of one address; beyond it, its connections with the most bytes
        /// are closed. On each worker an address may always hold one body and one response of the largest size.
        /// 0: a quarter of `limits.buffered_bytes_max`. Else at least 1 MiB.
        #[schemars(range(min = 0))]
        pub buffered_bytes_per_address_max: usize => Limits,
        /// Most bytes of one response. A page of history ends there, after at least one message, and continues
        /// with the next page; a client that missed more does not recover; further commands of a batch are
        /// answered with error 106, and a batch with more commands than there is room for the shortest answers to is
        /// refused. Responses to clients are also limited by `outbox_bytes_max`.
        #[schemars(range(min = 65_536, max = 1_073_741_824))]
        pub answer_bytes_max: usize => Namespaces & Limits,
        /// Most bytes of a WebSocket frame from a client.
        #[schemars(range(min = 125, max = 1_073_741_824))]
        pub frame_bytes_max: usize => NewConnections,
        /// Most bytes of a WebSocket message from a client, decompressed, with all its frames.
        #[schemars(range(min = 125, max = 1_073_741_824))]
        pub message_bytes_max: usize => NewConnections,
        /// Most bytes of the data of a publication, from a client or the API.
        #[schemars(range(min = 1, max = 1_073_741_824))]
        pub publication_bytes_max: usize => Namespaces & Limits,
        /// Most bytes of the tags and the version epoch of a publication, plus 16 bytes for each tag.
        #[schemars(range(max = 1_048_576))]
        pub tags_bytes_max: usize => Read,
        /// Most bytes of the idempotency key of a publication.
        #[schemars(range(min = 16, max = 4_096))]
        pub idempotency_key_bytes_max: usize => Read,
        /// The rates of a client with a user.
        pub client_budget: ClientBudget,
        /// The rates of an anonymous client.
        pub anonymous_budget: ClientBudget,
        /// The rates of all clients of one user.
        pub user_budget: SharedBudget,
        /// The rates of all clients of one address. Behind a proxy every client may have the proxy's address.
        pub address_budget: SharedBudget,
        /// Most channels that one client may be subscribed to.
        #[schemars(range(min = 1, max = 65_535))]
        pub subscriptions_per_client_max: u32 => Limits,
        /// Most bytes of a channel's name.
        #[schemars(range(min = 1, max = 1_024))]
        pub channel_bytes_max: usize => Limits,
        /// Most channels with subscribers on one worker, and most channels at home on one worker, including those
        /// with history only.
        #[schemars(range(min = 1, max = 1_000_000_000))]
        pub channels_max: u32 => Limits,
        /// Most channels with history created by the clients of one user, or by anonymous clients of one address,
        /// divided evenly between workers; beyond it their channels without messages and subscribers are removed
        /// to make room. On each worker they may be subscribed to as many channels that no other user subscribed
        /// to first.
        #[schemars(range(min = 1, max = 1_000_000_000))]
        pub channels_per_user_max: u32 => Limits,
        /// Most bytes waiting for one client to read them; beyond it the channel's `overflow` policy applies.
        #[schemars(range(min = 4_096, max = 1_073_741_824))]
        pub outbox_bytes_max: usize => Namespaces & Limits,
        /// Most bytes waiting for all clients together; beyond it the slowest clients are disconnected. A message
        /// that waits for many clients counts once for each worker. Commands and calls of proxies that wait have the
        /// same bound. 0: an eighth of the memory that this process may use, at most 1 GiB. Else at least 1 MiB.
        #[schemars(range(min = 0))]
        pub pending_bytes_max: usize => Limits,
        /// Most bytes of history, all channels together. Beyond it messages of the namespace with the most bytes are
        /// removed early, in it those of the user, or of the channel with several publishers, that holds most. 0: a quarter
        /// of the memory that this process may use, at most 1 GiB. Else at least 1 MiB.
        #[schemars(range(min = 0))]
        pub history_bytes_max: usize => Limits,
        /// Most bytes of the filters that clients have subscribed with, divided evenly between workers. Of what is left of
        /// it, the clients of one user (or the anonymous ones of one address) may hold an eighth, and the channels of a
        /// namespace four times as much as is left; a filter beyond is refused for now (error 111).
        #[schemars(range(min = 1_048_576))]
        pub filter_bytes_max: usize => Limits,
        /// Most messages in the response to one history call.
        #[schemars(range(min = 1, max = 1_000_000))]
        pub history_messages_max: u32 => Read,
        /// Most messages of one recovery; a client that missed more gets `recovered: false`.
        #[schemars(range(min = 1, max = 1_000_000))]
        pub recovery_messages_max: u32 => Namespaces,
        /// Most idempotency keys, all workers together; beyond it the oldest is removed early.
        #[schemars(range(min = 1, max = 100_000_000))]
        pub idempotency_keys_max: u32 => Limits,
        /// Most notifications to one user in a minute, in one or several requests; a further one ends as
        /// `not_sent` with `user_limit`. 0 means no limit.
        #[schemars(range(max = 60_000))]
        pub pushes_per_user_per_min_max: u32 => Read,
        /// Most pushes to one device in a minute; a further one ends as `not_sent` with `device_limit`. 0 means
        /// no limit.
        #[schemars(range(max = 60_000))]
        pub pushes_per_device_per_min_max: u32 => Read,
        /// The rate of all broadcasts from one worker together.
        pub broadcast_pacing: Pacing,
        /// Messages that fit the ring buffer from one worker to another; a power of two. A ring uses memory for
        /// the messages that recently waited in it, not for the limit.
        #[schemars(range(min = 16, max = 1_048_576))]
        pub bus_slots: u32 => BusSlots,
        /// Most bytes that a worker queues for another worker whose ring is full; beyond it messages are refused,
        /// and a client that misses one is notified.
        #[schemars(range(min = 65_536))]
        pub bus_backlog_bytes_max: usize => Limits,
        /// Clients of broadcasts written to in one turn of a worker's loop, after everything else. A channel with
        /// more subscribers on a worker is broadcast over several turns, so that other messages need not wait. 0:
        /// every message is written in one turn.
        #[schemars(range(max = 1_000_000))]
        pub broadcast_quantum: u32 => Pacing & Limits,
        /// How long a worker waits for the response of another worker.
        #[schemars(range(min = 10, max = 600_000))]
        pub bus_request_timeout_ms: u64 => Limits,
    }
}

impl Default for Limits {
    fn default() -> Limits {
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        Limits {
            // Twice the million one small machine is asked to hold; at 300 B each, 600 MB.
            connections_max: 2_000_000,
            // As many as one address has ports for one destination.
            connections_per_address_max: 65_535,
            connections_per_user_max: 0,
            // What 100,000 connects a second with two round trips of 300 ms each have under way.
            unauthenticated_max: 65_536,
            unauthenticated_per_address_max: 8_192,
            ipv6_prefix_bits: 64,
            accepts_per_s_max: 100_000,
            // What one core signs with an elliptic curve.
            handshakes_per_s_max: 10_000,
            handshakes_per_address_per_s_max: 500,
            head_bytes_max: 16 * KIB,
            headers_max: 100,
            head_timeout_ms: 10_000,
            keep_alive_timeout_ms: 75_000,
            body_bytes_max: 4 * MIB,
            buffered_bytes_max: 0,
            buffered_bytes_per_address_max: 0,
            answer_bytes_max: 4 * MIB,
            frame_bytes_max: 64 * KIB,
            message_bytes_max: 64 * KIB,
            publication_bytes_max: 512 * KIB,
            tags_bytes_max: 4 * KIB,
            idempotency_key_bytes_max: 255,
            client_budget: ClientBudget::default(),
            anonymous_budget: ClientBudget::default(),
            user_budget: SharedBudget::default(),
            address_budget: SharedBudget::default(),
            subscriptions_per_client_max: 128,
            channel_bytes_max: 255,
            channels_max: 2_000_000,
            channels_per_user_max: 100_000,
            outbox_bytes_max: MIB,
            pending_bytes_max: 0,
            history_bytes_max: 0,
            filter_bytes_max: 128 * MIB,
            history_messages_max: 1_000,
            recovery_messages_max: 1_000,
            idempotency_keys_max: 1_000_000,
            pushes_per_user_per_min_max: 0,
            pushes_per_device_per_min_max: 0,
            broadcast_pacing: Pacing::default(),
            bus_slots: 4_096,
            bus_backlog_bytes_max: 64 * MIB,
            broadcast_quantum: 64,
            bus_request_timeout_ms: 5_000,
        }
    }
}
