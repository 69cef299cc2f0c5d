use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClientBudget, LIVE, NEW_CONNECTIONS, Pacing, SharedBudget};

/// The bound of everything that could grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections on the client port, all workers together.
    #[schemars(range(min = 1, max = 100_000_000), extend("x-applies" = LIVE))]
    pub connections_max: u32,
    /// Connections from one address, all workers together; 0 means no bound. Behind a proxy every
    /// client has the proxy's address.
    #[schemars(extend("x-applies" = LIVE))]
    pub connections_per_address_max: u32,
    /// Connections of one user, all workers together; one more is refused with code 3504, `connection limit`. In a cluster those
    /// on all nodes. Clients without a user are not counted. 0 means no bound.
    #[schemars(range(max = 1_000_000), extend("x-applies" = LIVE))]
    pub connections_per_user_max: u32,
    /// Connections whose peers have not shown who they are, all workers together: neither by a connect command, nor by
    /// an API key, nor by the token of a poll. One more closes the oldest of them. A worker takes no more than half of
    /// its file descriptors for them.
    #[schemars(range(min = 16, max = 100_000_000), extend("x-applies" = LIVE))]
    pub unauthenticated_max: u32,
    /// The same from one address; one more is closed at once. 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub unauthenticated_per_address_max: u32,
    /// Bits of an IPv6 address that count as one address in limits per address: who has one address of a network
    /// usually has the whole /64.
    #[schemars(range(min = 16, max = 128), extend("x-applies" = LIVE))]
    pub ipv6_prefix_bits: u8,
    /// Connections accepted in a second, all workers together; more wait in the backlog. 0 means no
    /// bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub accepts_per_s_max: u32,
    /// TLS handshakes begun in a second, all workers together; more wait in the backlog. 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub handshakes_per_s_max: u32,
    /// The same of one address; one more is closed. 0 means no bound.
    #[schemars(extend("x-applies" = LIVE))]
    pub handshakes_per_address_per_s_max: u32,
    /// Request line and header fields of one HTTP request.
    #[schemars(range(min = 512, max = 1_048_576), extend("x-applies" = NEW_CONNECTIONS))]
    pub head_bytes_max: usize,
    /// Header fields of one HTTP request.
    #[schemars(range(min = 8, max = 256), extend("x-applies" = NEW_CONNECTIONS))]
    pub headers_max: u16,
    /// How long the head of a request may take, that of a WebSocket handshake included, counted from its first byte or
    /// from the connect; how long its body may take after that; how long a TLS handshake or a proxy's header may take.
    #[schemars(range(min = 100, max = 600_000), extend("x-applies" = NEW_CONNECTIONS))]
    pub head_timeout_ms: u64,
    /// How long a connection may rest between two requests.
    #[schemars(range(min = 100, max = 86_400_000), extend("x-applies" = NEW_CONNECTIONS))]
    pub keep_alive_timeout_ms: u64,
    /// Body of one HTTP request, a `batch` of the API included.
    #[schemars(range(min = 1_024, max = 1_073_741_824), extend("x-applies" = NEW_CONNECTIONS))]
    pub body_bytes_max: usize,
    /// Bytes of connections that are held in buffers, all workers together: requests and messages of which a part has come,
    /// answers that were not read. Beyond seven eighths of it the addresses with the most lose connections.
    #[schemars(range(min = 1_048_576), extend("x-applies" = LIVE))]
    pub buffered_bytes_max: usize,
    /// The same of one address; beyond it its connections with the most are closed. On each worker an address may hold one
    /// body and one answer of the largest size in any case.
    #[schemars(range(min = 1_048_576), extend("x-applies" = LIVE))]
    pub buffered_bytes_per_address_max: usize,
    /// Bytes of one answer. A page of history ends there, with one message at least, and goes on with the next; a client that
    /// missed more recovers nothing; the commands of a batch behind it are answered with error 106. Answers to clients are bounded by
    /// `outbox_bytes_max` too.
    #[schemars(range(min = 65_536, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub answer_bytes_max: usize,
    /// One WebSocket frame from a client.
    #[schemars(range(min = 125, max = 1_073_741_824), extend("x-applies" = NEW_CONNECTIONS))]
    pub frame_bytes_max: usize,
    /// One WebSocket message from a client, its frames joined and inflated.
    #[schemars(range(min = 125, max = 1_073_741_824), extend("x-applies" = NEW_CONNECTIONS))]
    pub message_bytes_max: usize,
    /// Data of one publication, whether a client or the API publishes it.
    #[schemars(range(min = 1, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub publication_bytes_max: usize,
    /// Tags and version epoch of one publication together, 16 bytes more for each tag.
    #[schemars(range(max = 1_048_576), extend("x-applies" = LIVE))]
    pub tags_bytes_max: usize,
    /// The idempotency key of one publication.
    #[schemars(range(min = 16, max = 4_096), extend("x-applies" = LIVE))]
    pub idempotency_key_bytes_max: usize,
    /// What a client with a user may ask for.
    pub client_budget: ClientBudget,
    /// What an anonymous client may ask for.
    pub anonymous_budget: ClientBudget,
    /// What all clients of one user may ask for.
    pub user_budget: SharedBudget,
    /// What all clients of one address may ask for. Behind a proxy every client may have the proxy's address.
    pub address_budget: SharedBudget,
    /// Channels one client may be subscribed to.
    #[schemars(range(min = 1, max = 65_535), extend("x-applies" = LIVE))]
    pub subscriptions_per_client_max: u32,
    /// Length of a channel's name.
    #[schemars(range(min = 1, max = 1_024), extend("x-applies" = LIVE))]
    pub channel_bytes_max: usize,
    /// Channels one worker may have subscribers of, and channels one worker may be the home of, those
    /// without a subscriber but with history included.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("x-applies" = LIVE))]
    pub channels_max: u32,
    /// Channels with history that the clients of one user may bring into being, or anonymous clients of one address, about as
    /// many on each worker: those of theirs that hold nothing give way to new ones. On each worker they may be subscribed to
    /// as many that nobody else has come to first.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("x-applies" = LIVE))]
    pub channels_per_user_max: u32,
    /// Bytes that wait for one client to read them; beyond it the channel's `overflow` policy acts.
    #[schemars(range(min = 4_096, max = 1_073_741_824), extend("x-applies" = LIVE))]
    pub outbox_bytes_max: usize,
    /// Bytes that wait for clients to read them, all clients together; beyond it the slowest clients
    /// are disconnected. A message many clients wait for counts once for each worker.
    #[schemars(range(min = 1_048_576), extend("x-applies" = LIVE))]
    pub pending_bytes_max: usize,
    /// Bytes of history, all channels together; beyond it the oldest messages of the namespace that holds most leave early,
    /// and in it those of the channel published to, if it holds as much as others do.
    #[schemars(range(min = 1_048_576), extend("x-applies" = LIVE))]
    pub history_bytes_max: usize,
    /// Messages one history call may return.
    #[schemars(range(min = 1, max = 1_000_000), extend("x-applies" = LIVE))]
    pub history_messages_max: u32,
    /// Messages one recovery may return; a client that missed more gets `recovered: false`.
    #[schemars(range(min = 1, max = 1_000_000), extend("x-applies" = LIVE))]
    pub recovery_messages_max: u32,
    /// Idempotency keys remembered, all workers together; beyond it the oldest is forgotten early.
    #[schemars(range(min = 1, max = 100_000_000), extend("x-applies" = LIVE))]
    pub idempotency_keys_max: u32,
    /// Notifications to one user in a minute, all at once or one by one; one more ends as `not_sent` with `user_limit`. 0 means
    /// no bound.
    #[schemars(range(max = 60_000), extend("x-applies" = LIVE))]
    pub pushes_per_user_per_min_max: u32,
    /// Pushes to one device in a minute, likewise; one more ends as `not_sent` with `device_limit`. 0 means no bound.
    #[schemars(range(max = 60_000), extend("x-applies" = LIVE))]
    pub pushes_per_device_per_min_max: u32,
    /// How fast all broadcasts of one worker together may leave.
    pub broadcast_pacing: Pacing,
    /// Messages that fit the ring from one worker to another; a power of two. A ring has memory for
    /// the most that waited in it of late, not for the bound.
    #[schemars(range(min = 16, max = 1_048_576), extend("x-applies" = LIVE))]
    pub bus_slots: u32,
    /// Bytes a worker holds back for another whose ring is full; beyond it messages are refused, and
    /// a client that misses one is notified.
    #[schemars(range(min = 65_536), extend("x-applies" = LIVE))]
    pub bus_backlog_bytes_max: usize,
    /// Clients of broadcasts written in one turn of a worker's loop, after everything else. A channel with
    /// more subscribers on a worker is broadcast by and by, so that other messages need not wait for it. 0:
    /// every message leaves in one turn.
    #[schemars(range(max = 1_000_000), extend("x-applies" = LIVE))]
    pub broadcast_quantum: u32,
    /// How long a worker waits for another worker's answer.
    #[schemars(range(min = 10, max = 600_000), extend("x-applies" = LIVE))]
    pub bus_request_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        const GIB: usize = 1 << 30;
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
            buffered_bytes_max: GIB,
            buffered_bytes_per_address_max: 256 * MIB,
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
            pending_bytes_max: GIB,
            history_bytes_max: GIB,
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
