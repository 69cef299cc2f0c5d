//! All metrics of the server, each with one enum variant and one line of help.
//!
//! A worker counts into its own [`Counters`], which only it writes: a count is a plain load and store, no locked
//! instruction. The admin thread reads all of them for `/metrics`.

pub(crate) mod effect_counts;
pub(crate) mod labelled;
pub(crate) mod log_gate;
pub(crate) mod loop_stats;
pub(crate) mod namespaces;
pub(crate) mod process;
pub(crate) mod transports;

use dunlin_metrics::{Collector, DescriptorEncoder, metrics};

metrics! {
    /// A metric that each worker counts separately.
    Metric,
    /// The metrics of one worker: written by that worker alone, read by anyone.
    Counters;
    Connections, Gauge, "connections", "Open client connections.";
    Unauthenticated, Gauge, "connections_unauthenticated", "Open connections whose peers have not shown who they are.";
    Sessions, Sum, "sessions", "Sessions of connected clients, on every transport.";
    Subscriptions, Gauge, "subscriptions", "Subscriptions of all sessions.";
    Channels, Gauge, "channels", "Channels at home on this worker.";
    BufferedBytes, Gauge, "connection_buffered_bytes", "Bytes of connections held in buffers: parts of requests and messages, answers that were not read.";
    OutboxBytes, Gauge, "outbox_bytes", "Bytes queued in outboxes for slow clients.";
    HistoryBytes, Gauge, "history_bytes", "Bytes of publications kept in channel histories.";
    FilterBytes, Gauge, "filter_bytes", "Bytes of the filters that clients have subscribed with.";
    Accepted, Counter, "connections_accepted_total", "Connections accepted.";
    RefusedTotal, Sum, "connections_refused_total", "Connections refused: limits.connections_max reached.";
    RefusedAddress, Sum, "connections_refused_address_total", "Connections refused: limits.connections_per_address_max reached.";
    RefusedUser, Sum, "connections_refused_user_total", "Connections refused: limits.connections_per_user_max reached.";
    RefusedUnauthenticated, Sum, "connections_refused_unauthenticated_total", "Connections refused: limits.unauthenticated_per_address_max reached.";
    Displaced, Counter, "connections_displaced_total", "Connections closed unauthenticated to make room for newer ones: limits.unauthenticated_max reached, or no file descriptor left.";
    ProxyFailed, Counter, "proxy_headers_refused_total", "Connections of trusted proxies closed: their PROXY protocol header was malformed or did not come.";
    ForwardedMalformed, Counter, "forwarded_for_refused_total", "Requests of trusted proxies refused: X-Forwarded-For had something else than addresses.";
    HandshakesFailed, Counter, "tls_handshakes_failed_total", "TLS handshakes that failed or took too long.";
    HandshakesRefused, Sum, "tls_handshakes_refused_total", "Connections refused: limits.handshakes_per_address_per_s_max reached.";
    HandshakesPaused, Counter, "tls_handshakes_paused_total", "Times accepting TLS connections paused: limits.handshakes_per_s_max reached.";
    BuffersEvicted, Counter, "connections_closed_buffered_total", "Connections closed: they held the most of what limits.buffered_bytes_max and its like allow.";
    RefusedRate, Counter, "connections_refused_rate_total", "Times accepting paused: limits.accepts_per_s_max reached.";
    RefusedDescriptors, Counter, "accept_descriptor_exhausted_total", "Times accepting paused: no file descriptor was left.";
    Closed, Sum, "connections_closed_total", "Connections closed, for any reason.";
    DeadlinesMissed, Counter, "connections_timed_out_total", "Connections closed: a request, a handshake, a connect command or a pong came too late.";
    HttpRequests, Counter, "http_requests_total", "HTTP requests, the server API included.";
    HttpErrors, Sum, "http_request_errors_total", "HTTP requests answered with a 4xx or 5xx status, malformed ones included.";
    ApiCommands, Sum, "api_commands_total", "Server API commands, each command of a batch counted.";
    ApiErrors, Counter, "api_errors_total", "Server API commands answered with an error.";
    Commands, Sum, "client_commands_total", "Commands of the client protocol.";
    CommandErrors, Sum, "client_command_errors_total", "Commands of the client protocol answered with an error.";
    KeysAwaited, Counter, "token_keys_awaited_total", "Times a client's command had to wait for the key of its token.";
    CommandsDelayed, Counter, "client_commands_delayed_total", "Times a client's commands had to wait: its budget, or its share of a turn, was used up.";
    Disconnects, Sum, "client_disconnects_total", "Clients disconnected by the server with a code.";
    ProtocolErrors, Counter, "protocol_errors_total", "Malformed HTTP, WebSocket or client protocol input.";
    MessagesIn, Counter, "publications_received_total", "Publications received on this worker from clients and the server API.";
    MessagesOut, Counter, "messages_delivered_total", "Messages put into client outboxes.";
    MessagesDropped, Counter, "messages_dropped_total", "Messages dropped by an outbox policy; the client is notified.";
    SlowDisconnects, Counter, "slow_client_disconnects_total", "Clients disconnected: their outbox overflowed.";
    Gaps, Counter, "subscription_gaps_total", "Subscriptions notified that messages are missing.";
    Recovered, Counter, "recoveries_total", "Subscriptions that recovered every missed message from history.";
    Unrecovered, Counter, "recoveries_failed_total", "Subscriptions that asked to recover and for which history did not reach back.";
    BytesOut, Counter, "bytes_sent_total", "Bytes written to sessions.";
    Writes, Counter, "writes_total", "Write system calls for sessions.";
    BusRefused, Counter, "bus_refused_total", "Messages to another worker that were queued: its ring was full.";
    BusWakes, Counter, "bus_wakes_total", "Sleeping workers woken.";
    Pings, Counter, "pings_sent_total", "Pings sent to clients.";
    WebhookEvents, Counter, "webhook_events_emitted_total", "Events sent to the webhooks thread.";
    WebhookOverflow, Counter, "webhook_overflow_total", "Events dropped on their way to the webhooks thread: it did not keep up.";
    EngineChannels, Gauge, "engine_channels", "Channels that this worker hears from an engine.";
    EngineHeldBytes, Gauge, "engine_held_bytes", "Bytes of publications of engines that wait behind a missing one.";
    EngineTimeouts, Counter, "engine_timeouts_total", "Requests that an engine has not answered in time.";
    EngineReads, Counter, "engine_reads_total", "Streams of engines read, for a gap or for a recovery.";
    EngineRepaired, Counter, "engine_gaps_repaired_total", "Gaps of engines that were repaired before a subscriber saw them.";
    EngineUnrepaired, Counter, "engine_gaps_unrepaired_total", "Gaps of engines that could not be repaired; the subscribers were notified.";
    Acks, Counter, "acknowledgements_total", "Acknowledgements that moved a cursor.";
    Cursors, Gauge, "cursors", "Users with cursors in channels in memory, each channel counted.";
    CursorBytes, Gauge, "cursor_bytes", "Bytes of these cursors.";
    CursorsExpired, Counter, "cursors_expired_total", "Cursors of devices that had not acknowledged for `ack_ttl_ms`.";
    CursorsEvicted, Counter, "cursors_evicted_total", "Users' cursors in a channel in memory given up for others: `ack_bytes_max` is reached.";
    Redelivered, Counter, "redeliveries_total", "Messages sent again because they were not acknowledged within `ack_timeout_ms`.";
    WindowsFull, Gauge, "ack_windows_full", "Subscriptions that wait for an acknowledgement, or catch up, before they are sent what is new.";
    DeadLetters, Counter, "dead_letters_total", "Messages that were not acknowledged after `ack_deliveries_max` deliveries, and went to `ack_dead_letter`.";
    DeadLettersFailed, Counter, "dead_letters_failed_total", "Attempts to put such a message there that failed: it stays where it is.";
    Polls, Counter, "polls_total", "Long-poll requests.";
    Restarts, Counter, "worker_restarts_total", "Times this worker restarted after a panic.";
    Turns, Counter, "loop_turns_total", "Turns of the event loop.";
}

