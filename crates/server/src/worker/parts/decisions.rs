//! Decisions of backends that may be used again, for as long as the backend has said.

use std::sync::Arc;

use super::FastMap;

/// Bytes of one worker's decisions.
const BYTES_MAX: usize = 8 << 20;
/// What one costs beside its texts.
const RECORD_BYTES: usize = 128;

/// Who asked what: a decision is used for the same user and channel alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DecisionKey {
    pub(crate) proxy: Arc<str>,
    pub(crate) user: Box<str>,
    pub(crate) channel: Box<str>,
}

/// The decisions of one worker.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    of: FastMap<DecisionKey, CachedDecision>,
    bytes: usize,
}

#[derive(Debug)]
struct CachedDecision {
    until_ms: u64,
    body: Arc<[u8]>,
}

impl DecisionKey {
    fn bytes(&self) -> usize {
        RECORD_BYTES + self.user.len() + self.channel.len()
    }
}

impl Decisions {
    /// Keeps an answer until then. Where there is no room those that are over leave; if that makes none, it is not kept.
    pub(crate) fn insert(&mut self, key: DecisionKey, body: &[u8], until_ms: u64, now_ms: u64) {
        let bytes = key.bytes() + body.len();
        if self.bytes + bytes > BYTES_MAX {
            self.of.retain(|_, decided| decided.until_ms > now_ms);
            self.bytes = self.of.iter().map(|(key, of)| key.bytes() + of.body.len()).sum();
        }
        if self.bytes + bytes > BYTES_MAX {
            return;
        }
        let was = key.bytes();
        self.bytes += bytes;
        if let Some(before) = self.of.insert(key, CachedDecision { until_ms, body: body.into() }) {
            self.bytes -= was + before.body.len();
        }
    }

    /// The answer that is still good.
    pub(crate) fn get(&self, key: &DecisionKey, now_ms: u64) -> Option<Arc<[u8]>> {
        let decided = self.of.get(key).filter(|decided| decided.until_ms > now_ms)?;
        Some(Arc::clone(&decided.body))
    }

    /// Whether there are none, so that nobody makes a key.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// None is good any more.
    pub(crate) fn clear(&mut self) {
        *self = Decisions::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &str, channel: &str) -> DecisionKey {
        DecisionKey { proxy: "rooms".into(), user: user.into(), channel: channel.into() }
    }

    #[test]
    fn a_decision_is_used_for_its_user_and_channel_until_it_is_over() {
        let mut decisions = Decisions::default();
        decisions.insert(key("ann", "a"), b"yes", 2_000, 1_000);
        assert_eq!(decisions.get(&key("ann", "a"), 1_999).as_deref(), Some(&b"yes"[..]));
        assert_eq!(decisions.get(&key("ann", "a"), 2_000), None);
        assert_eq!(decisions.get(&key("bob", "a"), 1_000), None);
        assert_eq!(decisions.get(&key("ann", "b"), 1_000), None);
        decisions.insert(key("ann", "a"), b"no", 3_000, 1_000);
        assert_eq!(decisions.get(&key("ann", "a"), 2_000).as_deref(), Some(&b"no"[..]));
        assert_eq!(decisions.bytes, key("ann", "a").bytes() + 2);
        decisions.clear();
        assert!(decisions.is_empty() && decisions.bytes == 0);
    }

    #[test]
    fn decisions_are_bounded_and_expired_ones_make_room() {
        let mut decisions = Decisions::default();
        let large = vec![b' '; BYTES_MAX / 2];
        decisions.insert(key("ann", "a"), &large, 2_000, 1_000);
        decisions.insert(key("ann", "b"), &large, 2_000, 1_000);
        assert_eq!(decisions.get(&key("ann", "b"), 1_000), None, "there is no room");
        decisions.insert(key("ann", "b"), &large, 4_000, 2_000);
        assert!(decisions.get(&key("ann", "b"), 2_000).is_some());
        assert!(decisions.bytes <= BYTES_MAX && decisions.of.len() == 1);
    }
}
