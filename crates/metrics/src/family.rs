//! A metric family: name, help and kind, and the encoding of its samples.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::Snapshot;

/// Whether a metric only grows, or rises and falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows from zero during the run of the process. The name ends in `_total`.
    Counter,
    /// Rises and falls.
    Gauge,
    /// The sum of a counter that is exposed with labels elsewhere, by the same name. It is kept, not written.
    Sum,
}

/// Name, help and kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name without the registry's prefix. Ends in the unit if that is `_bytes` or `_seconds`, followed by `_total` for
    /// counters.
    pub name: &'static str,
    /// One sentence for the `# HELP` line.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
}

impl Family {
    /// Writes the family with a sample for each set of labels.
    ///
    /// # Errors
    ///
    /// Those of the encoder.
    pub fn encode<L: EncodeLabelSet>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.describe(encoder, |mut metric| {
            for (labels, value) in samples {
                self.write(&mut metric.encode_family(&labels)?, value)?;
            }
            Ok(())
        })
    }

    /// Writes the family with one sample without labels.
    ///
    /// # Errors
    ///
    /// Those of the encoder.
    pub fn encode_one(&self, encoder: &mut DescriptorEncoder<'_>, value: u64) -> fmt::Result {
        self.describe(encoder, |mut metric| self.write(&mut metric, value))
    }

    /// Writes the family with one sample without labels that is no whole number.
    ///
    /// # Errors
    ///
    /// Those of the encoder.
    pub fn encode_one_f64(&self, encoder: &mut DescriptorEncoder<'_>, value: f64) -> fmt::Result {
        self.describe(encoder, |mut metric| match self.kind {
            Kind::Counter => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
            Kind::Gauge | Kind::Sum => metric.encode_gauge(&value),
        })
    }

    fn describe(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        write: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let (kind, name) = match self.kind {
            // The encoder appends the suffix.
            Kind::Counter => (MetricType::Counter, self.name.strip_suffix("_total")),
            Kind::Gauge | Kind::Sum => (MetricType::Gauge, None),
        };
        let (name, unit) = unit_of(name.unwrap_or(self.name));
        write(encoder.encode_descriptor(name, self.help, unit.as_ref(), kind)?)
    }

    fn write(&self, sample: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
        match self.kind {
            Kind::Counter => sample.encode_counter::<NoLabelSet, _, f64>(&value, None),
            Kind::Gauge | Kind::Sum => sample.encode_gauge(&value),
        }
    }
}

impl Snapshot {
    /// Writes histograms as a family in seconds, with a bucket for each power of two in `bounds`, which are exponents
    /// of nanoseconds: `20..34` is 1 ms to 17 s. `name` ends in `_seconds`.
    ///
    /// # Errors
    ///
    /// Those of the encoder.
    pub fn encode<L: EncodeLabelSet>(
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        bounds: std::ops::Range<u32>,
        samples: impl IntoIterator<Item = (L, Snapshot)>,
    ) -> fmt::Result {
        let (name, unit) = unit_of(name);
        let mut metric =
            encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Histogram)?;
        for (labels, snapshot) in samples {
            let mut sample: MetricEncoder<'_> = metric.encode_family(&labels)?;
            let buckets = snapshot.buckets_s(bounds.clone());
            sample.encode_histogram::<NoLabelSet>(
                snapshot.sum_ns() as f64 / 1e9,
                snapshot.count(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }
}

/// Splits a name into the name without its unit, and the unit.
fn unit_of(name: &str) -> (&str, Option<Unit>) {
    for (suffix, unit) in [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)] {
        if let Some(name) = name.strip_suffix(suffix) {
            return (name, Some(unit));
        }
    }
    (name, None)
}
