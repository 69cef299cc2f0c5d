//! `dunlin config import`: converts a configuration of another server.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use dunlin_config::import::{Format, Import, Imported, Mapping, Origin, Variables, read_variables};

use super::file::{File, text_of};
use crate::error::CliError;
use crate::style::{self, BOLD, DIM, GOOD, WARN, paint};

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The configuration: JSON, YAML, TOML, or a `.env` file; `-` reads standard input
    #[arg(value_hint = ValueHint::FilePath, required_unless_present_any = ["env", "process_env"])]
    file: Option<PathBuf>,
    /// Variables that override the file: lines of NAME=value. Of several files a later one overrides an earlier one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    env: Vec<PathBuf>,
    /// Use the variables of this process too, before those of files
    #[arg(long)]
    process_env: bool,
    /// Whose configuration it is; by default, what is detected
    #[arg(long, value_name = "SERVER", value_enum)]
    from: Option<Whose>,
    /// Convert even if the store that nodes share cannot be taken: then channels live in the memory of one node, and nodes share
    /// nothing until you have written `engines`
    #[arg(long)]
    without_engine: bool,
    /// Write the converted file to this new file, readable by this user only, instead of printing it
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

/// Whose configuration it is.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Whose {
    CentrifugoV3,
    CentrifugoV4,
    CentrifugoV5,
    CentrifugoV6,
    Soketi,
    Reverb,
}

impl Whose {
    fn origin(self) -> Origin {
        match self {
            Whose::CentrifugoV3 => Origin::CentrifugoV3,
            Whose::CentrifugoV4 => Origin::CentrifugoV4,
            Whose::CentrifugoV5 => Origin::CentrifugoV5,
            Whose::CentrifugoV6 => Origin::CentrifugoV6,
            Whose::Soketi => Origin::Soketi,
            Whose::Reverb => Origin::Reverb,
        }
    }
}

impl ImportArgs {
    /// Writes the converted file to `output` or to standard output, and the result for each key to standard error.
    pub(super) fn run(&self) -> Result<(), CliError> {
        let mut variables = Variables::new();
        if self.process_env {
            // Variables in another encoding than UTF-8 are none of these servers'.
            let own = std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            });
            variables.extend(own);
        }
        for path in &self.env {
            let text = text_of(path)?;
            let read = read_variables(&text, &variables)
                .map_err(|errors| File::of(path, text.clone()).invalid(errors))?;
            variables.extend(read);
        }
        let (path, text) = match &self.file {
            Some(path) => (path.as_path(), text_of(path)?),
            None => (self.env.first().map_or(Path::new("-"), PathBuf::as_path), String::new()),
        };
        let name = match &self.file {
            None if self.env.is_empty() => "the environment".to_owned(),
            _ => path.display().to_string(),
        };
        let import = Import {
            variables,
            origin: self.from.map(Whose::origin),
            without_engine: self.without_engine,
            ..Import::of(&text, Format::of(&name, &text))
        };
        let imported =
            import.run().map_err(|errors| File::of(path, text.clone()).invalid(errors))?;
        self.write(&name, &imported)
    }

    fn write(&self, name: &str, imported: &Imported) -> Result<(), CliError> {
        let chart = if imported.is_chart { ", in the values of its Helm chart" } else { "" };
        let read_as = format!("{}{chart}", imported.origin);
        let toml = format!(
            "# Made by `dunlin config import` from {name}, read as {read_as}. What became of each of its keys:\n#\n{}\n{}",
            commented(&table(imported)),
            imported.toml
        );
        match &self.output {
            Some(output) => {
                // The file contains secrets, and an existing file must not be overwritten.
                let mut file = std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(output)
                    .map_err(|error| format!("{} cannot be written: {error}", output.display()))?;
                file.write_all(toml.as_bytes())?;
            }
            None => style::print(&toml)?,
        }
        style::tell(&format!("Read as {read_as}; another one is named with --from.\n\n"));
        let shown = table(imported).lines().fold(String::new(), |mut out, line| {
            let style = match line {
                line if line.starts_with("closed") => WARN,
                line if line.starts_with("taken") => GOOD,
                line if line.starts_with("changed") => BOLD,
                _ => DIM,
            };
            let _ = writeln!(out, "{}", paint(style, line));
            out
        });
        style::tell(&shown);
        let closed = imported.rows.iter().filter(|row| row.mapping == Mapping::Closed).count();
        if closed > 0 {
            style::tell(&format!(
                "\n{closed} of these are closed that may have been open: look at each before clients move over.\n"
            ));
        }
        // Report errors that the server would find when it opens keys and certificates.
        dunlin_server::errors_of(&imported.config).iter().for_each(style::warning);
        imported.config.warnings().iter().for_each(style::warning);
        Ok(())
    }
}

/// Formats the result for each key, ordered by mapping, closed ones first.
fn table(imported: &Imported) -> String {
    let mut rows: Vec<_> = imported.rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.mapping));
    let width = rows.iter().map(|row| row.key.len()).max().unwrap_or(0).min(60);
    rows.iter().fold(String::new(), |mut out, row| {
        let line = format!("{:<14}  {:<width$}  {}", row.mapping, row.key, row.note);
        let line = line.replace(char::is_control, "?");
        let _ = writeln!(out, "{}", line.trim_end());
        out
    })
}

fn commented(text: &str) -> String {
    text.lines().map(|line| format!("# {line}\n")).collect()
}
