use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Map, Secret};

settings! {
    /// The admin port.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Admin {
        /// The token for full access to the admin port, sent as `Authorization: Bearer ...`; at least 16 bytes.
        /// Every page but `/health` then requires a token. Without it, and without `admin.tokens`, users of this
        /// machine can read, but not change secrets; see `docs/operating/authentication.md`.
        pub token: Option<Secret> => AdminTokens,
        /// Further tokens, each with a role, under a name of your choice.
        pub tokens: Map<AdminToken> | AdminTokens,
    }
}

impl Admin {
    /// Returns whether every page requires a token.
    pub fn demands_token(&self) -> bool {
        self.token.is_some() || !self.tokens.is_empty()
    }
}

settings! {
    /// A token of the admin port.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct AdminToken {
        /// The token, sent as `Authorization: Bearer ...`; at least 16 bytes.
        pub token: Option<Secret> => AdminTokens,
        /// What a caller with this token may do.
        pub role: AdminRole => AdminTokens,
    }
}

/// The permissions of a caller of the admin port. Each role includes those before it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum AdminRole {
    /// Read metrics, status, who is connected, and the configuration without its secrets.
    #[default]
    See,
    /// Also read histories, publish, act on clients and broadcasts, and revoke tokens of clients.
    Operate,
    /// Change the configuration, but not `programs`, `admin.token` and tokens of role `program`; read secrets, but not those
    /// of `admin`.
    Change,
    /// Change all of it: load programs, which run in the server, and make tokens that may.
    Program,
}
