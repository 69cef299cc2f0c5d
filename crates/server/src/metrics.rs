//! Every metric of the server, one enum variant and one line of help each.
//!
//! A worker counts into its own [`Counters`], which only it writes: a count is a plain load and store,
//! no locked instruction. The control thread reads all of them when somebody asks for `/metrics`.

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
    ($($variant:ident, $kind:ident, $name:literal, $help:literal;)*) => {
        /// A metric that each worker keeps for itself.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Metric { $(#[doc = $help] $variant,)* }

        impl Metric {
            /// All metrics in the order in which they are exposed.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant,)*];

            /// Name without the `dunlin_` prefix.
            pub fn name(self) -> &'static str {
                match self { $(Metric::$variant => $name,)* }
            }

            /// One sentence for the `# HELP` line.
            pub fn help(self) -> &'static str {
                match self { $(Metric::$variant => $help,)* }
            }

            /// Counter or gauge.
            pub fn kind(self) -> Kind {
                match self { $(Metric::$variant => Kind::$kind,)* }
            }
        }
    };
}

metrics! {
    Connections, Gauge, "connections", "Open client connections.";
    Sessions, Gauge, "sessions", "Sessions of connected clients, on every transport.";
    Subscriptions, Gauge, "subscriptions", "Subscriptions of all sessions.";
    Channels, Gauge, "channels", "Channels at home on this worker.";
    OutboxBytes, Gauge, "outbox_bytes", "Bytes that wait in outboxes for slow clients.";
    HistoryBytes, Gauge, "history_bytes", "Bytes of publications kept in channel histories.";
    Accepted, Counter, "connections_accepted_total", "Connections accepted.";
    RefusedTotal, Counter, "connections_refused_total", "Connections refused: limits.connections_max reached.";
    RefusedAddress, Counter, "connections_refused_address_limit_total", "Connections refused: limits.connections_per_address_max reached.";
    RefusedRate, Counter, "connections_refused_rate_total", "Connections refused: limits.accepts_per_s_max exceeded.";
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
    Polls, Counter, "polls_total", "Long-poll requests.";
    Restarts, Counter, "worker_restarts_total", "Times this worker began anew after a panic.";
    Turns, Counter, "loop_turns_total", "Turns of the event loop.";
}

/// The metrics of one worker: written by that worker alone, read by anyone.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters([AtomicU64; Metric::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    /// Adds `n`. Only the owning worker may call this.
    pub fn add(&self, metric: Metric, n: u64) {
        let cell = &self.0[metric as usize];
        cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds one. Only the owning worker may call this.
    pub fn count(&self, metric: Metric) {
        self.add(metric, 1);
    }

    /// Sets a gauge, or a counter kept elsewhere, to `value`. Only the owning worker may call this.
    pub fn set(&self, metric: Metric, value: u64) {
        self.0[metric as usize].store(value, Relaxed);
    }

    /// The present value.
    pub fn get(&self, metric: Metric) -> u64 {
        self.0[metric as usize].load(Relaxed)
    }
}

/// Renders all workers' counters in the Prometheus text format, one series a worker.
pub fn exposition(workers: &[Counters]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(16 * 1024);
    for &metric in Metric::ALL {
        let (name, help) = (metric.name(), metric.help());
        let kind = match metric.kind() {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP dunlin_{name} {help}\n# TYPE dunlin_{name} {kind}");
        for (worker, counters) in workers.iter().enumerate() {
            let _ = writeln!(text, "dunlin_{name}{{worker=\"{worker}\"}} {}", counters.get(metric));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_used_once_and_counters_say_total() {
        let mut names: Vec<_> = Metric::ALL.iter().map(|m| m.name()).collect();
        for metric in Metric::ALL.iter().filter(|m| m.kind() == Kind::Counter) {
            assert!(metric.name().ends_with("_total"), "{}", metric.name());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Metric::ALL.len());
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