metrics! {
    /// A metric of the configuration, written by the admin thread.
    ConfigMetric,
    /// The metrics of the configuration.
    ConfigCounters;
    Revision, Gauge, "config_revision", "Revision every worker runs.";
    DurableRevision, Gauge, "config_durable_revision", "Newest revision known to be on disk.";
    Changes, Counter, "config_changes_total", "Changes in effect since the start.";
    CertificateExpiry, Gauge, "tls_certificate_expiry_timestamp_seconds", "When the first certificate of tls.certificates expires, in Unix time; without any there is no such series.";
    CertificatesRefused, Counter, "tls_certificates_refused_total", "Times changed files of tls.certificates could not be used; the certificates before them stay.";
    RolledBack, Counter, "config_rolled_back_total", "Commits rolled back: a worker could not switch.";
}

impl Collector for ConfigCounters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        // Without a certificate the value is 0, and an alert on a near expiry would fire.
        let is_shown = |metric| metric != ConfigMetric::CertificateExpiry || self.get(metric) > 0;
        ConfigMetric::ALL
            .iter()
            .filter(|&&metric| is_shown(metric))
            .try_for_each(|&metric| metric.family().encode_one(&mut encoder, self.get(metric)))
    }
}

metrics! {
    /// A metric of key sets, written by the control thread.
    KeyMetric,
    /// The metrics of key sets.
    KeyCounters;
    Keys, Gauge, "token_jwks_keys", "Keys known from the key sets of jwks_public_endpoint.";
    Fetched, Counter, "token_jwks_fetches_total", "Fetches of key sets, those that failed included.";
    Failed, Counter, "token_jwks_fetch_failures_total", "Fetches of key sets that failed; the keys before them stay.";
    FetchedAt, Gauge, "token_jwks_fetched_timestamp_seconds", "When a key set was last fetched, in Unix time; 0: never.";
}

