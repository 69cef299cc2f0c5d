//! `dunlin_push_*`: what each credential's sender does, for `/metrics`.

use std::fmt::Write;
use std::time::UNIX_EPOCH;

use dunlin_push::registry::Platform;
use dunlin_push::{Binding, ConnectFault, SenderMetrics};

use super::senders::Credential;
use super::thread::Shared;

const BINDINGS: [(Binding, &str); 5] = [
    (Binding::Demand, "demand"),
    (Binding::Streams, "streams"),
    (Binding::Window, "window"),
    (Binding::Path, "path"),
    (Binding::Socket, "socket"),
];

/// A metric of a sender: name, kind, help, value.
type Gauge = (&'static str, &'static str, &'static str, fn(&SenderMetrics) -> Option<f64>);

const OF_SENDERS: [Gauge; 15] = [
    ("queued", "gauge", "PushHandle that wait, those to be tried again included.", |m| {
        Some(m.queued as f64)
    }),
    ("queued_bytes", "gauge", "Bytes of pushes that wait or are under way.", |m| {
        Some(m.queued_bytes as f64)
    }),
    ("in_flight", "gauge", "PushHandle sent and not answered.", |m| {
        Some(m.connections.iter().map(|c| f64::from(c.in_flight)).sum())
    }),
    ("in_flight_max", "gauge", "PushHandle that the paths are thought to carry at once.", |m| {
        Some(m.connections.iter().map(|c| f64::from(c.in_flight_max)).sum())
    }),
    ("window_bytes", "gauge", "Bytes left of the connections' flow-control windows.", |m| {
        Some(m.connections.iter().map(|c| f64::from(c.window_bytes)).sum())
    }),
    ("connections", "gauge", "Connections open.", |m| Some(m.connections.len() as f64)),
    ("connections_opened_total", "counter", "Connections opened.", |m| Some(m.opened as f64)),
    ("connects_failed_total", "counter", "Connections that could not be opened.", |m| {
        Some(m.failed as f64)
    }),
    ("connections_lost_total", "counter", "Connections that had answered and broke.", |m| {
        Some(m.lost as f64)
    }),
    ("submitted_total", "counter", "PushHandle handed over.", |m| Some(m.submitted as f64)),
    ("retried_total", "counter", "Answers that asked for another try later.", |m| {
        Some(m.retried as f64)
    }),
    (
        "refused_total",
        "counter",
        "PushHandle the service did not process, sent again at once.",
        |m| Some(m.refused as f64),
    ),
    ("resent_total", "counter", "PushHandle sent again though they may have been accepted.", |m| {
        Some(m.resent as f64)
    }),
    ("answer_seconds_p50", "gauge", "Half of the answers took no longer.", |m| m.answer_p50_s),
    ("answer_seconds_p99", "gauge", "One answer in a hundred took longer.", |m| m.answer_p99_s),
];

/// Renders what there is, in the Prometheus text format.
pub(super) fn exposition(shared: &Shared) -> String {
    let credentials = shared.senders.all();
    let senders: Vec<(String, SenderMetrics)> = credentials
        .iter()
        .flat_map(|credential| {
            let labels = labels(credential);
            credential.metrics().into_iter().map(move |(origin, metrics)| {
                let origin = match &*origin {
                    "" => String::new(),
                    origin => format!(",origin=\"{}\"", escaped(origin)),
                };
                (format!("{labels}{origin}"), metrics)
            })
        })
        .collect();
    let mut text = String::new();
    // Writing to a String cannot fail.
    let head = |text: &mut String, name: &str, kind: &str, help: &str| {
        let _ =
            writeln!(text, "# HELP dunlin_push_{name} {help}\n# TYPE dunlin_push_{name} {kind}");
    };
    for (name, kind, help, value) in OF_SENDERS {
        head(&mut text, name, kind, help);
        for (labels, metrics) in &senders {
            if let Some(value) = value(metrics) {
                let _ = writeln!(text, "dunlin_push_{name}{{{labels}}} {value}");
            }
        }
    }
    head(
        &mut text,
        "bound",
        "gauge",
        "Connections that could carry more but for this limit; demand: none.",
    );
    for (labels, metrics) in &senders {
        for (binding, limit) in BINDINGS {
            let count = metrics.connections.iter().filter(|c| c.binding == binding).count();
            let _ = writeln!(text, "dunlin_push_bound{{{labels},limit=\"{limit}\"}} {count}");
        }
    }
    head(
        &mut text,
        "no_connection",
        "gauge",
        "1 for what keeps a credential from having any connection; its log line has the sentence.",
    );
    for (labels, metrics) in &senders {
        let error = metrics.connect_error.as_ref();
        for fault in ConnectFault::ALL {
            let value = u8::from(error.is_some_and(|error| error.fault == fault));
            let fault = fault.as_str();
            let _ =
                writeln!(text, "dunlin_push_no_connection{{{labels},fault=\"{fault}\"}} {value}");
        }
    }
    head(
        &mut text,
        "certificate_end_seconds",
        "gauge",
        "When a client certificate ends, in seconds since 1970.",
    );
    for credential in &credentials {
        let end = credential.valid_until().and_then(|end| end.duration_since(UNIX_EPOCH).ok());
        if let Some(end) = end {
            let (labels, end_s) = (labels(credential), end.as_secs());
            let _ = writeln!(text, "dunlin_push_certificate_end_seconds{{{labels}}} {end_s}");
        }
    }
    head(&mut text, "outcomes_total", "counter", "How pushes ended, by the word for it.");
    for credential in &credentials {
        let labels = labels(credential);
        for (end, reason, count) in credential.tally.ends() {
            let (end, reason) = (end.as_str(), escaped(&reason));
            let _ = writeln!(
                text,
                "dunlin_push_outcomes_total{{{labels},outcome=\"{end}\",reason=\"{reason}\"}} {count}"
            );
        }
    }
    head(
        &mut text,
        "usable",
        "gauge",
        "Whether a credential can be used; 0: its log line says why.",
    );
    for credential in &credentials {
        let usable = u8::from(credential.is_usable());
        let _ = writeln!(text, "dunlin_push_usable{{{}}} {usable}", labels(credential));
    }
    let apns = || credentials.iter().filter(|c| c.platform == Platform::Apns);
    head(
        &mut text,
        "environment_doubtful",
        "gauge",
        "1: Apple calls most device tokens bad; `environment` of the credential looks wrong.",
    );
    for credential in apns() {
        let doubtful = u8::from(credential.environment.looks_wrong());
        let _ =
            writeln!(text, "dunlin_push_environment_doubtful{{{}}} {doubtful}", labels(credential));
    }
    head(
        &mut text,
        "bad_tokens_kept",
        "gauge",
        "Tokens called bad and not dropped since the credential was set: its environment was in doubt.",
    );
    for credential in apns() {
        let kept = credential.environment.kept();
        let _ = writeln!(text, "dunlin_push_bad_tokens_kept{{{}}} {kept}", labels(credential));
    }
    head(&mut text, "calls", "gauge", "Calls below /api/push under way.");
    let _ = writeln!(text, "dunlin_push_calls {}", shared.calls());
    text
}

fn labels(credential: &Credential) -> String {
    let provider = match credential.platform {
        Platform::Apns => "apns",
        Platform::Fcm => "fcm",
        Platform::Web => "web",
    };
    format!("provider=\"{provider}\",app=\"{}\"", escaped(&credential.app))
}

/// A label's value as the format wants it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
