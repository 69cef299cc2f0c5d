//! Why a message has failed.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $text:literal;)+) => {
        /// Why a message has failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// Returns its number on the wire.
            pub const fn code(self) -> u8 {
                match self { $(Reason::$name => $code,)+ }
            }

            /// Returns the reason with this number; of one that a later version has, [`Reason::Refused`].
            pub const fn from_code(code: u8) -> Reason {
                match code { $($code => Reason::$name,)+ _ => Reason::Refused }
            }

            /// Returns its name, as callers see it.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$name => $text,)+ }
            }
        }
    };
}

reasons! {
    /// It became too old before it could be sent.
    Expired = 1, "expired";
    /// It was sent before the link broke, became too old since, and nobody knows whether it has arrived.
    Unconfirmed = 2, "unconfirmed";
    /// The recipient is not there: unknown, blocked or without a connection, which the sender cannot tell apart.
    Unreachable = 3, "unreachable";
    /// A budget of the recipient's server is used up.
    Limited = 4, "limited";
    /// The recipient's server cannot read it, or does not permit it.
    Refused = 5, "refused";
    /// The queue of the peer is full.
    QueueFull = 6, "queue_full";
    /// The peer is not one, not any more, or is blocked.
    NoPeer = 7, "no_peer";
    /// It is larger than messages between servers may be.
    TooLarge = 8, "too_large";
    /// The disk does not take it.
    NotStored = 9, "not_stored";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
