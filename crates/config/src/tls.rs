use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LIVE, Map, Secret};

/// TLS of the addresses whose `ingress` says so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Certificates, each under a name of your choice. A client is given the one that bears the name it asks for (SNI);
    /// a client that asks for none, or for one that no certificate bears, the first in the order of the names here.
    #[schemars(extend("x-applies" = LIVE))]
    pub certificates: Map<Certificate>,
}

/// A certificate with its key. It is opened when it is set, and refused if it has expired, or is of another key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Certificate {
    /// The chain in PEM: the server's own certificate, then each that signed the one before, without the root.
    #[schemars(extend("x-applies" = LIVE))]
    pub chain: Option<Arc<str>>,
    /// A file with the chain in its place. It is read again within ten seconds after it has changed; until what is in it
    /// can be used, what was there before is.
    #[schemars(extend("x-applies" = LIVE))]
    pub chain_file: Option<Arc<str>>,
    /// The private key in PEM.
    #[schemars(extend("x-applies" = LIVE))]
    pub key: Option<Secret>,
    /// A file with the private key in its place, read again as `chain_file` is.
    #[schemars(extend("x-applies" = LIVE))]
    pub key_file: Option<Arc<str>>,
}
