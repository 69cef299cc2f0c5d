//! Every metric of the server, one enum variant and one line of help each.
//!
//! A worker counts into its own [`Counters`], which only it writes: a count is a plain load and store,
//! no locked instruction. The control thread reads all of them when somebody asks for `/metrics`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Whether a metric only grows or follows a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows from zero for as long as the process lives.
    Counter,
    /// A level that rises and falls.
    Gauge,
}

macro_rules! metrics {
    ($(#[$doc:meta])* $name:ident, $(#[$counters_doc:meta])* $counters:ident;
     $($variant:ident, $kind:ident, $text:literal, $help:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $name { $(#[doc = $help] $variant,)* }

        impl $name {
            /// All metrics in the order in which they are exposed.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Name without the `dunlin_` prefix.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// One sentence for the `# HELP` line.
            pub fn help(self) -> &'static str {
                match self { $($name::$variant => $help,)* }
            }

            /// Counter or gauge.
            pub fn kind(self) -> Kind {
                match self { $($name::$variant => Kind::$kind,)* }
            }
        }

        $(#[$counters_doc])*
        #[derive(Debug)]
        #[repr(align(128))]
        pub struct $counters([AtomicU64; $name::ALL.len()]);

        impl Default for $counters {
            fn default() -> Self {
                Self(std::array::from_fn(|_| AtomicU64::new(0)))
            }
        }

        impl $counters {
            /// Adds `n`. Only the owning thread may call this.
            pub fn add(&self, metric: $name, n: u64) {
                let cell = &self.0[metric as usize];
                cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
            }

            /// Adds one. Only the owning thread may call this.
            pub fn count(&self, metric: $name) {
                self.add(metric, 1);
            }

            /// Sets a gauge, or a counter kept elsewhere, to `value`. Only the owning thread may call this.
            pub fn set(&self, metric: $name, value: u64) {
                self.0[metric as usize].store(value, Relaxed);
            }

            /// The present value.
            pub fn get(&self, metric: $name) -> u64 {
                self.0[metric as usize].load(Relaxed)
            }
        }
    };
}

metrics! {
    /// A metric that each worker keeps for itself.
    Metric,
    /// The metrics of one worker: written by that worker alone, read by anyone.
    Counters;
    Connections, Gauge, "connections", "Open client connections.";
    Sessions, Gauge, "sessions", "Sessions of connected clients, on every transport.";
    Subscriptions, Gauge, "subscriptions", "Subscriptions of all sessions.";
    Channels, Gauge, "channels", "Channels at home on this worker.";
    OutboxBytes, Gauge, "outbox_bytes", "Bytes that wait in outboxes for slow clients.";
    HistoryBytes, Gauge, "history_bytes", "Bytes of publications kept in channel histories.";
    Accepted, Counter, "connections_accepted_total", "Connections accepted.";
    RefusedTotal, Counter, "connections_refused_total", "Connections refused: limits.connections_max reached.";
    RefusedAddress, Counter, "connections_refused_address_limit_total", "Connections refused: limits.connections_per_address_max reached.";
    RefusedRate, Counter, "connections_refused_rate_total", "Times that accepting paused: limits.accepts_per_s_max was reached.";
    RefusedDescriptors, Counter, "accept_descriptor_exhausted_total", "Times accepting paused because no file descriptor was left.";
    Closed, Counter, "connections_closed_total", "Connections closed, for whatever reason.";
    DeadlinesMissed, Counter, "connections_timed_out_total", "Connections closed because a request, a handshake, a connect command or a pong came too late.";
    HttpRequests, Counter, "http_requests_total", "HTTP requests, the server API included.";
    HttpErrors, Counter, "http_request_errors_total", "HTTP requests answered with a 4xx or 5xx status, malformed ones included.";
    ApiCommands, Counter, "api_commands_total", "Server API commands, each command of a batch counted.";
    ApiErrors, Counter, "api_errors_total", "Server API commands answered with an error.";
    Commands, Counter, "client_commands_total", "Commands of the client protocol.";
    CommandErrors, Counter, "client_command_errors_total", "Commands of the client protocol answered with an error.";
    Disconnects, Counter, "client_disconnects_total", "Clients disconnected by the server with a code.";
    ProtocolErrors, Counter, "protocol_errors_total", "Malformed HTTP, WebSocket or client protocol input.";
    MessagesIn, Counter, "publications_received_total", "Publications taken in on this worker from clients and the server API.";
    MessagesOut, Counter, "messages_delivered_total", "Messages put into client outboxes.";
    MessagesDropped, Counter, "messages_dropped_total", "Messages dropped by an outbox policy; the client is told.";
    SlowDisconnects, Counter, "slow_client_disconnects_total", "Clients disconnected because their outbox overflowed.";
    Gaps, Counter, "subscription_gaps_total", "Subscriptions told that messages are missing.";
    Recovered, Counter, "recoveries_total", "Subscriptions that recovered every missed message from history.";
    Unrecovered, Counter, "recoveries_failed_total", "Subscriptions that asked to recover and were told that history no longer reaches back.";
    BytesOut, Counter, "bytes_sent_total", "Bytes written to sessions.";
    Writes, Counter, "writes_total", "Write system calls for sessions.";
    BusRefused, Counter, "bus_refused_total", "Messages to another worker that found its ring full and were kept for later.";
    BusWakes, Counter, "bus_wakes_total", "Sleeping workers woken.";
    Pings, Counter, "pings_sent_total", "Pings sent to clients.";
    WebhookEvents, Counter, "webhook_events_told_total", "Events handed to the webhooks thread.";
    WebhookOverflow, Counter, "webhook_overflow_total", "Events that hooks wanted and that could not be handed to the webhooks thread fast enough.";
    Polls, Counter, "polls_total", "Long-poll requests.";
    Restarts, Counter, "worker_restarts_total", "Times this worker began anew after a panic.";
    Turns, Counter, "loop_turns_total", "Turns of the event loop.";
}

metrics! {
    /// A metric of each hook of `webhooks.hooks`.
    HookMetric,
    /// The metrics of one hook: written by the webhooks thread alone, read by anyone.
    HookCounters;
    QueueEvents, Gauge, "webhook_queue_events", "Events that wait for a hook's backend, or are on their way to it.";
    QueueBytes, Gauge, "webhook_queue_bytes", "Bytes of these events, of the hook's queue_bytes_max.";
    Events, Counter, "webhook_events_total", "Events queued for a hook.";
    Delivered, Counter, "webhook_delivered_total", "Events that a backend has answered with 2xx.";
    DroppedQueueFull, Counter, "webhook_dropped_queue_full_total", "Events dropped: the hook's queue was full.";
    DroppedRefused, Counter, "webhook_dropped_refused_total", "Events dropped: a backend answered 1xx, 3xx or 4xx.";
    DroppedGivenUp, Counter, "webhook_dropped_given_up_total", "Events dropped: they were sent attempts_max times.";
    DroppedHookRemoved, Counter, "webhook_dropped_hook_removed_total", "Events dropped: their hook was removed.";
    Requests, Counter, "webhook_requests_total", "Requests to backends, each attempt counted.";
    RequestsRefused, Counter, "webhook_requests_refused_total", "Requests answered with 1xx, 3xx or 4xx.";
    RequestsBusy, Counter, "webhook_requests_busy_total", "Requests answered with 408, 425, 429 or 5xx, which are sent again.";
    RequestsUnreachable, Counter, "webhook_requests_unreachable_total", "Requests that never left: no connection, no name, no trust.";
    RequestsTimedOut, Counter, "webhook_requests_timed_out_total", "Requests without an answer within timeout_ms.";
    RequestsBroken, Counter, "webhook_requests_broken_total", "Requests whose connection ended, or whose answer was none.";
}

impl HookMetric {
    /// The name within the status of a hook.
    pub fn short_name(self) -> &'static str {
        let name = self.name();
        let name = name.strip_prefix("webhook_").unwrap_or(name);
        name.strip_suffix("_total").unwrap_or(name)
    }
}

/// Renders all workers' counters in the Prometheus text format, one series a worker.
pub fn exposition(workers: &[Counters]) -> String {
    let mut text = String::with_capacity(16 * 1024);
    for &metric in Metric::ALL {
        head(&mut text, metric.name(), metric.help(), metric.kind());
        for (worker, counters) in workers.iter().enumerate() {
            let (name, value) = (metric.name(), counters.get(metric));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "dunlin_{name}{{worker=\"{worker}\"}} {value}");
        }
    }
    text
}

/// The same of hooks, one series a hook.
pub(crate) fn hook_exposition<'a>(
    hooks: &(impl Iterator<Item = (&'a str, &'a HookCounters)> + Clone),
) -> String {
    let mut text = String::with_capacity(4 * 1024);
    for &metric in HookMetric::ALL {
        head(&mut text, metric.name(), metric.help(), metric.kind());
        for (hook, counters) in hooks.clone() {
            let hook = hook.replace('\\', r"\\").replace('"', "\\\"");
            let (name, value) = (metric.name(), counters.get(metric));
            let _ = writeln!(text, "dunlin_{name}{{hook=\"{hook}\"}} {value}");
        }
    }
    text
}

fn head(text: &mut String, name: &str, help: &str, kind: Kind) {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    let _ = writeln!(text, "# HELP dunlin_{name} {help}\n# TYPE dunlin_{name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_used_once_and_counters_say_total() {
        let workers = Metric::ALL.iter().map(|metric| (metric.name(), metric.kind()));
        let hooks = HookMetric::ALL.iter().map(|metric| (metric.name(), metric.kind()));
        let all: Vec<_> = workers.chain(hooks).collect();
        for (name, _) in all.iter().filter(|(_, kind)| *kind == Kind::Counter) {
            assert!(name.ends_with("_total"), "{name}");
        }
        let mut names: Vec<_> = all.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn a_hook_may_have_any_name() {
        let counters = HookCounters::default();
        counters.add(HookMetric::Delivered, 2);
        let text = hook_exposition(&[(r#"a "b" \"#, &counters)].into_iter());
        assert!(text.contains(r#"dunlin_webhook_delivered_total{hook="a \"b\" \\"} 2"#), "{text}");
    }

    #[test]
    fn exposition_has_a_series_for_each_worker() {
        let workers = [Counters::default(), Counters::default()];
        workers[1].add(Metric::Accepted, 3);
        let text = exposition(&workers);
        assert!(text.contains("dunlin_connections_accepted_total{worker=\"0\"} 0\n"));
        assert!(text.contains("dunlin_connections_accepted_total{worker=\"1\"} 3\n"));
    }
}
