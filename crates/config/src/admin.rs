use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Secret};

/// The admin port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// What a caller of the admin port sends as `Authorization: Bearer ...`, for everything but
    /// `/health`; at least 16 bytes. Not needed on a loopback address.
    #[schemars(extend("x-applies" = LIVE))]
    pub token: Option<Secret>,
}
