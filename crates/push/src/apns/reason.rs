//! The reasons that Apple gives for rejecting a push.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why Apple rejected a push ("Handling notification responses from APNs").
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name,)*
            /// A reason that is not in this list, unchanged.
            Unknown(String),
        }

        impl Reason {
            /// Returns the reason for a text of Apple's response.
            pub fn new(text: &str) -> Reason {
                match text {
                    $(stringify!($name) => Reason::$name,)*
                    // Both spellings are documented, and both have been seen.
                    "BadEnvironmentKeyInToken" => Reason::BadEnvironmentKeyIdInToken,
                    text => Reason::Unknown(text.to_owned()),
                }
            }

            /// Returns the text that Apple uses.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Reason::$name => stringify!($name),)*
                    Reason::Unknown(text) => text,
                }
            }
        }
    };
}

reasons! {
    /// 400: the collapse id has more than 64 bytes.
    BadCollapseId,
    /// 400: the device token is invalid, or belongs to the other environment.
    BadDeviceToken,
    /// 400: `apns-expiration`.
    BadExpirationDate,
    /// 400: `apns-id` is not a UUID.
    BadMessageId,
    /// 400: `apns-priority`.
    BadPriority,
    /// 400: `apns-topic`.
    BadTopic,
    /// 400: the device token belongs to another topic.
    DeviceTokenNotForTopic,
    /// 400: a header is repeated.
    DuplicateHeaders,
    /// 400: the connection was idle.
    IdleTimeout,
    /// 400: `apns-push-type`.
    InvalidPushType,
    /// 400: no token in the path.
    MissingDeviceToken,
    /// 400: no `apns-topic`, and the certificate has several.
    MissingTopic,
    /// 400: no payload.
    PayloadEmpty,
    /// 400: the topic is not allowed.
    TopicDisallowed,
    /// 400: the channel does not exist.
    BadChannelId,
    /// 400: the channel does not exist.
    ChannelNotRegistered,
    /// 400: no channel.
    MissingChannelId,
    /// 400: the app has too many channels.
    CannotCreateChannelConfig,
    /// 400: broadcast is not turned on for the app.
    FeatureNotEnabled,
    /// 400: the channel's message storage policy.
    InvalidMessageStoragePolicy,
    /// 403: the certificate.
    BadCertificate,
    /// 403: the certificate is for the other environment.
    BadCertificateEnvironment,
    /// 403: the provider token is older than an hour.
    ExpiredProviderToken,
    /// 403: the action is not allowed.
    Forbidden,
    /// 403: the provider token, or its signature.
    InvalidProviderToken,
    /// 403: no certificate and no provider token.
    MissingProviderToken,
    /// 403: the key of the provider token belongs to another team than the one before on this connection.
    UnrelatedKeyIdInToken,
    /// 403: the key of the provider token is for the other environment.
    BadEnvironmentKeyIdInToken,
    /// 404: the path.
    BadPath,
    /// 405: the method.
    MethodNotAllowed,
    /// 410: the device token is expired.
    ExpiredToken,
    /// 410: the app was removed from the device.
    Unregistered,
    /// 413: the payload.
    PayloadTooLarge,
    /// 429: the provider token changes more often than every 20 minutes.
    TooManyProviderTokenUpdates,
    /// 429: too many pushes to the same device.
    TooManyRequests,
    /// 500.
    InternalServerError,
    /// 503.
    ServiceUnavailable,
    /// 503: the server is going away.
    Shutdown,
}

impl Reason {
    /// Returns whether the device token is invalid, now or from the beginning.
    pub fn is_dead_token(&self) -> bool {
        matches!(
            self,
            Reason::BadDeviceToken
                | Reason::DeviceTokenNotForTopic
                | Reason::ExpiredToken
                | Reason::Unregistered
        )
    }

    /// Returns whether Apple refuses the credential rather than this push. (An expired token is renewed first.)
    pub(crate) fn is_credential(&self) -> bool {
        matches!(
            self,
            Reason::BadCertificate
                | Reason::BadCertificateEnvironment
                | Reason::BadEnvironmentKeyIdInToken
                | Reason::ExpiredProviderToken
                | Reason::InvalidProviderToken
                | Reason::MissingProviderToken
                | Reason::UnrelatedKeyIdInToken
        )
    }

    /// Returns the fix, if the cause is the configuration and not the push.
    pub fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Reason::BadDeviceToken => {
                "the token is mistyped, or of the other environment: try sandbox or production"
            }
            Reason::DeviceTokenNotForTopic => "the token is of another app; check the topic",
            Reason::MissingTopic | Reason::BadTopic | Reason::TopicDisallowed => {
                "the topic is the app's bundle identifier, with the suffix of the push type"
            }
            Reason::BadCertificateEnvironment | Reason::BadEnvironmentKeyIdInToken => {
                "the credential is for the other environment: sandbox or production"
            }
            Reason::ExpiredProviderToken => {
                "the provider token is over an hour old by Apple's clock; is the clock of this machine right?"
            }
            Reason::InvalidProviderToken => {
                "check key id and team id, that the key was not revoked, and the clock of this machine"
            }
            Reason::BadCertificate => {
                "the certificate is expired or revoked: make a new one in the developer account"
            }
            Reason::MissingProviderToken => {
                "no certificate reached Apple: something on the way opens TLS, or it is not sent"
            }
            Reason::UnrelatedKeyIdInToken => "one connection was used with keys of several teams",
            Reason::TooManyProviderTokenUpdates => {
                "several processes make tokens with the same key; let them share one"
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
