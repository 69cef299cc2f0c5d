//! The id of a request that a server has received.

use std::fmt;

use crate::core::connection::ConnId;
use crate::core::slab::INDEX_BITS;

/// Identifies a request that a server has received: its connection, and its place among the connection's requests. A
/// response names the request that it answers, so that a late one never reaches the request that follows.
///
/// Of the place it has eight bits: an id is mistaken for that of the 256th request after its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

impl RequestId {
    pub(crate) const fn new(conn: ConnId, number: u8) -> RequestId {
        RequestId(conn.to_u64() | (number as u64) << INDEX_BITS)
    }

    /// Returns the connection of the request.
    pub const fn conn(self) -> ConnId {
        ConnId::from_u64(self.0 & !(0xff << INDEX_BITS))
    }

    pub(crate) const fn number(self) -> u8 {
        (self.0 >> INDEX_BITS) as u8
    }

    /// Returns the id as one number, such as the tag of a call that will answer the request.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Converts the result of [`RequestId::to_u64`] back. Any number is an id; most name no request.
    pub const fn from_u64(id: u64) -> RequestId {
        RequestId(id)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.conn(), self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::slab::INDEX_MAX;

    #[test]
    fn an_id_has_connection_and_number_and_survives_as_a_number() {
        for (index, generation, number) in [(0, 1, 0), (INDEX_MAX, u32::MAX, 255), (7, 9, 1)] {
            let conn = ConnId::new(index, generation);
            let id = RequestId::from_u64(RequestId::new(conn, number).to_u64());
            assert_eq!((id.conn(), id.number()), (conn, number));
        }
    }
}
