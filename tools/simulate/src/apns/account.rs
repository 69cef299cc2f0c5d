//! The credentials of a connection: its provider token or its client certificate.

use super::Reason;
use super::provider_token::{Claims, Keyring};

/// Minimum time between the `iat` of two tokens of one key, in seconds.
const UPDATE_INTERVAL_S: u64 = 20 * 60;

/// The relevant content of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// The bundle id, from the subject's `UID`.
    pub(crate) topic: Option<String>,
    pub(crate) expired: bool,
}

/// The credentials of one connection.
#[derive(Debug, Default)]
pub(crate) struct Account {
    certificate: Option<Certificate>,
    /// The last token as it appeared in the header, and its claims: identical bytes are not verified twice.
    token: Vec<u8>,
    claims: Option<Claims>,
    /// The team of the first token; another team's token requires another connection.
    team_id: Option<String>,
}

impl Account {
    pub(crate) fn new(certificate: Option<Certificate>) -> Account {
        Account { certificate, ..Account::default() }
    }

    /// Returns whether the client presented a certificate.
    pub(crate) fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }

    /// Returns the topic of pushes without `apns-topic`.
    pub(crate) fn topic(&self) -> Option<&str> {
        self.certificate.as_ref()?.topic.as_deref()
    }

    /// Checks the `authorization` header of one push.
    pub(crate) fn judge(
        &mut self,
        authorization: Option<&[u8]>,
        keyring: &Keyring,
        now_s: u64,
    ) -> Result<(), Reason> {
        let Some(authorization) = authorization else {
            return match &self.certificate {
                Some(certificate) if certificate.expired => Err(Reason::BadCertificate),
                Some(_) => Ok(()),
                None => Err(Reason::MissingProviderToken),
            };
        };
        if let Some(claims) = &self.claims
            && self.token == authorization
        {
            return if claims.is_expired(now_s) {
                Err(Reason::ExpiredProviderToken)
            } else {
                Ok(())
            };
        }
        let token = bearer(authorization).ok_or(Reason::InvalidProviderToken)?;
        let claims = keyring.verify(token, now_s)?;
        if self.team_id.as_ref().is_some_and(|team| *team != claims.team_id) {
            return Err(Reason::UnrelatedKeyIdInToken);
        }
        if let Some(before) = &self.claims
            && before.key_id == claims.key_id
            && claims.issued_at_s < before.issued_at_s.saturating_add(UPDATE_INTERVAL_S)
        {
            return Err(Reason::TooManyProviderTokenUpdates);
        }
        self.team_id.get_or_insert_with(|| claims.team_id.clone());
        self.token.clear();
        self.token.extend_from_slice(authorization);
        self.claims = Some(claims);
        Ok(())
    }

    /// Returns whether these credentials may push to `topic`.
    pub(crate) fn allows(&self, topic: &str) -> bool {
        match (&self.claims, self.topic()) {
            (Some(claims), _) => claims.allows(topic),
            (None, Some(bundle)) => topic
                .strip_prefix(bundle)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
            (None, None) => true,
        }
    }
}

/// Returns the token of `bearer TOKEN` (RFC 6750 §2.1).
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}
