use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key or a token. `Debug` and logs show that it is set, never what it is; serialisation keeps
/// the value, because a written config must be readable again.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, description = "A key or a token.", extend("format" = "password"))]
pub struct Secret(Arc<str>);

impl Secret {
    /// What stands for a secret where it is not shown. Written back it means: as it is.
    pub(crate) const HIDDEN: &str = "***";

    /// Wraps a secret value.
    pub fn new(value: impl Into<Arc<str>>) -> Secret {
        Secret(value.into())
    }

    /// The value itself, for the code that has to compare or sign with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares without giving away, by the time it takes, how many leading bytes agree.
    pub fn matches(&self, candidate: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), candidate.as_bytes());
        let mut difference = own.len() ^ other.len();
        for (index, byte) in own.iter().enumerate() {
            difference |= usize::from(byte ^ other.get(index).copied().unwrap_or(0));
        }
        std::hint::black_box(difference) == 0
    }
}

/// In constant time, as [`Secret::matches`]: an API key is found by its hash, and compared with what is found.
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
