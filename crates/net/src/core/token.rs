//! The source of a kernel event.

use crate::core::connection::ConnId;
use crate::core::slab::INDEX_MAX;

/// The source of an event, packed into the 64 bits that the kernel stores for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Conn(ConnId),
    Listener(u32),
    Foreign(u32),
    /// An attempt of a dial, by their places; an attempt's place has six bits.
    Attempt {
        dial: u32,
        attempt: u32,
    },
    Resolver,
    Signals,
    Inbox,
    Coalesced,
}

/// An index that no connection has.
const OTHER: u32 = u32::MAX;
const _: () = assert!(OTHER > INDEX_MAX);

impl From<Token> for mio::Token {
    fn from(token: Token) -> mio::Token {
        let other = |kind: u32, place: u32| ConnId::new(OTHER, kind << 28 | place);
        let id = match token {
            Token::Conn(id) => id,
            Token::Inbox => other(0, 0),
            Token::Signals => other(1, 0),
            Token::Listener(place) => other(2, place),
            Token::Foreign(place) => other(3, place),
            Token::Attempt { dial, attempt } => other(4, dial << 6 | attempt),
            Token::Resolver => other(5, 0),
            Token::Coalesced => other(6, 0),
        };
        mio::Token(id.to_u64() as usize)
    }
}

impl From<mio::Token> for Token {
    fn from(token: mio::Token) -> Token {
        let id = ConnId::from_u64(token.0 as u64);
        let place = id.generation() & ((1 << 28) - 1);
        match (id.index(), id.generation() >> 28) {
            (OTHER, 0) => Token::Inbox,
            (OTHER, 1) => Token::Signals,
            (OTHER, 2) => Token::Listener(place),
            (OTHER, 3) => Token::Foreign(place),
            (OTHER, 4) => Token::Attempt { dial: place >> 6, attempt: place & 63 },
            (OTHER, 5) => Token::Resolver,
            (OTHER, _) => Token::Coalesced,
            _ => Token::Conn(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_survives_the_kernel() {
        for token in [
            Token::Conn(ConnId::new(0, 1)),
            Token::Conn(ConnId::new(INDEX_MAX, u32::MAX)),
            Token::Listener(9),
            Token::Foreign(77),
            Token::Attempt { dial: 1000, attempt: 63 },
            Token::Resolver,
            Token::Signals,
            Token::Inbox,
            Token::Coalesced,
        ] {
            assert_eq!(Token::from(mio::Token::from(token)), token);
        }
    }
}
