//! The outcome of a push as a line of JSON.

use dunlin_push::registry::Platform;
use dunlin_push::{Outcome, OutcomeJson, OutcomeKind};
use serde::Serialize;

use super::submission::{BroadcastTarget, Recipient};

/// The outcome of a push, or the reason why a user gets none.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// The durable batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<u64>,
    /// The index of the notification in its batch.
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
    #[serde(flatten)]
    target: Option<&'a BroadcastTarget>,
    #[serde(flatten)]
    ended: OutcomeJson<'a>,
}

/// The subject of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineSubject<'a> {
    /// The durable batch.
    pub(super) batch: Option<u64>,
    pub(super) push: Option<usize>,
    pub(super) user: Option<&'a str>,
    pub(super) recipient: Option<&'a Recipient>,
}

/// Writes the line of a push with its outcome. `possible_duplicate`: it may have arrived before.
pub(super) fn write(
    out: &mut Vec<u8>,
    subject: LineSubject<'_>,
    outcome: &Outcome,
    possible_duplicate: bool,
) {
    let mut ended = outcome.to_json();
    ended.possible_duplicate |= possible_duplicate;
    if ended.id.is_empty() {
        // The service uses the caller's id as its own.
        ended.id = subject.recipient.and_then(Recipient::id).unwrap_or_default();
    }
    Line::new(subject, ended).write(out);
}

/// Writes the line of a user without a push.
pub(super) fn write_user(out: &mut Vec<u8>, subject: LineSubject<'_>, reason: &str, detail: &str) {
    let ended = OutcomeJson {
        detail: Some(detail.into()),
        ..OutcomeJson::new(OutcomeKind::NotSent, reason)
    };
    Line::new(subject, ended).write(out);
}

impl<'a> Line<'a> {
    fn new(subject: LineSubject<'a>, ended: OutcomeJson<'a>) -> Line<'a> {
        let LineSubject { batch, push, user, recipient } = subject;
        Line {
            batch,
            push,
            user,
            provider: recipient.map(Recipient::platform),
            app: recipient.map(Recipient::app),
            token: recipient.and_then(Recipient::token),
            target: recipient.and_then(Recipient::broadcast_target),
            ended,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        // Cannot fail: texts and numbers have a JSON form, and a `Vec` accepts all writes.
        let _ = serde_json::to_writer(&mut *out, self);
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use dunlin_push::registry::Device;
    use dunlin_push::{Accepted, NotSent};

    use super::super::submission::PushBroadcast;
    use super::*;

    fn line(recipient: &Recipient, outcome: &Outcome) -> String {
        let mut out = Vec::new();
        let subject = LineSubject {
            batch: None,
            push: Some(2),
            user: Some("ada"),
            recipient: Some(recipient),
        };
        write(&mut out, subject, outcome, false);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_says_whom_it_is_about_and_how_it_ended() {
        let accepted = Outcome::Accepted(Accepted { id: "1".into(), ..Accepted::default() });
        let device = Device { platform: Platform::Apns, app: "shop".into(), token: "ab".into() };
        assert_eq!(
            line(&Recipient::Device { device, id: None }, &accepted),
            r#"{"push":2,"user":"ada","provider":"apns","app":"shop","token":"ab","outcome":"accepted","id":"1"}"#
                .to_owned()
                + "\n"
        );
        let broadcast = PushBroadcast {
            platform: Platform::Fcm,
            app: "shop".into(),
            target: BroadcastTarget::Topic("news".into()),
        };
        let text = line(&Recipient::Broadcast(broadcast), &Outcome::NotSent(NotSent::Closed));
        assert!(text.contains(r#""app":"shop","topic":"news","outcome":"not_sent""#), "{text}");
        let mut out = Vec::new();
        let subject = LineSubject { batch: None, push: None, user: Some("bob"), recipient: None };
        write_user(&mut out, subject, "no_device", "x");
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"user\":\"bob\",\"outcome\":\"not_sent\",\"reason\":\"no_device\",\"detail\":\"x\"}\n"
        );
    }
}
