#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod code;
mod error;
mod framing;
mod hook;
mod instance;
#[cfg(feature = "luau")]
mod json;
mod limits;
#[cfg(feature = "luau")]
mod luau;
mod machine;
mod protocol;
mod store;
#[cfg(feature = "luau")]
pub mod suite;

pub use code::{Code, SOURCE_BYTES_MAX};
pub use error::{Fault, FaultKind, ProgramError};
pub use framing::{Cut, Framing, Input};
pub use hook::{Decision, Field, Hook};
pub use instance::Instance;
pub use limits::Limits;
pub use machine::{LogLine, Machine};
pub use protocol::{Answer, Call, ConnEvent, ConnKey, Effects, Progress, Target};
pub use store::{Store, StoreError};

/// Type definitions of what a program can use, for editors: the text of a `.d.luau` file.
pub const TYPES: &str = include_str!("types.d.luau");
