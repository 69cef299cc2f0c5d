//! Counters and histograms by the values of labels, which are known when something is counted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::DescriptorEncoder;

use crate::{Family, Histogram, Kind, Snapshot};

/// The buckets of histograms with labels, as exponents of nanoseconds: 16 µs to 17 s.
pub const SECONDS: Range<u32> = 14..35;
/// What stands for all values beyond the number of cells.
const OTHER: &str = "other";

/// Names and values of labels.
pub type Pairs = Vec<(&'static str, Cow<'static, str>)>;

/// The value of a label.
pub trait LabelValue: Copy + Ord + Hash {
    /// The value of what has no cell.
    const OTHER: Self;

    /// Returns the text of the label.
    fn text(&self) -> Cow<'static, str>;
}

impl LabelValue for &'static str {
    const OTHER: Self = OTHER;

    fn text(&self) -> Cow<'static, str> {
        Cow::Borrowed(self)
    }
}

impl LabelValue for u32 {
    const OTHER: Self = u32::MAX;

    fn text(&self) -> Cow<'static, str> {
        match *self {
            u32::MAX => Cow::Borrowed(OTHER),
            number => Cow::Owned(number.to_string()),
        }
    }
}

/// The values of the labels of one metric.
pub trait Labels: Copy + Ord + Hash {
    /// The values of what has no cell.
    const OTHER: Self;

    /// Returns names and values.
    fn pairs(&self) -> Pairs;
}

/// What a cell holds.
pub trait Cell: Default + fmt::Debug {
    /// The sum of several cells.
    type Sum: Default;

    /// Adds the cell to a sum.
    fn add_to(&self, sum: &mut Self::Sum);

    /// Writes a family.
    ///
    /// # Errors
    ///
    /// Those of the encoder.
    fn encode(
        encoder: &mut DescriptorEncoder<'_>,
        about: (&'static str, &'static str),
        samples: Vec<(Pairs, Self::Sum)>,
    ) -> fmt::Result;
}

/// A counter of one writer.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds one with plain loads and stores. Only the owning thread may call this.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `n`. Only the owning thread may call this.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Cell for Count {
    type Sum = u64;

    fn add_to(&self, sum: &mut u64) {
        *sum = sum.wrapping_add(self.get());
    }

    fn encode(
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&'static str, &'static str),
        samples: Vec<(Pairs, u64)>,
    ) -> fmt::Result {
        let samples = samples.iter().map(|(labels, value)| (&labels[..], *value));
        Family { name, help, kind: Kind::Counter }.encode(encoder, samples)
    }
}

impl Cell for Box<Histogram> {
    type Sum = Snapshot;

    fn add_to(&self, sum: &mut Snapshot) {
        sum.merge(&self.snapshot());
    }

    fn encode(
        encoder: &mut DescriptorEncoder<'_>,
        about: (&'static str, &'static str),
        samples: Vec<(Pairs, Snapshot)>,
    ) -> fmt::Result {
        // A histogram that nothing was recorded in has no buckets.
        let samples = samples.into_iter().filter(|(_, sum)| sum.count() > 0);
        let samples: Vec<_> = samples.collect();
        let samples = samples.iter().map(|(labels, sum)| (&labels[..], sum.clone()));
        Snapshot::encode(encoder, about, SECONDS, samples)
    }
}

/// Cells of one thread, found by the values of their labels. A cell is made when its values first occur and stays; beyond
/// `CELLS` of them, everything is counted in one cell with the value `other`. Finding a cell takes no lock, and no
/// allocation but the cell's own.
#[derive(Debug)]
pub struct Labelled<K, V, const CELLS: usize = 128> {
    cells: Box<[OnceLock<(K, V)>]>,
    other: V,
}

impl<K, V: Default, const CELLS: usize> Default for Labelled<K, V, CELLS> {
    fn default() -> Self {
        const { assert!(CELLS.is_power_of_two()) };
        Self { cells: (0..CELLS).map(|_| OnceLock::new()).collect(), other: V::default() }
    }
}

impl<K: Labels, V: Cell, const CELLS: usize> Labelled<K, V, CELLS> {
    /// Returns the cell of these values, to be written by the owning thread alone.
    pub fn of(&self, labels: K) -> &V {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        labels.hash(&mut hasher);
        let first = hasher.finish() as usize;
        for step in 0..CELLS {
            let cell = &self.cells[first.wrapping_add(step) % CELLS];
            let (known, value) = cell.get_or_init(|| (labels, V::default()));
            if *known == labels {
                return value;
            }
        }
        &self.other
    }

    fn add_to(&self, sums: &mut BTreeMap<K, V::Sum>) {
        let is_full = self.cells.iter().all(|cell| cell.get().is_some());
        let other = is_full.then_some((K::OTHER, &self.other));
        let cells =
            self.cells.iter().filter_map(OnceLock::get).map(|(labels, value)| (*labels, value));
        for (labels, value) in cells.chain(other) {
            value.add_to(sums.entry(labels).or_default());
        }
    }

