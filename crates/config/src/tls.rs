use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effect::settings;
use crate::{Map, Secret};

settings! {
    /// The certificates of addresses with `tls`.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Tls {
        /// Certificates, each under a name of your choice. A client gets the one that matches the server name it
        /// requests (SNI). If none matches, or it requests no name, it gets the first certificate in the order of
        /// the names here.
        pub certificates: Map<Certificate> | Certificates & Tls,
    }
}

settings! {
    /// A certificate with its key. It is checked when it is set; an expired certificate or a wrong key is
    /// refused.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Certificate {
        /// The certificate chain in PEM: the server's certificate first, then each issuer, without the root.
        pub chain: Option<Arc<str>> => Certificates & Tls,
        /// A file with the chain instead. It is read again within ten seconds after a change; the previous chain
        /// is used until the new one is valid.
        pub chain_file: Option<Arc<str>> => Certificates & Tls,
        /// The private key in PEM.
        pub key: Option<Secret> => Certificates & Tls,
        /// A file with the private key instead, read again like `chain_file`.
        pub key_file: Option<Arc<str>> => Certificates & Tls,
    }
}
