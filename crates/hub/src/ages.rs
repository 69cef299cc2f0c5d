//! How old publications were when they were delivered.

/// The most times of publications that are kept apart; later ones are counted with the first.
const TIMES_MAX: usize = 64;

/// Deliveries since they were last taken, by the time of their publication.
#[derive(Debug, Default)]
pub(crate) struct DeliveredAges(Vec<(u64, u64)>);

impl DeliveredAges {
    /// Counts deliveries of a publication.
    pub(crate) fn add(&mut self, time_ms: u64, deliveries: u64) {
        if deliveries == 0 {
            return;
        }
        let known = self.0.iter().rposition(|(known, _)| *known == time_ms);
        let at = match known {
            Some(at) => at,
            None if self.0.len() < TIMES_MAX => return self.0.push((time_ms, deliveries)),
            None => 0,
        };
        let (known, sum) = &mut self.0[at];
        (*known, *sum) = (time_ms.min(*known), *sum + deliveries);
    }

    pub(crate) fn take(&mut self) -> impl Iterator<Item = (u64, u64)> {
        self.0.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_kept_by_time_within_a_bound_and_none_is_lost() {
        let mut ages = DeliveredAges::default();
        [(7, 2), (9, 0), (8, 1), (7, 3)].into_iter().for_each(|(time, of)| ages.add(time, of));
        assert_eq!(ages.take().collect::<Vec<_>>(), [(7, 5), (8, 1)]);
        (0..1_000).for_each(|time| ages.add(time, 1));
        let taken: Vec<_> = ages.take().collect();
        assert_eq!(taken.len(), TIMES_MAX);
        assert_eq!(taken.iter().map(|(_, of)| of).sum::<u64>(), 1_000);
        assert!(ages.take().next().is_none());
    }
}
