//! The engines of the settings: their servers, their logins, and what is counted of each.

pub(crate) mod disk;
pub(crate) mod login;
pub(crate) mod servers;
pub(crate) mod stats;
