//! The metrics of a registry as those of OTLP, by way of their text.

use std::collections::BTreeMap;

use dunlin_metrics::{Registry, text};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

use super::attribute;

/// Start and time of the data points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    pub(super) began_ns: u64,
    pub(super) now_ns: u64,
}

/// Returns all metrics, with sums since the start of the process.
pub(super) fn metrics(registry: &Registry, period: Period) -> Vec<Metric> {
    read(&text::prometheus(registry), period)
}

fn read(text: &str, period: Period) -> Vec<Metric> {
    let mut metrics = Vec::new();
    let (mut help, mut family) = ("", None);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            metrics.extend(family.take().map(|family: Family<'_>| family.into_metric(period)));
            family = Some(Family { name, help, kind, ..Family::default() });
        } else if let Some(family) = &mut family {
            family.add(line, period);
        }
    }
    metrics.extend(family.map(|family| family.into_metric(period)));
    metrics.retain(|metric| !is_empty(metric));
    metrics
}

fn is_empty(metric: &Metric) -> bool {
    match &metric.data {
        Some(Data::Gauge(of)) => of.data_points.is_empty(),
        Some(Data::Sum(of)) => of.data_points.is_empty(),
        Some(Data::Histogram(of)) => of.data_points.is_empty(),
        _ => true,
    }
}

#[derive(Default)]
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    points: Vec<NumberDataPoint>,
    /// By their labels, as text.
    histograms: BTreeMap<String, Buckets>,
}

#[derive(Default)]
struct Buckets {
    labels: Vec<(String, String)>,
    sum: f64,
    count: u64,
    /// Upper bounds, each with the number of values up to it.
    upto: Vec<(f64, u64)>,
}

impl Family<'_> {
    fn add(&mut self, line: &str, period: Period) {
        let Some((series, value)) = line.rsplit_once(' ') else { return };
        let Ok(value) = value.parse::<f64>() else { return };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let mut labels = parse_labels(labels.strip_suffix('}').unwrap_or(labels));
        if self.kind != "histogram" {
            let attributes = attributes(&labels);
            return self.points.push(NumberDataPoint {
                attributes,
                start_time_unix_nano: if self.kind == "counter" { period.began_ns } else { 0 },
                time_unix_nano: period.now_ns,
                value: Some(Value::AsDouble(value)),
                ..NumberDataPoint::default()
            });
        }
        let bound = labels.iter().position(|(name, _)| name == "le");
        let bound = bound.map(|at| labels.remove(at).1);
        let buckets = self.histograms.entry(format!("{labels:?}")).or_default();
        match (bound, name.strip_prefix(self.name)) {
            (Some(bound), _) => {
                buckets.upto.push((bound.parse().unwrap_or(f64::INFINITY), value as u64));
            }
            (None, Some("_sum")) => buckets.sum = value,
            (None, _) => buckets.count = value as u64,
        }
        buckets.labels = labels;
    }

    fn into_metric(self, period: Period) -> Metric {
        let cumulative = AggregationTemporality::Cumulative as i32;
        let data = match self.kind {
            "histogram" => {
                let points = self.histograms.into_values();
                let data_points = points.map(|buckets| buckets.into_point(period)).collect();
                Data::Histogram(Histogram { data_points, aggregation_temporality: cumulative })
            }
            "counter" => Data::Sum(Sum {
                data_points: self.points,
                aggregation_temporality: cumulative,
                is_monotonic: true,
            }),
            _ => Data::Gauge(Gauge { data_points: self.points }),
        };
        let unit = match self.name.trim_end_matches("_total") {
            name if name.ends_with("_seconds") => "s",
            name if name.ends_with("_bytes") => "By",
            _ => "",
        };
        Metric {
            name: self.name.to_owned(),
            description: self.help.to_owned(),
            unit: unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        }
    }
}

impl Buckets {
    fn into_point(self, period: Period) -> HistogramDataPoint {
        let mut before = 0;
        let counts = self.upto.iter().map(|(_, upto)| {
            let own = upto.saturating_sub(before);
            before = *upto;
            own
        });
        HistogramDataPoint {
            attributes: attributes(&self.labels),
            start_time_unix_nano: period.began_ns,
            time_unix_nano: period.now_ns,
            count: self.count,
            sum: Some(self.sum),
            bucket_counts: counts.collect(),
            explicit_bounds: self
                .upto
                .iter()
                .map(|(bound, _)| *bound)
                .filter(|of| of.is_finite())
                .collect(),
            ..HistogramDataPoint::default()
        }
    }
}

fn attributes(labels: &[(String, String)]) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| attribute(name, value.as_str().into())).collect()
}

/// Parses `a="b",c="d"`.
fn parse_labels(mut text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let mut end = rest.len();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match characters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, escaped)) => value.push(escaped),
                    None => {}
                },
                other => value.push(other),
            }
        }
        labels.push((name.trim_start_matches(',').to_owned(), value));
        text = &rest[end..];
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_as_they_were_written() {
        let read = parse_labels(r#"a="b \"c\" \\ \n",reason="",le="0.5""#);
        let of = |name: &str| read.iter().find(|(of, _)| of == name).map(|(_, value)| &**value);
        assert_eq!(of("a"), Some("b \"c\" \\ \n"));
        assert_eq!((of("reason"), of("le"), read.len()), (Some(""), Some("0.5"), 3));
    }

    #[test]
    fn families_are_sums_gauges_and_histograms() {
        let text = "# HELP d_a_total Counts.\n# TYPE d_a_total counter\nd_a_total{x=\"1\"} 3\nd_a_total{x=\"2\"} 4\n\
            # HELP d_b_bytes Now.\n# TYPE d_b_bytes gauge\nd_b_bytes 7\n# HELP d_none No.\n# TYPE d_none gauge\n\
            # HELP d_c_seconds Times.\n# TYPE d_c_seconds histogram\nd_c_seconds_sum{m=\"p\"} 1.5\nd_c_seconds_count{m=\"p\"} 5\n\
            d_c_seconds_bucket{le=\"0.1\",m=\"p\"} 2\nd_c_seconds_bucket{le=\"1\",m=\"p\"} 4\nd_c_seconds_bucket{le=\"+Inf\",m=\"p\"} 5\n";
        let read = read(text, Period { began_ns: 1, now_ns: 2 });
        let names: Vec<_> = read.iter().map(|of| (&*of.name, &*of.unit)).collect();
        assert_eq!(names, [("d_a_total", ""), ("d_b_bytes", "By"), ("d_c_seconds", "s")]);
        let Some(Data::Sum(sum)) = &read[0].data else { panic!("{read:?}") };
        assert_eq!((sum.data_points.len(), sum.is_monotonic), (2, true));
        let Some(Data::Histogram(of)) = &read[2].data else { panic!("{read:?}") };
        let point = &of.data_points[0];
        assert_eq!(
            (&*point.bucket_counts, &*point.explicit_bounds),
            (&[2, 2, 1][..], &[0.1, 1.0][..])
        );
        assert_eq!((point.count, point.sum, point.attributes.len()), (5, Some(1.5), 1));
    }
}
