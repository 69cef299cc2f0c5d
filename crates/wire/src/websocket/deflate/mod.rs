//! permessage-deflate (RFC 7692): negotiation and coding.
//!
//! Without context takeover, which is the default, compressor and decompressor belong to the
//! worker: [`SharedDeflate`] serves all connections. A connection that negotiated takeover in a
//! direction owns a [`Deflater`] or [`Inflater`] for it.

mod deflater;
mod inflater;
mod params;
mod shared;

pub use deflater::Deflater;
pub use inflater::Inflater;
pub(super) use params::{Agreement, confirm, negotiate, offer};
pub use params::{DeflateConfig, DeflateParams, Direction, WINDOW_BITS_MAX};
pub use shared::SharedDeflate;

/// The end of a compressed message, which the sender removes and the receiver restores (RFC 7692
/// §7.2): length and complement of an empty stored block.
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];
