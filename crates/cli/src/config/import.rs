//! `dunlin config import`: converts a configuration of Centrifugo.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use dunlin_config::centrifugo::{Format, Imported, Mapping, import};

use super::file::{File, text_of};
use crate::error::CliError;
use crate::style::{self, BOLD, DIM, GOOD, WARN, paint};

/// Writes the converted file to `output` or to standard output, and the result for each key to standard error.
pub(super) fn run(path: &Path, output: Option<&Path>) -> Result<(), CliError> {
    let text = text_of(path)?;
    let name = path.display().to_string();
    let imported = import(&text, Format::of(&name, &text))
        .map_err(|errors| File::of(path, text.clone()).invalid(errors))?;
    let toml = format!(
        "# Made by `dunlin config import` from {name}. What became of each of its keys:\n#\n{}\n{}",
        commented(&table(&imported)),
        imported.toml
    );
    match output {
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
    let shown = table(&imported).lines().fold(String::new(), |mut out, line| {
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
