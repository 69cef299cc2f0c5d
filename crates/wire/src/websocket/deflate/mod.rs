//! permessage-deflate (RFC 7692): what the two ends agree on, and the coding itself.

mod params;

pub(super) use params::{Agreement, confirm, negotiate, offer};
pub use params::{DeflateConfig, DeflateParams, Direction, WINDOW_BITS_MAX};
