//! What happens in each namespace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use dunlin_hub::{HubStats, NamespaceShare};
use dunlin_metrics::{DescriptorEncoder, Family, Kind};

/// The most namespaces with series of their own: the first by name. The rest, and those of tenants, are `other`.
pub(crate) const NAMESPACES_MAX: usize = 100;
const OTHER: &str = "other";

type OfNamespace = (Family, fn(&Figures) -> u64);

const FAMILIES: [OfNamespace; 4] = [
    (
        counter("namespace_publications_total", "Publications to the channels of a namespace."),
        |of| of.publications,
    ),
    (counter("namespace_deliveries_total", "Publications put into outboxes of clients."), |of| {
        of.deliveries
    }),
    (gauge("namespace_channels", "Channels of a namespace."), |of| of.channels),
    (
        gauge("namespace_history_bytes", "Bytes of publications kept in histories of a namespace."),
        |of| of.history_bytes,
    ),
];

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Counter }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Gauge }
}

/// Of a namespace, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) publications: u64,
    pub(crate) deliveries: u64,
    pub(crate) channels: u64,
    pub(crate) history_bytes: u64,
}

impl From<&NamespaceShare> for Figures {
    fn from(share: &NamespaceShare) -> Figures {
        Figures {
            publications: share.publications,
            deliveries: share.deliveries,
            channels: share.channels.into(),
            history_bytes: share.history_bytes as u64,
        }
    }
}

impl From<&HubStats> for Figures {
    fn from(stats: &HubStats) -> Figures {
        Figures {
            publications: stats.publications,
            deliveries: stats.deliveries,
            channels: stats.home_channels,
            history_bytes: stats.history_bytes,
        }
    }
}

/// The figures of one worker: written by it once a second, read by anyone.
#[derive(Debug, Default)]
pub(crate) struct NamespaceGauges(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    all: Figures,
    listed: BTreeMap<Arc<str>, Figures>,
    other: Figures,
}

impl NamespaceGauges {
    /// Publishes the figures of the namespaces that have series, among those of all. What is not listed any more leaves; what was
    /// counted of it stays with it, so that `other` never falls.
    pub(crate) fn publish(&self, all: Figures, listed: impl Iterator<Item = (Arc<str>, Figures)>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let listed: BTreeMap<_, _> = listed.collect();
        let rest = |of: fn(&Figures) -> u64| {
            let grown = of(&all).saturating_sub(of(&state.all));
            let known = listed.iter().map(|(name, figures)| {
                match state.listed.get(name) {
                    Some(before) => of(figures).saturating_sub(of(before)),
                    // It may have been used before it was listed.
                    None => of(figures).min(grown),
                }
            });
            grown.saturating_sub(known.sum())
        };
        let sum = |of: fn(&Figures) -> u64| listed.values().map(of).sum::<u64>();
        state.other = Figures {
            publications: state.other.publications + rest(|of| of.publications),
            deliveries: state.other.deliveries + rest(|of| of.deliveries),
            channels: all.channels.saturating_sub(sum(|of| of.channels)),
            history_bytes: all.history_bytes.saturating_sub(sum(|of| of.history_bytes)),
        };
        (state.all, state.listed) = (all, listed);
    }

    /// Writes the sums over workers.
    pub(crate) fn encode<'a>(
        encoder: &mut DescriptorEncoder<'_>,
        workers: impl Iterator<Item = &'a NamespaceGauges>,
    ) -> std::fmt::Result {
        let mut sums = BTreeMap::<Arc<str>, Figures>::new();
        for worker in workers {
            let state = worker.0.lock().unwrap_or_else(PoisonError::into_inner);
            let other = (Arc::from(OTHER), state.other);
            let listed = state.listed.iter().map(|(name, of)| (Arc::clone(name), *of));
            for (name, of) in listed.chain([other]) {
                let sum = sums.entry(name).or_default();
                sum.publications += of.publications;
                sum.deliveries += of.deliveries;
                sum.channels += of.channels;
                sum.history_bytes += of.history_bytes;
            }
        }
        FAMILIES.iter().try_for_each(|(family, value)| {
            let samples = sums.iter().map(|(name, of)| ([("namespace", &**name)], value(of)));
            family.encode(encoder, samples)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(publications: u64, channels: u64) -> Figures {
        Figures { publications, channels, ..Figures::default() }
    }

    #[test]
    fn namespace_that_goes_leaves_and_the_rest_never_falls() {
        let gauges = NamespaceGauges::default();
        let other = || gauges.0.lock().unwrap().other;
        let chat = || Arc::<str>::from("chat");
        gauges.publish(figures(10, 3), [(chat(), figures(0, 1))].into_iter());
        assert_eq!(other(), figures(10, 2));
        gauges.publish(figures(25, 3), [(chat(), figures(12, 1))].into_iter());
        assert_eq!(other(), figures(13, 2), "12 of the 15 more were of it");
        gauges.publish(figures(26, 2), std::iter::empty());
        assert_eq!(other(), figures(14, 2));
        gauges.publish(figures(30, 3), [(chat(), figures(16, 1))].into_iter());
        assert_eq!(other(), figures(14, 2), "the 4 more were of it");
    }
}
