//! Grants of subscriptions, by token, backend, capability or expression: when each expires, and which token it depends on.

use std::collections::BTreeSet;
use std::sync::Arc;

use dunlin_hub::{Now, SessionId};

use super::{FastMap, TokenFacts};
use crate::auth::{Allow, OptionsOverride};

/// What a subscription is based on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) source: GrantSource,
    /// The channel options that its source overrides.
    pub(crate) overrides: OptionsOverride,
    /// Data for the client as raw JSON, until the subscription is answered.
    pub(crate) data: Option<Box<[u8]>>,
}

/// Who grants a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantSource {
    /// A capability of the connection's token, or an expression.
    Capability,
    /// The connection's token or connect proxy names the channel. Kept only for what it overrides.
    Connection,
    /// The subscription's own token, or the decision of a backend.
    Token(GrantToken),
}

/// A subscription token, or the decision of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantToken {
    /// The facts of the token, such as its expiry.
    pub(crate) facts: TokenFacts,
    /// The key that signed it; `None` for a backend's decision.
    pub(crate) key: Option<u64>,
    /// What the client may do in the channel while it is subscribed.
    pub(crate) allow: Allow,
}

impl Grant {
    pub(crate) fn token(&self) -> Option<GrantToken> {
        match self.source {
            GrantSource::Token(token) => Some(token),
            GrantSource::Capability | GrantSource::Connection => None,
        }
    }

    fn is_by_backend(&self) -> bool {
        self.token().is_some_and(|token| token.key.is_none())
    }

    fn expire_at_s(&self) -> Option<u64> {
        self.token()?.facts.expire_at_s()
    }
}

/// A subscription, identified by session and channel.
pub(crate) type GrantKey = (SessionId, Arc<str>);

/// The grants of one worker's subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    of: FastMap<SessionId, Vec<(Arc<str>, Grant)>>,
    /// Expiries in Unix seconds.
    ends: BTreeSet<(u64, SessionId, Arc<str>)>,
}

impl Grants {
    /// Sets the grant of a subscription.
    pub(crate) fn insert(&mut self, session: SessionId, channel: &str, grant: Grant) {
        self.remove(session, channel);
        let channel: Arc<str> = channel.into();
        if let Some(end_s) = grant.expire_at_s() {
            self.ends.insert((end_s, session, Arc::clone(&channel)));
        }
        self.of.entry(session).or_default().push((channel, grant));
    }

    /// Removes the grant of a subscription that has ended, or was not made.
    pub(crate) fn remove(&mut self, session: SessionId, channel: &str) {
        self.take(session, channel);
    }

    fn take(&mut self, session: SessionId, channel: &str) -> Option<Grant> {
        let grants = self.of.get_mut(&session)?;
        let at = grants.iter().position(|(name, _)| **name == *channel)?;
        let (channel, grant) = grants.swap_remove(at);
        if grants.is_empty() {
            self.of.remove(&session);
        }
        if let Some(end_s) = grant.expire_at_s() {
            self.ends.remove(&(end_s, session, channel));
        }
        if self.of.is_empty() {
            *self = Grants::default();
        }
        Some(grant)
    }

    /// Whether the subscription is based on a backend's decision.
    pub(crate) fn is_by_backend(&self, session: SessionId, channel: &str) -> bool {
        self.get(session, channel).is_some_and(Grant::is_by_backend)
    }

    /// Removes the grants of a session that has ended.
    pub(crate) fn forget(&mut self, session: SessionId) {
        for (channel, grant) in self.of.remove(&session).into_iter().flatten() {
            if let Some(end_s) = grant.expire_at_s() {
                self.ends.remove(&(end_s, session, channel));
            }
        }
    }

    /// Returns the whole seconds until the subscription expires, as sent to the client; 0: never.
    pub(crate) fn ttl_s(&self, session: SessionId, channel: &str, now: Now) -> u32 {
        let token = self.get(session, channel).and_then(Grant::token);
        token.map_or(0, |token| token.facts.ttl_s(now))
    }

    /// Takes the data for the client.
    pub(crate) fn take_data(&mut self, session: SessionId, channel: &str) -> Option<Box<[u8]>> {
        let grants = self.of.get_mut(&session)?;
        grants.iter_mut().find(|(name, _)| **name == *channel)?.1.data.take()
    }

    /// Removes at most `max` subscriptions that have expired, including the grace period. Returns each, and whether it was based
    /// on a backend's decision.
    pub(crate) fn expire(
        &mut self,
        unix_ms: u64,
        grace_ms: u64,
        max: usize,
    ) -> Vec<(GrantKey, bool)> {
        let mut expired = Vec::new();
        while let Some((end_s, ..)) = self.ends.first()
            && end_s.saturating_mul(1000).saturating_add(grace_ms) <= unix_ms
            && expired.len() < max
            && let Some((_, session, channel)) = self.ends.pop_first()
        {
            let grant = self.take(session, &channel);
            expired.push(((session, channel), grant.is_some_and(|grant| grant.is_by_backend())));
        }
        expired
    }

    /// Whether [`Grants::expire`] has something to remove.
    pub(crate) fn has_expired(&self, unix_ms: u64, grace_ms: u64) -> bool {
        let end_s = self.ends.first().map(|(end_s, ..)| *end_s);
        end_s.is_some_and(|end_s| end_s.saturating_mul(1000).saturating_add(grace_ms) <= unix_ms)
    }

