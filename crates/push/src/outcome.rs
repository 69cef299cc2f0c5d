//! The outcome of a push, and its encoding in JSON, metrics and result files.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The outcome of a push. Every push has exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The service accepted it.
    Accepted(Accepted),
    /// The service refused it.
    Rejected(Rejected),
    /// It was not sent completely: sending it again cannot duplicate it.
    NotSent(NotSent),
    /// It was sent completely, and no response came: it may have been accepted.
    Uncertain(Uncertain),
}

/// The four kinds of outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// [`Outcome::Accepted`].
    Accepted,
    /// [`Outcome::Rejected`].
    Rejected,
    /// [`Outcome::NotSent`].
    NotSent,
    /// [`Outcome::Uncertain`].
    Uncertain,
}

/// Numbers of pushes by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutcomeCounts {
    /// [`OutcomeKind::Accepted`].
    pub accepted: u64,
    /// [`OutcomeKind::Rejected`].
    pub rejected: u64,
    /// [`OutcomeKind::NotSent`].
    pub not_sent: u64,
    /// [`OutcomeKind::Uncertain`].
    pub uncertain: u64,
}

/// An outcome in JSON, to be flattened into a line with the recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutcomeJson<'a> {
    /// The kind of the outcome.
    pub outcome: OutcomeKind,
    /// The service's id of the push.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub id: &'a str,
    /// [`Accepted::unique_id`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_id: Option<&'a str>,
    /// [`Accepted::possible_duplicate`], [`Rejected::possible_duplicate`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub possible_duplicate: bool,
    /// The HTTP status of a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// [`Outcome::reason`].
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'a str,
    /// [`Rejected::timestamp_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp_ms: Option<u64>,
    /// [`Rejected::retry_after`], seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// The reason as text, or the fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Cow<'a, str>>,
}

/// Durations of a push. If it was sent more than once, the last attempt counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From acceptance into the queue until sending: the queue, the credential, the connections, and earlier
    /// attempts.
    pub queue: Duration,
    /// From sending to the response: the network and the service.
    pub service: Duration,
}

/// A push that the service accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The service's id: `apns-id`, FCM's message name, Web Push's location.
    pub id: String,
    /// `apns-unique-id`, which only the sandbox returns, for Apple's delivery console.
    pub unique_id: Option<String>,
    /// It was sent before without a response, so it may have been accepted twice.
    pub possible_duplicate: bool,
    /// The durations.
    pub timings: Timings,
}

/// A push that the service refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// The HTTP status.
    pub status: u16,
    /// The service's reason (`BadDeviceToken`); unknown ones are passed on unchanged.
    pub reason: String,
    /// The time since when a device token is invalid, in milliseconds since 1970 (410 of APNs).
    pub timestamp_ms: Option<u64>,
    /// The delay after which the service asks to try again.
    pub retry_after: Option<Duration>,
    /// The service's id of the push, if there is one.
    pub id: String,
    /// How to fix the cause, if it is known and not the push; otherwise the service's message.
    pub advice: Option<String>,
    /// It was sent before without a response, so it may have been accepted then.
    pub possible_duplicate: bool,
    /// The durations.
    pub timings: Timings,
}

impl Rejected {
    /// Uses the service's message as the advice; an empty message gives no advice.
    #[cfg(any(feature = "fcm", feature = "web-push"))]
    pub(crate) fn said(
        status: u16,
        reason: String,
        sentence: String,
        retry_after: Option<Duration>,
    ) -> Rejected {
        let advice = (!sentence.is_empty()).then_some(sentence);
        Rejected { status, reason, retry_after, advice, ..Rejected::default() }
    }
}

/// Why a push was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotSent {
    /// Its deadline passed in the queue.
    #[error("its deadline passed in the queue; give it a longer timeout, or send less at once")]
    Deadline,
    /// Its deadline passed while no connection could be opened; contains the cause.
    #[error("no connection: {0}")]
    Connect(String),
    /// Its own expiration (`apns-expiration`) passed.
    #[error("it expired before it could be sent; let it expire later, or send less at once")]
    Expired,
    /// The sender was closed.
    #[error("the sender was closed; send it by another")]
    Closed,
    /// Its device has reached the caller's limit.
    #[error("the device has had as many as it may have; send it later, or raise the limit")]
    DeviceLimit,
    /// The credential cannot be used; contains the cause.
    #[error("the credential cannot be used: {0}")]
    Credential(String),
    /// The push is invalid; names the field and the cause.
    #[error("{0}")]
    Invalid(String),
}

/// Why it is unknown whether a push was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Uncertain {
    /// The connection ended before the answer.
    #[error("the connection ended before the answer; sent again, it may arrive twice")]
    ConnectionLost,
    /// The stream was reset before the answer.
    #[error("the stream was reset before the answer; sent again, it may arrive twice")]
    Reset,
    /// Its deadline passed before the answer.
    #[error("the deadline passed before the answer; give it a longer timeout")]
    Deadline,
    /// The sender was closed before the answer.
    #[error("the sender was closed before the answer; raise `drain` to wait for it")]
    Closed,
}

impl Outcome {
    /// Returns the kind of the outcome.
    pub fn kind(&self) -> OutcomeKind {
        match self {
            Outcome::Accepted(_) => OutcomeKind::Accepted,
            Outcome::Rejected(_) => OutcomeKind::Rejected,
            Outcome::NotSent(_) => OutcomeKind::NotSent,
            Outcome::Uncertain(_) => OutcomeKind::Uncertain,
        }
    }

