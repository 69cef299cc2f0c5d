//! Colours on a terminal only, and not with `NO_COLOR`; as `dunlin` has them.

use std::fmt;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use clap::builder::styling::Styles;

use crate::error::CliError;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const LINK: Style = AnsiColor::Cyan.on_default();

/// Colours of `--help`.
pub(crate) const HELP: Styles = Styles::styled()
    .header(BOLD)
    .usage(BOLD)
    .literal(LINK)
    .placeholder(DIM)
    .error(BAD)
    .invalid(WARN);

/// A text in a style, to be printed through this module.
pub(crate) fn paint(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Prints to standard output, without styles when that is no terminal.
///
/// # Errors
/// What the reader's end of the pipe says.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
