//! How a person sees it: colours on a terminal only (and not with `NO_COLOR`), errors with their fix.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use clap::builder::styling::Styles;

use crate::error::CliError;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
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
    .invalid(WARN)
    .valid(GOOD);

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

/// The same of bytes that need not be text.
#[cfg(feature = "programs")]
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// `error: ...` on standard error, a line for each cause.
pub(crate) fn error(error: &dyn Error) {
    anstream::eprintln!("{} {error}", paint(BAD, "error:"));
    let mut cause = error.source();
    while let Some(error) = cause {
        anstream::eprintln!("  {} {error}", paint(DIM, "because:"));
        cause = error.source();
    }
}

/// Prints to standard error what is not the result.
pub(crate) fn tell(text: &str) {
    anstream::eprint!("{text}");
}

/// `warning: ...` on standard error.
pub(crate) fn warning(text: impl fmt::Display) {
    anstream::eprintln!("{} {text}", paint(WARN, "warning:"));
}

pub(crate) fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// 1234567 as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_stand_in_groups_of_three() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0, 999, 1_000, 1_234_567].map(grouped)[..]);
    }
}
