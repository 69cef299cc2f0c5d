//! When received bytes are returned.

use serde::{Deserialize, Serialize};

/// When received bytes are returned by WINDOW_UPDATE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowReturn {
    /// After each read, as Go's net/http2 does.
    #[default]
    Eager,
    /// Once half of the window is consumed, as netty does.
    Half,
    /// Never: the connection stalls once its window is consumed.
    Never,
}

impl WindowReturn {
    /// Returns whether `unreturned` bytes of a window of `size` bytes are due to be returned.
    pub(crate) fn is_due(self, unreturned: u32, size: u32) -> bool {
        match self {
            WindowReturn::Eager => true,
            WindowReturn::Half => unreturned >= size / 2,
            WindowReturn::Never => false,
        }
    }
}
