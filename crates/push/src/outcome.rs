//! How a push ended.

use std::fmt;
use std::time::Duration;

/// Every push ends in exactly one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The service took it.
    Accepted(Accepted),
    /// The service answered that it will not take it.
    Rejected(Rejected),
    /// It never reached the service whole: sending it again cannot make it arrive twice.
    NotSent(NotSent),
    /// It was sent whole, and no answer came: it may have been accepted.
    Uncertain(Uncertain),
}

/// A push that the service took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// The service's name for it: `apns-id`, FCM's message name, Web Push's location.
    pub id: String,
    /// `apns-unique-id`, which the sandbox answers with, for Apple's delivery console.
    pub unique_id: Option<String>,
    /// It was sent before without an answer, so that it may have been accepted twice.
    pub perhaps_twice: bool,
}

/// A push that the service refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// The HTTP status.
    pub status: u16,
    /// The service's word for it (`BadDeviceToken`); words unknown to us are kept as they came.
    pub reason: String,
    /// Since when a device token is known to be dead, in milliseconds since 1970 (410 of APNs).
    pub timestamp_ms: Option<u64>,
    /// When the service asks to be asked again.
    pub retry_after: Option<Duration>,
    /// The service's name for the push, where it gives one.
    pub id: String,
    /// What mends it, where that is known and is not the push.
    pub advice: Option<String>,
}

/// Why a push was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotSent {
    /// Its deadline passed in the queue.
    Deadline,
    /// Its deadline passed while no connection could be made; why not.
    Connect(String),
    /// Its own expiration (`apns-expiration`) passed.
    Expired,
    /// The sender was closed.
    Closed,
    /// The queue was full and the caller did not want to wait.
    QueueFull,
    /// The credential cannot be used; what is wrong with it.
    Credential(String),
    /// The push itself is not valid; which field and why.
    Invalid(String),
}

/// Why nobody knows whether a push was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Uncertain {
    /// The connection ended before the answer.
    ConnectionLost,
    /// The stream was reset before the answer.
    Reset,
    /// Its deadline passed before the answer.
    Deadline,
    /// The sender was closed before the answer.
    Closed,
}

impl Outcome {
    /// The word for it: `accepted`, `rejected`, `not_sent` or `uncertain`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Accepted(_) => "accepted",
            Outcome::Rejected(_) => "rejected",
            Outcome::NotSent(_) => "not_sent",
            Outcome::Uncertain(_) => "uncertain",
        }
    }

    /// Why it is not accepted: the service's own word, or what was in the way. Empty if it is.
    pub fn reason(&self) -> String {
        match self {
            Outcome::Accepted(_) => String::new(),
            Outcome::Rejected(rejected) => rejected.reason.clone(),
            Outcome::NotSent(why) => why.to_string(),
            Outcome::Uncertain(why) => why.to_string(),
        }
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

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotSent::Deadline => f.write_str("its deadline passed in the queue"),
            NotSent::Connect(why) => write!(f, "no connection: {why}"),
            NotSent::Expired => f.write_str("it expired before it could be sent"),
            NotSent::Closed => f.write_str("the sender was closed"),
            NotSent::QueueFull => f.write_str("the queue is full"),
            NotSent::Credential(why) => write!(f, "the credential cannot be used: {why}"),
            NotSent::Invalid(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for Uncertain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Uncertain::ConnectionLost => "the connection ended before the answer",
            Uncertain::Reset => "the stream was reset before the answer",
            Uncertain::Deadline => "the deadline passed before the answer",
            Uncertain::Closed => "the sender was closed before the answer",
        })
    }
}
