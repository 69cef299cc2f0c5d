use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret};

/// The admin port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// What a caller of the admin port sends as `Authorization: Bearer ...` to do everything there,
    /// for everything but `/health`; at least 16 bytes. Without it, and without `admin.tokens`, this
    /// machine may look, and change no secret; see `docs/operating/authentication.md`.
    #[schemars(extend("x-applies" = LIVE))]
    pub token: Option<Secret>,
    /// Further tokens, each with a role, under a name of your choice.
    #[schemars(extend("x-applies" = LIVE))]
    pub tokens: Map<AdminToken>,
}

impl Admin {
    /// Whether callers have to show a token for everything.
    pub fn demands_token(&self) -> bool {
        self.token.is_some() || !self.tokens.is_empty()
    }
}

/// A token of the admin port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminToken {
    /// What the caller sends as `Authorization: Bearer ...`; at least 16 bytes.
    #[schemars(extend("x-applies" = LIVE))]
    pub token: Option<Secret>,
    /// What the caller may do.
    #[schemars(extend("x-applies" = LIVE))]
    pub role: AdminRole,
}

/// What a caller of the admin port may do; each role may do what those before it may.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum AdminRole {
    /// Metrics, status, and the configuration without its secrets.
    #[default]
    See,
    /// Broadcasts are paused, resumed and cancelled, tokens of clients revoked.
    Operate,
    /// The configuration is changed, secrets are shown.
    Change,
}
