//! Device tokens, which an app gets from iOS and sends to its server.

use std::fmt;
use std::hash::BuildHasher;

/// Digits of a device token: currently 64, but Apple may use more ("don't hard-code their size").
const DIGITS_MIN: usize = 64;
const DIGITS_MAX: usize = 200;

/// A device token in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceToken(String);

/// Why a text is not a device token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceTokenError {
    /// Its length is odd, or not 64 to 200 digits.
    #[error(
        "device token: it has {0} characters; it is to have an even number from 64 to 200 hexadecimal digits"
    )]
    Length(usize),
    /// A character that is not a hexadecimal digit, and its position.
    #[error("device token: {0:?} at {1} is no hexadecimal digit")]
    Character(char, usize),
}

impl DeviceToken {
    /// Parses a token. Spaces and angle brackets, as printed by old code, are not accepted.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<DeviceToken, DeviceTokenError> {
        if let Some((at, c)) = text.char_indices().find(|(_, c)| !c.is_ascii_hexdigit()) {
            return Err(DeviceTokenError::Character(c, at));
        }
        if !(DIGITS_MIN..=DIGITS_MAX).contains(&text.len()) || !text.len().is_multiple_of(2) {
            return Err(DeviceTokenError::Length(text.len()));
        }
        Ok(DeviceToken(text.to_ascii_lowercase()))
    }

    /// Returns its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a hash of the token, constant within a process.
    pub(crate) fn hash(&self) -> u64 {
        foldhash::fast::FixedState::default().hash_one(&self.0)
    }
}

impl fmt::Display for DeviceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