    /// Returns the reason: the service's own for a rejection, empty if the push was accepted.
    pub fn reason(&self) -> &str {
        match self {
            Outcome::Accepted(_) => "",
            Outcome::Rejected(rejected) => &rejected.reason,
            Outcome::NotSent(why) => match why {
                NotSent::Deadline => "deadline",
                NotSent::Connect(_) => "connect",
                NotSent::Expired => "expired",
                NotSent::Closed => "closed",
                NotSent::DeviceLimit => "device_limit",
                NotSent::Credential(_) => "credential",
                NotSent::Invalid(_) => "invalid",
            },
            Outcome::Uncertain(why) => match why {
                Uncertain::ConnectionLost => "connection_lost",
                Uncertain::Reset => "reset",
                Uncertain::Deadline => "deadline",
                Uncertain::Closed => "closed",
            },
        }
    }

    /// Like [`OutcomeKind::is_final`].
    pub fn is_final(&self) -> bool {
        let status = match self {
            Outcome::Rejected(rejected) => Some(rejected.status),
            _ => None,
        };
        self.kind().is_final(status, self.reason())
    }

    /// Returns the outcome in JSON.
    pub fn to_json(&self) -> OutcomeJson<'_> {
        let mut json = OutcomeJson::new(self.kind(), self.reason());
        match self {
            Outcome::Accepted(accepted) => {
                json.id = &accepted.id;
                json.unique_id = accepted.unique_id.as_deref();
                json.possible_duplicate = accepted.possible_duplicate;
            }
            Outcome::Rejected(rejected) => {
                json.id = &rejected.id;
                json.possible_duplicate = rejected.possible_duplicate;
                json.status = Some(rejected.status);
                json.timestamp_ms = rejected.timestamp_ms;
                json.retry_after_s = rejected.retry_after.map(|after| after.as_secs());
                json.detail = rejected.advice.as_deref().map(Cow::Borrowed);
            }
            Outcome::NotSent(why) => json.detail = Some(why.to_string().into()),
            Outcome::Uncertain(why) => json.detail = Some(why.to_string().into()),
        }
        json
    }
}

impl<'a> OutcomeJson<'a> {
    /// Creates an outcome with a kind and a reason only.
    pub fn new(outcome: OutcomeKind, reason: &'a str) -> OutcomeJson<'a> {
        OutcomeJson {
            outcome,
            id: "",
            unique_id: None,
            possible_duplicate: false,
            status: None,
            reason,
            timestamp_ms: None,
            retry_after_s: None,
            detail: None,
        }
    }
}

impl OutcomeKind {
    /// Returns whether another attempt, now or with another credential, would have the same outcome. This is not so for
    /// responses of an overloaded service (429, 5xx) and about the credential (401, 403).
    pub fn is_final(self, status: Option<u16>, reason: &str) -> bool {
        match self {
            OutcomeKind::Accepted | OutcomeKind::Uncertain => true,
            OutcomeKind::Rejected => !matches!(status, Some(401 | 403 | 408 | 429 | 500..=599)),
            OutcomeKind::NotSent => reason == "invalid",
        }
    }

    /// Returns the name in JSON and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            OutcomeKind::Accepted => "accepted",
            OutcomeKind::Rejected => "rejected",
            OutcomeKind::NotSent => "not_sent",
            OutcomeKind::Uncertain => "uncertain",
        }
    }
}

impl OutcomeCounts {
    /// Counts an outcome.
    pub fn count(&mut self, end: OutcomeKind) {
        *match end {
            OutcomeKind::Accepted => &mut self.accepted,
            OutcomeKind::Rejected => &mut self.rejected,
            OutcomeKind::NotSent => &mut self.not_sent,
            OutcomeKind::Uncertain => &mut self.uncertain,
        } += 1;
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Accepted(accepted) => write!(f, "accepted as {}", accepted.id),
            Outcome::Rejected(rejected) => {
                write!(f, "rejected with {} {}", rejected.status, rejected.reason)?;
                if let Some(timestamp_ms) = rejected.timestamp_ms {
                    write!(f, " since {timestamp_ms} ms")?;
                }
                match &rejected.advice {
                    Some(advice) => write!(f, ": {advice}"),
                    None => Ok(()),
                }
            }
            Outcome::NotSent(why) => write!(f, "not sent: {why}"),
            Outcome::Uncertain(why) => write!(f, "uncertain: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_one_name_wherever_it_is_spelled() {
        let mut ends = OutcomeCounts::default();
        for end in [
            OutcomeKind::Accepted,
            OutcomeKind::Rejected,
            OutcomeKind::NotSent,
            OutcomeKind::Uncertain,
        ] {
            assert_eq!(serde_json::to_value(end).unwrap(), end.as_str());
            ends.count(end);
            assert_eq!(serde_json::to_value(ends).unwrap()[end.as_str()], 1);
        }
    }

    #[test]
    fn an_outcome_is_spelled_with_what_it_has() {
        let json = |outcome: &Outcome| serde_json::to_string(&outcome.to_json()).unwrap();
        let accepted = Accepted { id: "1".into(), ..Accepted::default() };
        assert_eq!(json(&Outcome::Accepted(accepted)), r#"{"outcome":"accepted","id":"1"}"#);
        let rejected = Rejected {
            status: 410,
            reason: "Unregistered".into(),
            timestamp_ms: Some(7),
            ..Rejected::default()
        };
        assert_eq!(
            json(&Outcome::Rejected(rejected)),
            r#"{"outcome":"rejected","status":410,"reason":"Unregistered","timestamp_ms":7}"#
        );
        assert_eq!(
            json(&Outcome::NotSent(NotSent::Closed)),
            r#"{"outcome":"not_sent","reason":"closed","detail":"the sender was closed; send it by another"}"#
        );
        assert_eq!(Outcome::Uncertain(Uncertain::Reset).reason(), "reset");
    }
}