    /// Returns the subscriptions based on such a token, by a scan of all.
    pub(crate) fn with_tokens(
        &self,
        is_such: impl Fn(SessionId, &TokenFacts) -> bool,
    ) -> Vec<GrantKey> {
        self.places(|session, _, grant| grant.token().is_some_and(|of| is_such(session, &of.facts)))
    }

    /// Returns the subscriptions based on a key for which `keeps` is false, by a scan of all.
    pub(crate) fn without_key(&self, keeps: impl Fn(&str, u64) -> bool) -> Vec<GrantKey> {
        self.places(|_, channel, grant| {
            grant.token().is_some_and(|token| token.key.is_some_and(|key| !keeps(channel, key)))
        })
    }

    /// The subscriptions of a session whose tokens were issued then, by `is_it`.
    pub(crate) fn issued(
        &self,
        of: SessionId,
        is_it: impl Fn(Option<u64>) -> bool,
    ) -> Vec<GrantKey> {
        let grants = self.of.get(&of).into_iter().flatten();
        let issued = grants
            .filter(|(_, of)| of.token().is_some_and(|token| is_it(token.facts.issued_at_s())));
        issued.map(|(channel, _)| (of, Arc::clone(channel))).collect()
    }

    /// Returns what the subscription's token allows in the channel.
    pub(crate) fn allow(&self, session: SessionId, channel: &str) -> Allow {
        let token = self.get(session, channel).and_then(Grant::token);
        token.map_or(Allow::NONE, |token| token.allow)
    }

    fn places(&self, is_it: impl Fn(SessionId, &str, &Grant) -> bool) -> Vec<GrantKey> {
        let all = self.of.iter().flat_map(|(session, grants)| {
            grants.iter().map(|(channel, grant)| (*session, channel, grant))
        });
        let found = all.filter(|(session, channel, grant)| is_it(*session, channel, grant));
        found.map(|(session, channel, _)| (session, Arc::clone(channel))).collect()
    }

    /// Returns what is kept of a subscription's source.
    pub(crate) fn get(&self, session: SessionId, channel: &str) -> Option<&Grant> {
        if self.of.is_empty() {
            return None;
        }
        let grants = self.of.get(&session)?;
        grants.iter().find(|(name, _)| **name == *channel).map(|(_, grant)| grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::revocation::TokenId;

    fn session(slot: u32) -> SessionId {
        SessionId::pack(0, 0, 0, slot, 0)
    }

    fn grant(id: u64, expire_at_s: Option<u64>) -> Grant {
        let facts = TokenFacts::new(TokenId(id), Some(7), expire_at_s);
        Grant {
            source: GrantSource::Token(GrantToken { facts, key: Some(id), allow: Allow::HISTORY }),
            overrides: OptionsOverride::default(),
            data: None,
        }
    }

    #[test]
    fn a_subscription_expires_once_at_the_time_of_its_newest_token() {
        let mut grants = Grants::default();
        grants.insert(session(1), "a", grant(1, Some(100)));
        grants.insert(session(1), "b", grant(2, None));
        grants.insert(session(2), "a", grant(3, Some(100)));
        grants.insert(session(2), "a", grant(4, Some(200)));
        assert!(!grants.has_expired(104_999, 5_000) && grants.has_expired(105_000, 5_000));
        assert_eq!(grants.expire(105_000, 5_000, 9), [((session(1), "a".into()), false)]);
        assert!(grants.get(session(1), "a").is_none() && grants.get(session(1), "b").is_some());
        let now = Now { ms: 0, unix_ms: 150_000 };
        assert_eq!(grants.ttl_s(session(2), "a", now), 50);
        assert_eq!(grants.ttl_s(session(1), "b", now), 0, "never");
        assert_eq!(grants.expire(u64::MAX, 0, 9).len(), 1);
    }

    #[test]
    fn ended_grants_leave_nothing_behind() {
        let mut grants = Grants::default();
        for round in 0..100 {
            grants.insert(session(1), "a", grant(round, Some(1_000_000 + round)));
            grants.remove(session(1), "a");
        }
        grants.insert(session(1), "a", grant(1, Some(100)));
        grants.insert(session(1), "b", grant(1, Some(100)));
        grants.forget(session(1));
        assert!(grants.of.is_empty() && grants.ends.is_empty());
    }

    #[test]
    fn subscriptions_are_found_by_token_key_and_time() {
        let mut grants = Grants::default();
        grants.insert(session(1), "a", grant(1, None));
        grants.insert(session(1), "b", grant(2, None));
        let a = || [(session(1), Arc::<str>::from("a"))];
        assert_eq!(grants.with_tokens(|_, token| token.id == TokenId(1)), a());
        assert_eq!(grants.without_key(|_, key| key == 2), a());
        assert_eq!(grants.issued(session(1), |at| at == Some(7)).len(), 2);
        let (source, overrides) = (GrantSource::Capability, OptionsOverride::default());
        grants.insert(session(1), "c", Grant { source, overrides, data: None });
        assert_eq!(grants.allow(session(1), "a"), Allow::HISTORY);
        assert_eq!(grants.allow(session(1), "c"), Allow::NONE);
        assert_eq!(grants.expire(u64::MAX, 0, 9), []);
    }
}
