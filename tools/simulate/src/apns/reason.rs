//! The rejection reasons of the provider API with their status codes.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $status:literal,)*) => {
        /// Why a push was rejected, spelled like the `reason` in the answer's body ("Handling notification responses
        /// from APNs", and "Handling error responses from Apple Push Notification service" for broadcasts).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// Returns the spelling in the answer's body.
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name),)* }
            }

            /// Returns the status code of the answer.
            pub fn status(self) -> u16 {
                match self { $(Reason::$name => $status,)* }
            }
        }
    };
}

reasons! {
    /// `apns-collapse-id` is longer than 64 bytes.
    BadCollapseId = 400,
    /// The device token is malformed, or belongs to the other environment.
    BadDeviceToken = 400,
    /// `apns-expiration` is not a time in seconds.
    BadExpirationDate = 400,
    /// `apns-id` is not a UUID.
    BadMessageId = 400,
    /// `apns-priority` is not 1, 5 or 10, or not allowed for this push type.
    BadPriority = 400,
    /// `apns-topic` is not a bundle id.
    BadTopic = 400,
    /// The device token does not belong to this topic.
    DeviceTokenNotForTopic = 400,
    /// A header is repeated.
    DuplicateHeaders = 400,
    /// The connection was idle for too long.
    IdleTimeout = 400,
    /// `apns-push-type` is unknown, or does not fit the topic.
    InvalidPushType = 400,
    /// The path names no device token.
    MissingDeviceToken = 400,
    /// `apns-topic` is missing and cannot be derived from the certificate.
    MissingTopic = 400,
    /// There is no payload.
    PayloadEmpty = 400,
    /// These credentials may not push to this topic.
    TopicDisallowed = 400,
    /// `apns-channel-id` is malformed.
    BadChannelId = 400,
    /// `apns-channel-id` is missing on a broadcast.
    MissingChannelId = 400,
    /// The broadcast channel does not exist.
    ChannelNotRegistered = 400,
    /// The channel's message storage policy is neither 0 nor 1.
    InvalidMessageStoragePolicy = 400,
    /// The app has reached the maximum number of channels.
    CannotCreateChannelConfig = 400,
    /// The client certificate is not valid for push.
    BadCertificate = 403,
    /// The client certificate belongs to the other environment.
    BadCertificateEnvironment = 403,
    /// The provider token is older than an hour.
    ExpiredProviderToken = 403,
    /// Not allowed.
    Forbidden = 403,
    /// The provider token cannot be parsed, or its signature is invalid.
    InvalidProviderToken = 403,
    /// The request has neither a client certificate nor a provider token.
    MissingProviderToken = 403,
    /// The provider token belongs to another team than the connection's first one.
    UnrelatedKeyIdInToken = 403,
    /// The provider token's key belongs to the other environment.
    BadEnvironmentKeyIdInToken = 403,
    /// Like `BadEnvironmentKeyIdInToken`; Apple's table has had both spellings.
    BadEnvironmentKeyInToken = 403,
    /// The path is not part of the API.
    BadPath = 404,
    /// The method is not POST.
    MethodNotAllowed = 405,
    /// The device token has expired.
    ExpiredToken = 410,
    /// The app was removed from the device.
    Unregistered = 410,
    /// The payload is larger than 4,096 bytes (5,120 for VoIP and broadcasts).
    PayloadTooLarge = 413,
    /// The provider token changes too often.
    TooManyProviderTokenUpdates = 429,
    /// Too many pushes to one device token.
    TooManyRequests = 429,
    /// The server failed.
    InternalServerError = 500,
    /// The server is busy.
    ServiceUnavailable = 503,
    /// The server is about to shut down.
    Shutdown = 503,
}

impl Reason {
    /// Returns whether the device token is at fault. Counts towards `bad_tokens_max`.
    pub(crate) fn blames_token(self) -> bool {
        matches!(
            self,
            Reason::BadDeviceToken
                | Reason::DeviceTokenNotForTopic
                | Reason::ExpiredToken
                | Reason::Unregistered
        )
    }

    /// Returns whether the answer carries the time since which the token is invalid.
    pub(crate) fn has_timestamp(self) -> bool {
        self.status() == 410
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_spelled_in_json_as_in_the_answer() {
        for &reason in Reason::ALL {
            let json = serde_json::to_string(&reason).unwrap();
            assert_eq!(json, format!("\"{}\"", reason.as_str()));
            assert!((400..=503).contains(&reason.status()));
        }
    }
}
