#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod code;
mod error;
mod hook;
mod instance;
mod json;
mod limits;
mod luau;
mod machine;
pub mod suite;

pub use code::{Code, SOURCE_BYTES_MAX};
pub use error::{Fault, FaultKind, ProgramError};
pub use hook::{Decision, Field, Hook};
pub use instance::Instance;
pub use limits::Limits;
pub use machine::{LogLine, Machine};

/// Type definitions of what a program can use, for editors: the text of a `.d.luau` file.
pub const TYPES: &str = include_str!("types.d.luau");
