/// Why a command did not do what it was to do: what to print.
pub(crate) type CliError = Box<dyn std::error::Error>;
