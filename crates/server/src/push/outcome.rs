//! What became of a push, as a line of JSON.

use dunlin_push::registry::{Device, Platform};
use dunlin_push::{NotSent, Outcome, Uncertain};
use serde::Serialize;

/// How a push ended, or why there was none.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Line<'a> {
    /// Which notification of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    push: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<Platform>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    outcome: Kind,
    /// The service's name for the push.
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_id: Option<&'a str>,
    /// It may have been accepted before, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    perhaps_twice: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

/// The four ends of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Accepted,
    Rejected,
    NotSent,
    Uncertain,
}

/// The word for the reason of an end; for a rejection it is the service's own.
pub(super) fn reason(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Accepted(_) => "",
        Outcome::Rejected(rejected) => &rejected.reason,
        Outcome::NotSent(why) => match why {
            NotSent::Deadline => "deadline",
            NotSent::Connect(_) => "connect",
            NotSent::Expired => "expired",
            NotSent::Closed => "closed",
            NotSent::QueueFull => "queue_full",
            NotSent::Credential(_) => "credential",
            NotSent::Invalid(_) => "invalid",
            _ => "other",
        },
        Outcome::Uncertain(why) => match why {
            Uncertain::ConnectionLost => "connection_lost",
            Uncertain::Reset => "reset",
            Uncertain::Deadline => "deadline",
            Uncertain::Closed => "closed",
            _ => "other",
        },
    }
}

impl Kind {
    pub(super) fn of(outcome: &Outcome) -> Kind {
        match outcome {
            Outcome::Accepted(_) => Kind::Accepted,
            Outcome::Rejected(_) => Kind::Rejected,
            Outcome::NotSent(_) => Kind::NotSent,
            Outcome::Uncertain(_) => Kind::Uncertain,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Kind::Accepted => "accepted",
            Kind::Rejected => "rejected",
            Kind::NotSent => "not_sent",
            Kind::Uncertain => "uncertain",
        }
    }
}

/// Whom a line is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whom<'a> {
    pub(super) push: Option<usize>,
    pub(super) user: Option<&'a str>,
    pub(super) device: Option<&'a Device>,
}

/// Writes the line of a push, its end included.
pub(super) fn write(out: &mut Vec<u8>, whom: Whom<'_>, outcome: &Outcome) {
    let mut line = Line::new(whom, Kind::of(outcome));
    line.reason = reason(outcome);
    let detail;
    match outcome {
        Outcome::Accepted(accepted) => {
            line.id = &accepted.id;
            line.unique_id = accepted.unique_id.as_deref();
            line.perhaps_twice = accepted.perhaps_twice;
        }
        Outcome::Rejected(rejected) => {
            line.id = &rejected.id;
            line.status = Some(rejected.status);
            line.timestamp_ms = rejected.timestamp_ms;
            line.detail = rejected.advice.as_deref();
            line.retry_after_s = rejected.retry_after.map(|after| after.as_secs());
        }
        Outcome::NotSent(why) => {
            detail = why.to_string();
            line.detail = Some(&detail);
        }
        Outcome::Uncertain(why) => {
            detail = why.to_string();
            line.detail = Some(&detail);
        }
    }
    line.write(out);
}

/// Writes the line of a user whom nothing was sent.
pub(super) fn write_user(out: &mut Vec<u8>, whom: Whom<'_>, reason: &str, detail: &str) {
    let line = Line { reason, detail: Some(detail), ..Line::new(whom, Kind::NotSent) };
    line.write(out);
}

impl<'a> Line<'a> {
    fn new(whom: Whom<'a>, outcome: Kind) -> Line<'a> {
        let Whom { push, user, device } = whom;
        Line {
            push,
            user,
            provider: device.map(|device| device.platform),
            app: device.map(|device| &*device.app),
            token: device.map(|device| &*device.token),
            outcome,
            id: "",
            unique_id: None,
            perhaps_twice: false,
            status: None,
            reason: "",
            timestamp_ms: None,
            retry_after_s: None,
            detail: None,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        // Texts and numbers are JSON, and a Vec takes all that is written to it.
        let _ = serde_json::to_writer(&mut *out, self);
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use dunlin_push::{Accepted, Rejected};

    use super::*;

    fn line(outcome: &Outcome) -> String {
        let device = Device { platform: Platform::Apns, app: "shop".into(), token: "ab".into() };
        let mut out = Vec::new();
        let whom = Whom { push: Some(2), user: Some("ada"), device: Some(&device) };
        write(&mut out, whom, outcome);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_end_has_its_line() {
        let accepted = Accepted { id: "1".into(), ..Accepted::default() };
        let head = r#"{"push":2,"user":"ada","provider":"apns","app":"shop","token":"ab","#;
        assert_eq!(
            line(&Outcome::Accepted(accepted)),
            format!("{head}\"outcome\":\"accepted\",\"id\":\"1\"}}\n")
        );
        let rejected = Rejected {
            status: 410,
            reason: "Unregistered".into(),
            timestamp_ms: Some(7),
            ..Rejected::default()
        };
        assert_eq!(
            line(&Outcome::Rejected(rejected)),
            format!(
                "{head}\"outcome\":\"rejected\",\"status\":410,\"reason\":\"Unregistered\",\"timestamp_ms\":7}}\n"
            )
        );
        assert!(line(&Outcome::NotSent(NotSent::Closed)).contains(
            r#""outcome":"not_sent","reason":"closed","detail":"the sender was closed"}"#
        ));
        assert!(line(&Outcome::Uncertain(Uncertain::Reset)).contains(r#""reason":"reset""#));
        let mut out = Vec::new();
        write_user(
            &mut out,
            Whom { push: None, user: Some("bob"), device: None },
            "no_device",
            "x",
        );
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"user\":\"bob\",\"outcome\":\"not_sent\",\"reason\":\"no_device\",\"detail\":\"x\"}\n"
        );
    }
}
