//! What was agreed with a session when it began, and holds until it ends: how often it is pinged, and by which key it
//! was let in.
//!
//! A client learns the ping interval once, and takes a server that pings later for dead; so a changed interval holds for
//! sessions that begin after the change. Different parameters are few and sessions many: a connection's record holds a
//! number of eleven bits.

/// The parameters of all sessions of one worker.
#[derive(Debug, Default)]
pub(crate) struct SessionParamsTable {
    places: Vec<SharedParams>,
    /// The index of the last session's parameters, because the next ones are probably the same.
    last: usize,
}

#[derive(Debug)]
struct SharedParams {
    params: SessionParams,
    sessions: u32,
}

/// The parameters of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionParams {
    pub(crate) ping_interval_ms: u64,
    pub(crate) pong_timeout_ms: u64,
    /// The key its token was signed with; `None` for a client without a token.
    pub(crate) key: Option<u64>,
}

/// The most distinct parameters of one worker at once.
const PLACES_MAX: usize = (1 << 11) - 2;

impl SessionParamsTable {
    /// Returns the index of these parameters, and counts one more session that holds them. `None` if [`PLACES_MAX`] others are
    /// held.
    pub(crate) fn hold(&mut self, params: SessionParams) -> Option<u16> {
        let is_it = |place: &SharedParams| place.params == params;
        let found = if self.places.get(self.last).is_some_and(is_it) {
            Some(self.last)
        } else {
            self.places.iter().position(is_it)
        };
        let at = match found.or_else(|| self.places.iter().position(|place| place.sessions == 0)) {
            Some(at) => at,
            None if self.places.len() < PLACES_MAX => {
                self.places.push(SharedParams { params, sessions: 0 });
                self.places.len() - 1
            }
            None => return None,
        };
        self.places[at].params = params;
        self.places[at].sessions += 1;
        self.last = at;
        Some(at as u16)
    }

    /// Counts one session less that holds these parameters.
    pub(crate) fn release(&mut self, at: u16) {
        if let Some(place) = self.places.get_mut(usize::from(at)) {
            place.sessions = place.sessions.saturating_sub(1);
        }
    }

    pub(crate) fn get(&self, at: u16) -> Option<SessionParams> {
        self.places.get(usize::from(at)).map(|place| place.params)
    }

    /// Returns the keys that signed the tokens of sessions, and the number of sessions of each.
    pub(crate) fn keys(&self) -> Vec<(u64, u64)> {
        let held = self.places.iter().filter(|place| place.sessions > 0);
        held.filter_map(|place| Some((place.params.key?, u64::from(place.sessions)))).collect()
    }

    /// Returns the number of sessions for whose key `keeps` is false.
    pub(crate) fn sessions_without(&self, keeps: impl Fn(u64) -> bool) -> u64 {
        self.places
            .iter()
            .filter(|place| place.params.key.is_some_and(|key| !keeps(key)))
            .map(|place| u64::from(place.sessions))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(ping_interval_ms: u64, key: Option<u64>) -> SessionParams {
        SessionParams { ping_interval_ms, pong_timeout_ms: 1, key }
    }

    #[test]
    fn equal_params_share_a_place_and_a_place_given_up_is_used_again() {
        let mut table = SessionParamsTable::default();
        let first = table.hold(params(1, None)).unwrap();
        assert_eq!(table.hold(params(1, None)), Some(first));
        let second = table.hold(params(2, Some(7))).unwrap();
        assert_ne!(first, second);
        assert_eq!(table.sessions_without(|key| key == 7), 0);
        assert_eq!(table.sessions_without(|_| false), 1);
        table.release(second);
        assert_eq!(table.sessions_without(|_| false), 0);
        assert_eq!(table.hold(params(3, None)), Some(second));
        assert_eq!(table.get(first), Some(params(1, None)));
    }

    #[test]
    fn there_are_two_thousand_at_most() {
        let mut table = SessionParamsTable::default();
        for interval in 0..PLACES_MAX as u64 {
            assert!(table.hold(params(interval, None)).is_some());
        }
        assert_eq!(table.hold(params(u64::MAX, None)), None);
        assert!(table.hold(params(5, None)).is_some());
    }
}
