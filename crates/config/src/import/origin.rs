//! Whose configuration it is.

use std::fmt;

/// Whose configuration is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Centrifugo v3: channels are open unless they are `protected`.
    CentrifugoV3,
    /// Centrifugo v4.
    CentrifugoV4,
    /// Centrifugo v5.
    CentrifugoV5,
    /// Centrifugo v6: keys in sections.
    CentrifugoV6,
    /// Soketi.
    Soketi,
    /// Laravel Reverb.
    Reverb,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::CentrifugoV3 => "Centrifugo v3",
            Origin::CentrifugoV4 => "Centrifugo v4",
            Origin::CentrifugoV5 => "Centrifugo v5",
            Origin::CentrifugoV6 => "Centrifugo v6",
            Origin::Soketi => "Soketi",
            Origin::Reverb => "Laravel Reverb",
        })
    }
}
