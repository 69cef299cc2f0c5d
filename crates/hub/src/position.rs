//! Positions in a channel's stream.

use std::fmt;

/// Digits of the text form, by value.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const TEXT_MAX: usize = 11;

/// The epoch of a channel's stream. When a stream is lost (by a restart, or after the meta time to live), offsets
/// begin again in a new epoch. A client with the old epoch learns by the mismatch that it cannot recover, and
/// receives no wrong messages.
///
/// Text form: up to 11 letters and digits; empty for [`Epoch::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Epoch(u64);

impl Epoch {
    /// No epoch: a channel without a stream; from a client, "any epoch".
    pub const NONE: Self = Self(0);
    /// An epoch that no stream has. Represents any text that is not a valid epoch.
    pub const FOREIGN: Self = Self(u64::MAX);

    /// The epoch with this value.
    pub const fn from_u64(value: u64) -> Self {
        Self(value)
    }

    /// The numeric value.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// True for [`Epoch::NONE`].
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Parses the text form. Never fails: clients send back any text a server gave them, and an
    /// unknown epoch is [`Epoch::FOREIGN`].
    pub fn parse(text: &str) -> Self {
        if text.is_empty() {
            return Self::NONE;
        }
        if text.len() > TEXT_MAX || text.starts_with('0') {
            return Self::FOREIGN;
        }
        let mut value = 0u64;
        for byte in text.bytes() {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'A'..=b'Z' => byte - b'A' + 10,
                b'a'..=b'z' => byte - b'a' + 36,
                _ => return Self::FOREIGN,
            };
            match value.checked_mul(62).and_then(|value| value.checked_add(u64::from(digit))) {
                Some(next) => value = next,
                None => return Self::FOREIGN,
            }
        }
        Self(value)
    }

    /// Whether a client with this epoch may read the stream `current`: the epochs are equal, or none is given.
    pub(crate) fn accepts(self, current: Self) -> bool {
        self.is_none() || self == current
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0u8; TEXT_MAX];
        let mut start = TEXT_MAX;
        let mut value = self.0;
        while value > 0 {
            start -= 1;
            text[start] = DIGITS[(value % 62) as usize];
            value /= 62;
        }
        f.write_str(std::str::from_utf8(&text[start..]).unwrap_or_default())
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({self})")
    }
}

/// A position in a channel's stream: everything up to and including `offset` has been received.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StreamPosition {
    /// Offset of the last publication seen; 0 before the first.
    pub offset: u64,
    /// The incarnation of the stream that `offset` belongs to.
    pub epoch: Epoch,
}

impl StreamPosition {
    /// A position from which nothing can be recovered, in any recovery mode: for clients that may not read earlier
    /// publications.
    pub const BARRED: Self = Self { offset: u64::MAX, epoch: Epoch::FOREIGN };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_foreign_text_is_an_epoch_nobody_has() {
        assert_eq!(Epoch::parse(""), Epoch::NONE);
        for text in ["0", "01", "abc-", "zzzzzzzzzzz", "aaaaaaaaaaaa", "é"] {
            assert_eq!(Epoch::parse(text), Epoch::FOREIGN, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(value: u64) {
            let epoch = Epoch::from_u64(value);
            let text = epoch.to_string();
            prop_assert!(text.len() <= TEXT_MAX);
            prop_assert_eq!(Epoch::parse(&text), epoch);
        }
    }
}
