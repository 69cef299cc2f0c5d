//! Text expositions of a registry, and their negotiation with a scraper.

use std::fmt::Write;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// The media type of [`openmetrics`].
pub(crate) const OPENMETRICS_TYPE: &str =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of [`prometheus`].
pub(crate) const PROMETHEUS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns media type and body for an `Accept` header: OpenMetrics if it is named, as by Prometheus, otherwise the
/// older text format that all scrapers support.
pub fn negotiate(registry: &Registry, accept: Option<&str>) -> (&'static str, String) {
    let named = accept.unwrap_or("").split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let openmetrics = parts
            .next()
            .is_some_and(|media| media.eq_ignore_ascii_case("application/openmetrics-text"));
        // Unless a version or a quality excludes it.
        openmetrics
            && !parts.any(|parameter| {
                parameter == "q=0"
                    || parameter
                        .strip_prefix("version=")
                        .is_some_and(|v| !matches!(v, "1.0.0" | "0.0.1"))
            })
    });
    if named {
        (OPENMETRICS_TYPE, openmetrics(registry))
    } else {
        (PROMETHEUS_TYPE, prometheus(registry))
    }
}

/// Returns OpenMetrics text, version 1.0.0.
pub fn openmetrics(registry: &Registry) -> String {
    let mut text = String::with_capacity(32 << 10);
    // Writing to a String cannot fail; a failing collector has written the part before its failure.
    let _ = encode(&mut text, registry);
    text
}

/// Returns Prometheus text, version 0.0.4: the family of a counter has the suffix of its samples; units and end are
/// omitted.
pub fn prometheus(registry: &Registry) -> String {
    let openmetrics = openmetrics(registry);
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = "";
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest;
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let help = help.strip_prefix(name).unwrap_or_default();
            let _ = writeln!(text, "# HELP {name}{suffix}{help}\n# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collector, DescriptorEncoder, Family, Histogram, Kind, Snapshot};

    #[derive(Debug)]
    struct Sample;

    impl Collector for Sample {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
            let family = |name, kind| Family { name, help: "Help.", kind };
            family("requests_total", Kind::Counter)
                .encode(&mut encoder, [([("hook", r#"a "b" \"#)], 3)])?;
            family("queue_bytes", Kind::Gauge).encode_one(&mut encoder, 4)?;
            let times = Histogram::<256>::default();
            times.record(1_500_000);
            Snapshot::encode(
                &mut encoder,
                ("answer_seconds", "Time."),
                20..21,
                [([("app", "x")], times.snapshot())],
            )
        }
    }

    fn registry() -> Registry {
        let mut registry = Registry::with_prefix("d");
        registry.register_collector(Box::new(Sample));
        registry
    }

    #[test]
    fn openmetrics_has_units_and_an_end() {
        assert_eq!(
            openmetrics(&registry()),
            r#"# HELP d_requests Help.
# TYPE d_requests counter
d_requests_total{hook="a \"b\" \\"} 3
# HELP d_queue_bytes Help.
# TYPE d_queue_bytes gauge
# UNIT d_queue_bytes bytes
d_queue_bytes 4
# HELP d_answer_seconds Time.
# TYPE d_answer_seconds histogram
# UNIT d_answer_seconds seconds
d_answer_seconds_sum{app="x"} 0.0015
d_answer_seconds_count{app="x"} 1
d_answer_seconds_bucket{le="0.001048576",app="x"} 0
d_answer_seconds_bucket{le="+Inf",app="x"} 1
# EOF
"#
        );
    }

    #[test]
    fn the_older_text_names_counters_as_their_samples() {
        let text = prometheus(&registry());
        assert!(text.starts_with(
            "# HELP d_requests_total Help.\n# TYPE d_requests_total counter\nd_requests_total{"
        ));
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
    }

    #[test]
    fn a_scraper_gets_what_it_names() {
        let kind = |accept| negotiate(&registry(), accept).0;
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1";
        assert_eq!(kind(Some(prometheus)), OPENMETRICS_TYPE);
        for other in
            [None, Some("*/*"), Some("text/plain"), Some("application/openmetrics-text;q=0")]
        {
            assert_eq!(kind(other), PROMETHEUS_TYPE);
        }
    }
}
