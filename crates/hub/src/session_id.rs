//! Session ids with the address of the session.

use std::fmt;
use std::str::FromStr;

/// Bits of each field, most significant first. Their sum is 53, the widest integer a JavaScript
/// number holds exactly.
const NODE_BITS: u32 = 12;
const BOOT_BITS: u32 = 6;
const WORKER_BITS: u32 = 7;
const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 8;

const SLOT_SHIFT: u32 = GENERATION_BITS;
const WORKER_SHIFT: u32 = SLOT_SHIFT + SLOT_BITS;
const BOOT_SHIFT: u32 = WORKER_SHIFT + WORKER_BITS;
const NODE_SHIFT: u32 = BOOT_SHIFT + BOOT_BITS;
const ID_BITS: u32 = NODE_SHIFT + NODE_BITS;

/// Maximum number of nodes in an id.
pub const NODES_MAX: usize = 1 << NODE_BITS;
/// Boots of a node before numbers are reused.
pub const BOOTS_MAX: usize = 1 << BOOT_BITS;
/// Most workers of one process.
pub const WORKERS_MAX: usize = 1 << WORKER_BITS;
/// Most sessions of one worker.
pub const SESSIONS_MAX: usize = 1 << SLOT_BITS;

/// The id of a session on one worker of one node: node 12 · boot 6 · worker 7 · slot 20 · generation 8 bits, most
/// significant first, 53 in all.
///
/// Unicast needs no lookup: the id has the node, worker and slot. A stale id is detected by its generation and boot.
/// The id is not a secret. Its text form is decimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u64);

impl SessionId {
    /// Packs the fields; each is truncated to its width.
    pub const fn pack(node: u16, boot: u8, worker: u8, slot: u32, generation: u8) -> Self {
        let node = node as u64 & (NODES_MAX as u64 - 1);
        let boot = boot as u64 & (BOOTS_MAX as u64 - 1);
        let worker = worker as u64 & (WORKERS_MAX as u64 - 1);
        let slot = slot as u64 & (SESSIONS_MAX as u64 - 1);
        Self(
            node << NODE_SHIFT
                | boot << BOOT_SHIFT
                | worker << WORKER_SHIFT
                | slot << SLOT_SHIFT
                | generation as u64,
        )
    }

    /// The id with this numeric value, if it fits 53 bits.
    pub const fn from_u64(value: u64) -> Option<Self> {
        if value >> ID_BITS == 0 { Some(Self(value)) } else { None }
    }

    /// The numeric value, below 2^53.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// The node that holds the session.
    pub const fn node(self) -> u16 {
        (self.0 >> NODE_SHIFT) as u16
    }

    /// The boot of that node (or incarnation of that worker) which opened the session.
    pub const fn boot(self) -> u8 {
        (self.0 >> BOOT_SHIFT) as u8 & (BOOTS_MAX as u8 - 1)
    }

    /// The worker of that node.
    pub const fn worker(self) -> u8 {
        (self.0 >> WORKER_SHIFT) as u8 & (WORKERS_MAX as u8 - 1)
    }

    /// The slot in that worker's table.
    pub const fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32 & (SESSIONS_MAX as u32 - 1)
    }

    /// Distinguishes successive sessions in one slot.
    pub const fn generation(self) -> u8 {
        self.0 as u8
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SessionId({}: node {} boot {} worker {} slot {} generation {})",
            self.0,
            self.node(),
            self.boot(),
            self.worker(),
            self.slot(),
            self.generation()
        )
    }
}

/// A text that is not a session id: not a decimal number below 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a session id is a decimal number below 9007199254740992")]
pub struct InvalidSessionId;

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `u64::from_str` accepts a leading plus sign and leading zeros; an id has one text form.
        let canonical = text.bytes().all(|byte| byte.is_ascii_digit())
            && (text.len() == 1 || !text.starts_with('0'));
        if !canonical {
            return Err(InvalidSessionId);
        }
        text.parse().ok().and_then(Self::from_u64).ok_or(InvalidSessionId)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_is_safe_in_javascript() {
        let largest = SessionId::pack(u16::MAX, u8::MAX, u8::MAX, u32::MAX, u8::MAX);
        assert_eq!(largest.to_u64(), (1 << 53) - 1);
        assert_eq!(SessionId::from_u64(1 << 53), None);
    }

    #[test]
    fn malformed_id_is_refused() {
        for text in ["", "+1", "-1", "01", "1e3", "9007199254740992", "99999999999999999999", " 1"]
        {
            assert_eq!(text.parse::<SessionId>(), Err(InvalidSessionId), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn fields_survive_packing_and_text(
            node in 0u16..4096, boot in 0u8..64, worker in 0u8..128,
            slot in 0u32..1 << 20, generation: u8,
        ) {
            let id = SessionId::pack(node, boot, worker, slot, generation);
            prop_assert_eq!(
                (id.node(), id.boot(), id.worker(), id.slot(), id.generation()),
                (node, boot, worker, slot, generation)
            );
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(SessionId::from_u64(id.to_u64()), Some(id));
        }
    }
}
