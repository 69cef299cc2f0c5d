//! A pending push: submitted to its credential's sender, without an outcome yet.

use std::sync::Arc;

use dunlin_push::registry::Platform;
use dunlin_push::{NotSent, Outcome, Results};

use super::outcome::{self, LineSubject};
use super::senders::{Credential, EncodedNotification};
use super::submission::Recipient;
use super::thread::Shared;
use crate::clock::unix_ms;

/// A push, its recipient and its sender.
#[derive(Clone)]
pub(super) struct PendingPush {
    /// The index of its notification in the request.
    at: usize,
    user: Option<Arc<str>>,
    to: Recipient,
    encoded: Arc<EncodedNotification>,
    credential: Option<Arc<Credential>>,
    submitted_ms: u64,
    /// Whether its device has exceeded its rate limit.
    is_limited: bool,
}

/// The form of the push's request, which determines the line of its outcome.
#[derive(Clone, Copy)]
pub(super) enum RequestForm {
    /// A request with one notification.
    Single,
    /// A request with several numbered notifications.
    Batch,
    DurableBatch {
        batch: u64,
        /// An earlier run of the process may have sent it.
        possible_duplicate: bool,
    },
}

impl PendingPush {
    pub(super) fn new(
        shared: &Shared,
        at: usize,
        user: Option<Arc<str>>,
        to: Recipient,
        encoded: &Arc<EncodedNotification>,
    ) -> PendingPush {
        let credential = shared.senders.get(to.platform(), to.app());
        let encoded = Arc::clone(encoded);
        let is_limited = match &to {
            Recipient::Device { device, .. } => {
                !shared.recipient_limits.take_device(to.app(), &device.identity())
            }
            Recipient::Broadcast(_) => false,
        };
        PendingPush { at, user, to, encoded, credential, submitted_ms: unix_ms(), is_limited }
    }

    /// Submits the push to its credential's sender; waits only for queue space. Its outcome arrives with `tag`.
    pub(super) async fn submit(&self, tag: u64, results: &Results) {
        let refused = match &self.credential {
            Some(_) if self.is_limited => Some(NotSent::DeviceLimit),
            Some(credential) => {
                credential.submit(&self.encoded, &self.to, tag, results).await.err()
            }
            None => {
                let section = match self.to.platform() {
                    Platform::Apns => "apns",
                    Platform::Fcm => "fcm",
                    Platform::Web => "vapid",
                };
                let app = self.to.app();
                Some(NotSent::Credential(format!("there is no push.{section}.{app}")))
            }
        };
        if let Some(why) = refused {
            results.send(tag, Outcome::NotSent(why));
        }
    }

    /// Switches to the replacement of its credential, if the outcome is that the credential was closed. Returns whether
    /// there is a replacement.
    pub(super) fn renew(&mut self, shared: &Shared, outcome: &Outcome) -> bool {
        if *outcome != Outcome::NotSent(NotSent::Closed) {
            return false;
        }
        let next = shared.senders.get(self.to.platform(), self.to.app());
        let before = self.credential.as_ref().map(|credential| credential.generation);
        let is_newer = next.as_ref().is_some_and(|next| Some(next.generation) != before);
        if is_newer {
            self.credential = next;
        }
        is_newer
    }

    /// Counts and logs the outcome, and records in the registry what it implies about the token.
    pub(super) async fn note_outcome(&self, shared: &Shared, outcome: &Outcome) {
        if let Some(credential) = &self.credential {
            credential.tally.count(outcome);
        }
        tracing::debug!(
            app = self.to.app(),
            token = self.to.token(),
            broadcast = ?self.to.broadcast_target(),
            user = self.user.as_deref(),
            took_ms = unix_ms().saturating_sub(self.submitted_ms),
            %outcome,
            "push"
        );
        if let (Recipient::Device { device, .. }, Some(credential)) = (&self.to, &self.credential) {
            shared.token_feedback.handle(credential, device, outcome, self.submitted_ms).await;
        }
    }

    /// Writes the line of its outcome.
    pub(super) fn write_line(&self, out: &mut Vec<u8>, form: RequestForm, outcome: &Outcome) {
        let (batch, push, possible_duplicate) = match form {
            RequestForm::Single => (None, None, false),
            RequestForm::Batch => (None, Some(self.at), false),
            RequestForm::DurableBatch { batch, possible_duplicate } => {
                (Some(batch), Some(self.at), possible_duplicate)
            }
        };
        let user = self.user.as_deref();
        let subject = LineSubject { batch, push, user, recipient: Some(&self.to) };
        outcome::write(out, subject, outcome, possible_duplicate);
    }
}
