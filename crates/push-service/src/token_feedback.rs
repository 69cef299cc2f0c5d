//! Feedback of push services about ended or invalid tokens, for the registry.

use dunlin_push::apns::Reason;
use dunlin_push::registry::{Change, Device, InvalidToken, Platform, Writer};
use dunlin_push::{Outcome, Rejected};

use super::environment::EnvironmentDoubt;
use super::senders::Credential;

/// Passes feedback about tokens to the registry.
#[derive(Debug)]
pub(super) struct TokenFeedback(Writer);

impl TokenFeedback {
    pub(super) fn new(writer: Writer) -> TokenFeedback {
        TokenFeedback(writer)
    }

    /// Handles the outcome of a push to a device, if it is about the token and not about the push. `sent_ms`: when the
    /// push was submitted; it stands in for the time since which the token is invalid, for services that do not report
    /// it.
    pub(super) async fn handle(
        &self,
        credential: &Credential,
        device: &Device,
        outcome: &Outcome,
        sent_ms: u64,
    ) {
        let meaning = match outcome {
            Outcome::Accepted(_) => TokenMeaning::Known,
            Outcome::Rejected(rejected) => TokenMeaning::of(device.platform, rejected),
            Outcome::NotSent(_) | Outcome::Uncertain(_) => TokenMeaning::None,
        };
        let environment = &credential.environment;
        let doubtful = match meaning {
            TokenMeaning::None => return,
            TokenMeaning::Known => return environment.handle_known(),
            TokenMeaning::Over => {
                environment.handle_known();
                false
            }
            TokenMeaning::Bad => match environment.handle_bad() {
                EnvironmentDoubt::None => false,
                EnvironmentDoubt::Some => true,
                EnvironmentDoubt::FirstSign => {
                    tracing::warn!(
                        credential = format_args!("push.apns.{}", credential.app),
                        "Apple calls most device tokens bad: is `environment` the one that the app was built for? None of \
                         them is dropped from the registry meanwhile"
                    );
                    true
                }
            },
        };
        let Outcome::Rejected(rejected) = outcome else { return };
        let invalid = InvalidToken {
            device: device.clone(),
            reason: rejected.reason.clone(),
            dead_since_ms: rejected.timestamp_ms.unwrap_or(sent_ms),
            doubtful,
        };
        self.0.submit(Change::Invalidate(invalid)).await;
    }
}

/// The meaning of an outcome for the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenMeaning {
    /// Nothing.
    None,
    /// The service knows it.
    Known,
    /// It was valid and is no longer.
    Over,
    /// It is invalid in this environment.
    Bad,
}

impl TokenMeaning {
    /// Classifies a rejection. A token of another app is a configuration error and no reason to drop the token.
    fn of(platform: Platform, rejected: &Rejected) -> TokenMeaning {
        match platform {
            Platform::Apns if rejected.status == 410 => TokenMeaning::Over,
            Platform::Apns => match Reason::new(&rejected.reason) {
                Reason::BadDeviceToken => TokenMeaning::Bad,
                _ => TokenMeaning::None,
            },
            Platform::Fcm if rejected.reason == "UNREGISTERED" => TokenMeaning::Over,
            Platform::Web if rejected.reason == "Gone" => TokenMeaning::Over,
            Platform::Fcm | Platform::Web => TokenMeaning::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_service_says_of_the_token_itself_counts() {
        let meaning = |platform, status, reason: &str| {
            let reason = reason.to_owned();
            TokenMeaning::of(platform, &Rejected { status, reason, ..Rejected::default() })
        };
        assert_eq!(meaning(Platform::Apns, 410, "Unregistered"), TokenMeaning::Over);
        assert_eq!(meaning(Platform::Apns, 410, "ExpiredToken"), TokenMeaning::Over);
        assert_eq!(meaning(Platform::Apns, 400, "BadDeviceToken"), TokenMeaning::Bad);
        assert_eq!(meaning(Platform::Apns, 400, "DeviceTokenNotForTopic"), TokenMeaning::None);
        assert_eq!(meaning(Platform::Apns, 400, "PayloadEmpty"), TokenMeaning::None);
        assert_eq!(meaning(Platform::Fcm, 404, "UNREGISTERED"), TokenMeaning::Over);
        assert_eq!(meaning(Platform::Fcm, 403, "SENDER_ID_MISMATCH"), TokenMeaning::None);
        assert_eq!(meaning(Platform::Web, 410, "Gone"), TokenMeaning::Over);
        assert_eq!(meaning(Platform::Web, 429, "TooManyRequests"), TokenMeaning::None);
    }
}