    /// Writes the family with the sums over all threads.
    ///
    /// # Errors
    ///
    /// Those of the encoder.
    pub fn encode<'a>(
        encoder: &mut DescriptorEncoder<'_>,
        about: (&'static str, &'static str),
        threads: impl Iterator<Item = &'a Self>,
    ) -> fmt::Result
    where
        K: 'a,
        V: 'a,
    {
        let mut sums = BTreeMap::new();
        threads.for_each(|cells| cells.add_to(&mut sums));
        let samples = sums.into_iter().map(|(labels, sum)| (labels.pairs(), sum));
        V::encode(encoder, about, samples.collect())
    }
}

/// Fowler, Noll and Vo's hash: values of labels are short, and peers do not choose many of them.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        // The low bits alone are used.
        self.0 ^ self.0 >> 32
    }
}

/// Declares metrics with labels, and the cells of them that one thread owns.
///
/// Each line is `field: Key { label: type, … }, Counter | Histogram, "name", "Help sentence.";`, the name without the
/// registry's prefix. A label is a `&'static str`, a `u32` or another [`LabelValue`].
#[macro_export]
macro_rules! labelled_metrics {
    ($(#[$doc:meta])* $name:ident;
     $($field:ident: $key:ident { $($label:ident: $type:ty),+ }, $kind:ident, $text:literal, $help:literal;)*) => {
        $(
            #[doc = concat!("The labels of `", $text, "`.")]
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $key { $(
                #[doc = concat!("The label `", stringify!($label), "`.")]
                pub $label: $type,
            )+ }

            impl $crate::Labels for $key {
                const OTHER: Self = Self { $($label: <$type as $crate::LabelValue>::OTHER,)+ };

                fn pairs(&self) -> $crate::Pairs {
                    vec![$((stringify!($label), $crate::LabelValue::text(&self.$label)),)+]
                }
            }
        )*

        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $(
            #[doc = $help]
            pub $field: $crate::Labelled<$key, $crate::labelled_metrics!(@cell $kind)>,
        )* }

        impl $name {
            /// Writes every family, each with the sums over all threads.
            ///
            /// # Errors
            ///
            /// Those of the encoder.
            pub fn encode<'a>(
                encoder: &mut $crate::DescriptorEncoder<'_>,
                threads: impl Iterator<Item = &'a $name> + Clone,
            ) -> ::std::fmt::Result {
                $($crate::Labelled::encode(encoder, ($text, $help), threads.clone().map(|of| &of.$field))?;)*
                Ok(())
            }
        }
    };
    (@cell Counter) => { $crate::Count };
    (@cell Histogram) => { Box<$crate::Histogram> };
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro makes items for the crate that calls it")]
mod tests {
    use super::*;
    use crate::{Collector, Registry, text};

    labelled_metrics! {
        /// Of a thread.
        Things;
        ends: End { code: u32, reason: &'static str }, Counter, "ends_total", "Ends.";
        times: Time { method: &'static str }, Histogram, "call_seconds", "Times.";
    }

    #[derive(Debug, Default)]
    struct Threads([Things; 2]);

    impl Collector for Threads {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            Things::encode(&mut encoder, self.0.iter())
        }
    }

    fn exposed(threads: Threads) -> String {
        let mut registry = Registry::with_prefix("d");
        registry.register_collector(Box::new(threads));
        text::prometheus(&registry)
    }

    #[test]
    fn cells_of_several_threads_are_added_up_by_their_labels() {
        let threads = Threads::default();
        let slow = End { code: 3008, reason: "slow" };
        threads.0[0].ends.of(slow).increment();
        threads.0[1].ends.of(slow).add(2);
        threads.0[1].ends.of(End { code: 3012, reason: "no pong" }).increment();
        threads.0[0].times.of(Time { method: "publish" }).record(20_000);
        let text = exposed(threads);
        for line in [
            "# TYPE d_ends_total counter",
            "d_ends_total{code=\"3008\",reason=\"slow\"} 3",
            "d_ends_total{code=\"3012\",reason=\"no pong\"} 1",
            "d_call_seconds_count{method=\"publish\"} 1",
            "d_call_seconds_bucket{le=\"0.000032768\",method=\"publish\"} 1",
        ] {
            assert!(text.lines().any(|of| of == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn values_beyond_the_cells_are_counted_together() {
        let threads = Threads::default();
        for code in 0..1_000 {
            threads.0[0].ends.of(End { code, reason: "" }).increment();
        }
        let text = exposed(threads);
        assert_eq!(text.lines().filter(|line| line.starts_with("d_ends_total{")).count(), 129);
        assert!(text.contains("d_ends_total{code=\"other\",reason=\"other\"} 872\n"), "{text}");
    }
}
