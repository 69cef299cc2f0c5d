//! Commands of `dunlin-bench`, a program of its own: whoever serves needs neither its attacks nor its simulators.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::error::CliError;

const PROGRAM: &str = "dunlin-bench";

/// What is passed on, as it was written.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Arguments of dunlin-bench; --help lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Arguments {
    /// Becomes `dunlin-bench` with these arguments behind `command`, so that its exit code and the signals that it gets are
    /// its own. Returns only if that fails.
    pub(crate) fn run(self, command: &[&str]) -> Result<(), CliError> {
        let Some(program) = find() else {
            return Err(format!(
                "this command is of a program of its own, {PROGRAM}, which is neither beside `dunlin` nor in PATH; install \
                 the package {PROGRAM}, or build it with `cargo build --release -p {PROGRAM}`"
            )
            .into());
        };
        let error = Command::new(&program).args(command).args(self.arguments).exec();
        Err(format!("cannot start {}: {error}", program.display()).into())
    }
}

/// The one beside this program, which is of the same build, goes before those in PATH.
fn find() -> Option<PathBuf> {
    let own = env::current_exe().ok();
    let beside = own.as_deref().and_then(|own| own.parent()).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let places = beside.into_iter().chain(env::split_paths(&path));
    places.map(|place| place.join(PROGRAM)).find(|file| file.is_file())
}
