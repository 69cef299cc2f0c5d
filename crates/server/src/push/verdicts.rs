//! What push services say of tokens that are over, on its way to the registry.

use std::sync::Arc;

use dunlin_push::Rejected;
use dunlin_push::apns::Reason;
use dunlin_push::registry::{Device, Platform, Registry};
use tokio::sync::{Notify, futures::Notified, mpsc};

/// Verdicts that wait for the disk; who has one more waits too.
const WAITING_MAX: usize = 4_096;

/// A device, the service's word, and since when it is over, milliseconds since 1970.
type Verdict = (Device, String, u64);

/// Where verdicts go.
#[derive(Debug)]
pub(super) struct Verdicts {
    sender: mpsc::Sender<Verdict>,
    written: Arc<Notify>,
}

impl Verdicts {
    /// Begins to write them, as many in one go as wait. In a runtime.
    pub(super) fn start(registry: Arc<Registry>) -> Verdicts {
        let (sender, mut waiting) = mpsc::channel(WAITING_MAX);
        let written = Arc::new(Notify::new());
        let tell = Arc::clone(&written);
        tokio::spawn(async move {
            let mut verdicts = Vec::new();
            while waiting.recv_many(&mut verdicts, WAITING_MAX).await > 0 {
                let (batch, registry) = (std::mem::take(&mut verdicts), Arc::clone(&registry));
                let judged = tokio::task::spawn_blocking(move || registry.judge(&batch)).await;
                match judged {
                    Ok(Ok(dropped)) => tracing::debug!(dropped, "dead device tokens"),
                    Ok(Err(error)) => tracing::error!(%error, "verdicts on device tokens are lost"),
                    Err(error) => tracing::error!(%error, "verdicts on device tokens are lost"),
                }
                tell.notify_waiters();
            }
        });
        Verdicts { sender, written }
    }

    /// Ends when more have been written than there were at this call.
    pub(super) fn next(&self) -> Notified<'_> {
        self.written.notified()
    }

    /// Has whoever waits for the next look up.
    pub(super) fn wake(&self) {
        self.written.notify_waiters();
    }

    /// Takes a rejection: is it one of the token, and not of the push? `sent_ms` is when the push was handed over, for
    /// the services that do not say since when a token is over.
    pub(super) async fn handle(&self, device: &Device, rejected: &Rejected, sent_ms: u64) {
        if is_dead(device.platform, rejected) {
            let since_ms = rejected.timestamp_ms.unwrap_or(sent_ms);
            // It ends with the process only.
            let _ = self.sender.send((device.clone(), rejected.reason.clone(), since_ms)).await;
        }
    }
}

/// A token of another app is a mistake in the set-up, and no reason to forget it.
fn is_dead(platform: Platform, rejected: &Rejected) -> bool {
    match platform {
        Platform::Apns => {
            let reason = Reason::new(&rejected.reason);
            rejected.status == 410 || (reason == Reason::BadDeviceToken)
        }
        Platform::Fcm => rejected.reason == "UNREGISTERED",
        Platform::Web => rejected.reason == "Gone",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_service_says_of_the_token_itself_drops_it() {
        let dead = |platform, status, reason: &str| {
            let reason = reason.to_owned();
            is_dead(platform, &Rejected { status, reason, ..Rejected::default() })
        };
        assert!(dead(Platform::Apns, 410, "Unregistered"));
        assert!(dead(Platform::Apns, 410, "ExpiredToken"));
        assert!(dead(Platform::Apns, 400, "BadDeviceToken"));
        assert!(!dead(Platform::Apns, 400, "DeviceTokenNotForTopic"));
        assert!(!dead(Platform::Apns, 400, "PayloadEmpty"));
        assert!(dead(Platform::Fcm, 404, "UNREGISTERED"));
        assert!(!dead(Platform::Fcm, 403, "SENDER_ID_MISMATCH"));
        assert!(dead(Platform::Web, 410, "Gone") && !dead(Platform::Web, 429, "TooManyRequests"));
    }
}
