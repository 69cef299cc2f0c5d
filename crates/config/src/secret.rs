use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key or a token. `Debug` and logs show only that it is set. Serialization keeps the value, because a written
/// configuration must be readable again.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, description = "A key or a token.", extend("format" = "password"))]
pub struct Secret(Arc<str>);

impl Secret {
    /// Replaces a secret that is hidden. In a change it stands for the present value.
    pub(crate) const HIDDEN: &str = "***";

    /// Wraps a secret value.
    pub fn new(value: impl Into<Arc<str>>) -> Secret {
        Secret(value.into())
    }

    /// Returns the value, for code that compares or signs with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not reveal how many leading bytes are equal.
    pub fn matches(&self, candidate: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), candidate.as_bytes());
        let mut difference = own.len() ^ other.len();
        for (index, byte) in own.iter().enumerate() {
            difference |= usize::from(byte ^ other.get(index).copied().unwrap_or(0));
        }
        std::hint::black_box(difference) == 0
    }
}

/// Constant time, like [`Secret::matches`]: an API key is found by its hash and then compared.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.matches(&other.0)
    }
}

impl Eq for Secret {}

impl Hash for Secret {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(set)")
    }
}
