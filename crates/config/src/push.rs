use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret};

/// Credentials of the push services that reach whoever is offline, each under a name of your choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Push {
    /// Apps at Apple's push service.
    #[schemars(extend("x-applies" = LIVE))]
    pub apns: Map<Apns>,
    /// Projects at Firebase Cloud Messaging.
    #[schemars(extend("x-applies" = LIVE))]
    pub fcm: Map<Fcm>,
    /// Identities towards the browsers' push services (RFC 8292).
    #[schemars(extend("x-applies" = LIVE))]
    pub vapid: Map<Vapid>,
}

/// An app at Apple's push service: a signing key (`team_id`, `key_id`, `key`) or a certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Apns {
    /// The team's id, ten characters.
    #[schemars(extend("x-applies" = LIVE))]
    pub team_id: Option<Arc<str>>,
    /// The signing key's id, ten characters.
    #[schemars(extend("x-applies" = LIVE))]
    pub key_id: Option<Arc<str>>,
    /// The signing key: the text of the `.p8` file.
    #[schemars(extend("x-applies" = LIVE))]
    pub key: Option<Secret>,
    /// A certificate with its key: a PKCS #12 file (`.p12`) in Base64.
    #[schemars(extend("x-applies" = LIVE))]
    pub certificate: Option<Secret>,
    /// The password of that file.
    #[schemars(extend("x-applies" = LIVE))]
    pub certificate_password: Option<Secret>,
    /// The app's bundle id.
    #[schemars(extend("x-applies" = LIVE))]
    pub topic: Arc<str>,
    /// Which of Apple's services the app's device tokens are of.
    #[schemars(extend("x-applies" = LIVE))]
    pub environment: ApnsEnvironment,
}

/// Which of Apple's services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ApnsEnvironment {
    /// Apps from the store and from TestFlight.
    #[default]
    Production,
    /// Apps run from Xcode.
    Sandbox,
}

/// A project at Firebase Cloud Messaging.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Fcm {
    /// The service account: the text of the JSON file that the console gives.
    #[schemars(extend("x-applies" = LIVE))]
    pub service_account: Option<Secret>,
}

/// An identity towards the browsers' push services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Vapid {
    /// The private key: 32 bytes in URL-safe Base64, or PEM.
    #[schemars(extend("x-applies" = LIVE))]
    pub private_key: Option<Secret>,
    /// Whom a push service may write to: `mailto:ops@example.com`, or an `https:` address.
    #[schemars(extend("x-applies" = LIVE))]
    pub subject: Arc<str>,
}
