/// Why a command did not do what was asked: what to print.
pub(crate) type CliError = Box<dyn std::error::Error>;
