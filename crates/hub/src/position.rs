//! Where a reader stands in a channel.

use std::fmt;

/// Digits of the text form, in the order of their values.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const TEXT_MAX: usize = 11;

/// Tells one incarnation of a channel's stream from the next: when a stream is lost (restart, meta
/// time-to-live), offsets begin again under a new epoch, and a reader who comes with the old one is
/// told that recovery is impossible instead of being handed the wrong messages.
///
/// Text form: up to 11 letters and digits; empty for [`Epoch::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Epoch(u64);

impl Epoch {
    /// No epoch: of a channel without a stream; from a client, "whichever".
    pub const NONE: Self = Self(0);
    /// An epoch no stream ever has: what a text that is not ours stands for.
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

    /// Reads the text form. Never fails: clients send back whatever they were given by whatever
    /// server they spoke to before, and an unknown epoch is an answer ([`Epoch::FOREIGN`]), not an
    /// error.
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

    /// True when a reader with this epoch reads the stream `current`: equal, or the reader did not
    /// say.
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

/// A place in a channel's stream: everything up to and including `offset` has been seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StreamPosition {
    /// Offset of the last publication seen; 0 before the first.
    pub offset: u64,
    /// The stream's incarnation this offset belongs to.
    pub epoch: Epoch,
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
