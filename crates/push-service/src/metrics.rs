//! `dunlin_push_*`: what each credential's sender does, for `/metrics`.

use std::fmt;
use std::time::UNIX_EPOCH;

use dunlin_metrics::{Collector, DescriptorEncoder, Family, Kind, Snapshot};
use dunlin_push::registry::Platform;
use dunlin_push::{Binding, ConnectFault, ConnectionMetrics, SenderMetrics};

use super::PushHandle;
use super::senders::Credential;

const BINDINGS: [(Binding, &str); 5] = [
    (Binding::Demand, "demand"),
    (Binding::Streams, "streams"),
    (Binding::Window, "window"),
    (Binding::Path, "path"),
    (Binding::Socket, "socket"),
];

type Labels = Vec<(&'static str, String)>;
type OfSender = (Family, fn(&SenderMetrics) -> u64);

const OF_SENDERS: [OfSender; 13] = [
    (gauge("push_queued", "Pushes that wait, delayed retries included."), |m| m.queued as u64),
    (gauge("push_queued_bytes", "Bytes of pushes that wait or are in flight."), |m| {
        m.queued_bytes as u64
    }),
    (gauge("push_in_flight", "Pushes sent and not answered."), |m| {
        sum(m, |connection| connection.in_flight)
    }),
    (gauge("push_in_flight_max", "Pushes that the paths are estimated to carry at once."), |m| {
        sum(m, |connection| connection.in_flight_max)
    }),
    (gauge("push_window_bytes", "Bytes left of the connections' flow-control windows."), |m| {
        sum(m, |connection| connection.window_bytes)
    }),
    (gauge("push_connections", "Open connections."), |m| m.connections.len() as u64),
    (counter("push_connections_opened_total", "Connections opened."), |m| m.opened),
    (counter("push_connects_failed_total", "Connections that could not be opened."), |m| m.failed),
    (counter("push_connections_lost_total", "Connections that had answered and broke."), |m| {
        m.lost
    }),
    (counter("push_submitted_total", "Pushes handed over to the sender."), |m| m.submitted),
    (counter("push_retried_total", "Responses that asked for another attempt later."), |m| {
        m.retried
    }),
    (counter("push_refused_total", "Pushes the service did not process, resent at once."), |m| {
        m.refused
    }),
    (counter("push_resent_total", "Pushes resent though they may have been accepted."), |m| {
        m.resent
    }),
];

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Gauge }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Counter }
}

fn sum(metrics: &SenderMetrics, of: fn(&ConnectionMetrics) -> u32) -> u64 {
    metrics.connections.iter().map(|connection| u64::from(of(connection))).sum()
}

impl fmt::Debug for PushHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushHandle").finish_non_exhaustive()
    }
}

impl Collector for PushHandle {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let credentials = self.0.senders.all();
        let mut senders: Vec<(Labels, SenderMetrics)> = Vec::new();
        for credential in &credentials {
            for (origin, metrics) in credential.metrics() {
                let origin = (!origin.is_empty()).then_some(("origin", origin));
                senders.push((labels(credential, origin), metrics));
            }
        }
        encode_senders(&mut encoder, &senders)?;
        encode_credentials(&mut encoder, &credentials)?;
        gauge("push_calls", "Calls below /api/push in flight.")
            .encode_one(&mut encoder, self.0.calls() as u64)
    }
}

fn encode_senders(
    encoder: &mut DescriptorEncoder<'_>,
    senders: &[(Labels, SenderMetrics)],
) -> fmt::Result {
    for (family, value) in OF_SENDERS {
        family.encode(encoder, senders.iter().map(|(labels, m)| (&labels[..], value(m))))?;
    }
    Snapshot::encode(
        encoder,
        ("push_response_seconds", "Time from request to response."),
        20..36,
        senders.iter().map(|(labels, m)| (&labels[..], m.response_times.clone())),
    )?;
    gauge("push_limited_connections", "Connections whose rate this limit binds; demand: none.")
        .encode(
            encoder,
            senders.iter().flat_map(|(labels, metrics)| {
                BINDINGS.iter().map(move |(binding, limit)| {
                    let bound = metrics.connections.iter().filter(|c| c.binding == *binding);
                    (with(labels, "limit", limit), bound.count() as u64)
                })
            }),
        )?;
    gauge("push_connect_error", "1: why a credential has no connection; its log line has details.")
        .encode(
            encoder,
            senders.iter().flat_map(|(labels, metrics)| {
                ConnectFault::ALL.iter().map(move |fault| {
                    let error = metrics.connect_error.as_ref();
                    let is_fault = error.is_some_and(|error| error.fault == *fault);
                    (with(labels, "fault", fault.as_str()), u64::from(is_fault))
                })
            }),
        )
}

fn encode_credentials(
    encoder: &mut DescriptorEncoder<'_>,
    credentials: &[std::sync::Arc<Credential>],
) -> fmt::Result {
    let each = |value: fn(&Credential) -> Option<u64>| {
        credentials
            .iter()
            .filter_map(move |credential| Some((labels(credential, None), value(credential)?)))
    };
    gauge(
        "push_certificate_expiry_timestamp_seconds",
        "When a client certificate expires, in seconds since 1970.",
    )
    .encode(
        encoder,
        each(|credential| {
            let end = credential.valid_until()?.duration_since(UNIX_EPOCH).ok()?;
            Some(end.as_secs())
        }),
    )?;
    counter("push_outcomes_total", "How pushes ended, and why.").encode(
        encoder,
        credentials.iter().flat_map(|credential| {
            credential.tally.ends().into_iter().map(|(kind, reason, count)| {
                let mut labels = with(&labels(credential, None), "outcome", kind.as_str());
                labels.push(("reason", reason));
                (labels, count)
            })
        }),
    )?;
    gauge("push_usable", "Whether a credential can be used; 0: its log line says why.")
        .encode(encoder, each(|credential| Some(u64::from(credential.is_usable()))))?;
    gauge(
        "push_environment_suspect",
        "1: Apple rejects most device tokens; `environment` of the credential looks wrong.",
    )
    .encode(
        encoder,
        each(|credential| {
            (credential.platform == Platform::Apns)
                .then(|| u64::from(credential.environment.looks_wrong()))
        }),
    )?;
    gauge(
        "push_bad_tokens_kept",
        "Tokens rejected as bad and kept since the credential was set, for its environment is suspect.",
    )
    .encode(
        encoder,
        each(|credential| {
            (credential.platform == Platform::Apns).then(|| credential.environment.kept())
        }),
    )
}

fn labels(credential: &Credential, origin: Option<(&'static str, String)>) -> Labels {
    let provider = match credential.platform {
        Platform::Apns => "apns",
        Platform::Fcm => "fcm",
        Platform::Web => "web",
    };
    let own = [("provider", provider.to_owned()), ("app", credential.app.to_string())];
    own.into_iter().chain(origin).collect()
}

fn with(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}
