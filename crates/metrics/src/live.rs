//! The series of things that come and go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Past this many, series that have ended are looked for whenever their number has doubled.
const ENDED_MIN: usize = 64;

/// Metrics of things that come and go, by their labels. Each is held by the thing that it describes and ends with it, so that
/// names which are gone leave no lines behind, and a name that comes again begins at zero.
#[derive(Debug)]
pub struct LiveSeries<K, V>(Mutex<Series<K, V>>);

#[derive(Debug)]
struct Series<K, V> {
    all: BTreeMap<K, Weak<V>>,
    /// At this length those that have ended are removed.
    full: usize,
}

impl<K, V> Default for LiveSeries<K, V> {
    fn default() -> LiveSeries<K, V> {
        LiveSeries(Mutex::new(Series { all: BTreeMap::new(), full: ENDED_MIN }))
    }
}

impl<K: Ord + Clone, V: Default> LiveSeries<K, V> {
    /// Begins the series of a thing, at zero. It lasts as long as the thing holds what is returned.
    pub fn begin(&self, key: K) -> Arc<V> {
        let begun = Arc::new(V::default());
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        series.all.insert(key, Arc::downgrade(&begun));
        if series.all.len() >= series.full {
            series.all.retain(|_, of| of.strong_count() > 0);
            series.full = (series.all.len() * 2).max(ENDED_MIN);
        }
        begun
    }

    /// Returns the series of all things that are there, sorted.
    pub fn live(&self) -> Vec<(K, Arc<V>)> {
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = Vec::with_capacity(series.all.len());
        series.all.retain(|key, of| {
            let of = of.upgrade();
            live.extend(of.iter().map(|of| (key.clone(), Arc::clone(of))));
            of.is_some()
        });
        live
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn series_ends_with_its_thing_and_begins_again_at_zero() {
        let series = LiveSeries::<&str, AtomicU64>::default();
        let names = || series.live().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let (a, b) = (series.begin("a"), series.begin("b"));
        a.fetch_add(7, Ordering::Relaxed);
        assert_eq!(names(), ["a", "b"]);
        drop(a);
        assert_eq!(names(), ["b"]);
        assert_eq!(series.begin("a").load(Ordering::Relaxed), 0);
        drop(b);
        assert!(names().is_empty());
    }

    #[test]
    fn series_that_ended_are_forgotten_though_nobody_reads() {
        let series = LiveSeries::<u32, AtomicU64>::default();
        let kept: Vec<_> = (0..100).map(|name| series.begin(name)).collect();
        (100..10_000).for_each(|name| drop(series.begin(name)));
        assert!(series.0.lock().unwrap().all.len() <= 2 * kept.len());
    }
}
