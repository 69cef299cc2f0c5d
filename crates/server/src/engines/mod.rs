//! The engines of the settings: the logs of those on a disk, and what is counted of each.

pub(crate) mod disk;
pub(crate) mod stats;
