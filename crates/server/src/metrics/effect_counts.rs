//! How often each effect of a change of the settings was brought about.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dunlin_config::Effect;
use dunlin_metrics::{Collector, DescriptorEncoder, Family, Kind};

const FAMILY: Family = Family {
    name: "config_effects_total",
    help: "Effects of changes of the settings, counted by each worker and thread that has brought one about.",
    kind: Kind::Counter,
};

/// Any thread counts, and any may read.
#[derive(Debug)]
pub(crate) struct EffectCounts([AtomicU64; Effect::ALL.len()]);

impl Default for EffectCounts {
    fn default() -> EffectCounts {
        EffectCounts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl EffectCounts {
    pub(crate) fn count(&self, effect: Effect) {
        self.0[effect as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self, effect: Effect) -> u64 {
        self.0[effect as usize].load(Relaxed)
    }
}

impl Collector for EffectCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = Effect::ALL.iter().map(|effect| {
            let name = Effect::name(*effect);
            ([("effect", name)], self.get(*effect))
        });
        FAMILY.encode(&mut encoder, samples)
    }
}
