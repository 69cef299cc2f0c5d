//! State that the connections of a loop share.

use dunlin_wire::websocket::MessageAssembly;

use super::kept::Kept;
use super::protocol::Protocol;
use crate::core::config::LoopConfig;
use crate::core::spill::SPARE_BYTES_MAX;
use crate::core::upper::{Upper, UpperLayer};
use crate::http::Date;
use crate::websocket::{Agreed, SharedCompression};

/// State that the HTTP and WebSocket connections of a loop share.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "assemblies move between here and connections as pointers")]
pub(crate) struct Shared {
    pub(crate) date: Date,
    /// Compressors of all connections without context takeover, created on first use.
    pub(crate) compression: SharedCompression,
    /// Output buffer for decompression.
    pub(crate) inflated: Vec<u8>,
    /// Unused assemblies for reuse.
    assemblies: Vec<Box<MessageAssembly>>,
    assemblies_max: usize,
}

impl From<&LoopConfig> for Shared {
    fn from(config: &LoopConfig) -> Shared {
        Shared {
            date: Date::default(),
            compression: SharedCompression::new(config.deflate_level),
            inflated: Vec::new(),
            assemblies: Vec::new(),
            assemblies_max: config.spare_buffers_max,
        }
    }
}

impl Shared {
    pub(crate) fn borrow_assembly(&mut self) -> Box<MessageAssembly> {
        self.assemblies.pop().unwrap_or_default()
    }

    pub(crate) fn give_back_assembly(&mut self, mut assembly: Box<MessageAssembly>) {
        if self.assemblies.len() < self.assemblies_max {
            assembly.reset(SPARE_BYTES_MAX);
            self.assemblies.push(assembly);
        }
    }
}

impl UpperLayer for Upper {
    type Protocol = Protocol;
    type Kept = Kept;
    type Shared = Shared;
    type Agreed = Agreed;

    fn release(kept: &mut Kept, shared: &mut Shared) {
        if let Some(assembly) = std::mem::take(kept).assembly {
            shared.give_back_assembly(assembly);
        }
    }
}
