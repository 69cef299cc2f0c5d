//! A set of counters and gauges, one atomic cell each.

/// Declares an enum of metrics and the set of cells that one thread owns.
///
/// Each line is `Variant, Counter | Gauge | Sum, "name", "Help sentence.";`, the name without the registry's prefix. See the
/// example in the crate's documentation.
#[macro_export]
macro_rules! metrics {
    ($(#[$doc:meta])* $name:ident, $(#[$counters_doc:meta])* $counters:ident;
     $($variant:ident, $kind:ident, $text:literal, $help:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $name { $(#[doc = $help] $variant,)* }

        impl $name {
            /// All metrics in order of exposition.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Returns name, help and kind.
            pub fn family(self) -> &'static $crate::Family {
                const FAMILIES: &[$crate::Family] = &[
                    $($crate::Family { name: $text, help: $help, kind: $crate::Kind::$kind },)*
                ];
                &FAMILIES[self as usize]
            }
        }

        $(#[$counters_doc])*
        #[derive(Debug)]
        #[repr(align(128))]
        pub struct $counters([::std::sync::atomic::AtomicU64; $name::ALL.len()]);

        impl Default for $counters {
            fn default() -> Self {
                Self(::std::array::from_fn(|_| ::std::sync::atomic::AtomicU64::new(0)))
            }
        }

        impl $counters {
            /// Adds `n`. Only the owning thread may call this.
            pub fn add(&self, metric: $name, n: u64) {
                self.set(metric, self.get(metric).wrapping_add(n));
            }

            /// Adds one. Only the owning thread may call this.
            pub fn count(&self, metric: $name) {
                self.add(metric, 1);
            }

            /// Sets a gauge, or a counter kept elsewhere, to `value`. Only the owning thread may call this.
            pub fn set(&self, metric: $name, value: u64) {
                self.0[metric as usize].store(value, ::std::sync::atomic::Ordering::Relaxed);
            }

            /// Returns the current value.
            pub fn get(&self, metric: $name) -> u64 {
                self.0[metric as usize].load(::std::sync::atomic::Ordering::Relaxed)
            }

            /// Writes every family with a sample of each series.
            ///
            /// # Errors
            ///
            /// Those of the encoder.
            pub fn encode<'a, L: $crate::EncodeLabelSet>(
                encoder: &mut $crate::DescriptorEncoder<'_>,
                series: impl Iterator<Item = (L, &'a $counters)> + Clone,
            ) -> ::std::fmt::Result {
                let all = $name::ALL.iter().filter(|metric| metric.family().kind != $crate::Kind::Sum);
                for &metric in all {
                    let samples = series.clone().map(|(labels, counters)| (labels, counters.get(metric)));
                    metric.family().encode(encoder, samples)?;
                }
                Ok(())
            }
        }
    };
}