impl Collector for KeyCounters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        KeyMetric::ALL
            .iter()
            .try_for_each(|&metric| metric.family().encode_one(&mut encoder, self.get(metric)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dunlin_metrics::{Kind, Registry, text};

    use super::*;

    /// Formerly it was 0, so that the expiry alert fired on every server without TLS.
    #[test]
    fn without_a_certificate_there_is_no_time_at_which_it_expires() {
        let counters = Arc::<ConfigCounters>::default();
        let mut registry = Registry::with_prefix("dunlin");
        registry.register_collector(Box::new(Arc::clone(&counters)));
        let series = "dunlin_tls_certificate_expiry_timestamp_seconds 1";
        assert!(!text::prometheus(&registry).contains("certificate_expiry"));
        counters.set(ConfigMetric::CertificateExpiry, 1);
        assert!(text::prometheus(&registry).contains(series));
    }

    #[test]
    fn counters_say_total_and_no_family_comes_twice() {
        let mut registry = Registry::with_prefix("dunlin");
        registry.register_collector(Box::new(ConfigCounters::default()));
        registry.register_collector(Box::new(dunlin_webhooks::DeliveryStats::default()));
        registry.register_collector(Box::new(KeyCounters::default()));
        let exposed = text::prometheus(&registry);
        let others = exposed.lines().filter_map(|line| line.strip_prefix("# TYPE dunlin_"));
        let own = Metric::ALL.iter().map(|metric| metric.family());
        for family in own.clone().filter(|family| family.kind == Kind::Counter) {
            assert!(family.name.ends_with("_total"), "{}", family.name);
        }
        let mut names: Vec<&str> = own.map(|family| family.name).collect();
        names.extend(others.filter_map(|line| line.split(' ').next()));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
