//! The page of all commands, made from the flags.

use std::fmt::Write;

const HEAD: &str = "# Command line\n\nWritten by `make docs` from the program's own help. `dunlin COMMAND --help` prints the same.\n";

/// Returns the help of each command and its subcommands as Markdown.
pub(crate) fn page(mut command: clap::Command) -> String {
    command.build();
    let mut page = HEAD.to_owned();
    add(&mut page, &mut command, 2);
    page.truncate(page.trim_end().len());
    page + "\n"
}

fn add(page: &mut String, command: &mut clap::Command, depth: usize) {
    let name = command.get_bin_name().unwrap_or("dunlin").to_owned();
    // One width, whatever terminal it is written in.
    let help =
        command.clone().styles(clap::builder::Styles::plain()).term_width(120).render_long_help();
    let _ = write!(page, "\n{} `{name}`\n\n```text\n", "#".repeat(depth));
    for line in help.to_string().trim_end().lines() {
        let _ = writeln!(page, "{}", line.trim_end());
    }
    page.push_str("```\n");
    let shown = |of: &&mut clap::Command| !of.is_hide_set() && of.get_name() != "help";
    for subcommand in command.get_subcommands_mut().filter(shown) {
        add(page, subcommand, (depth + 1).min(4));
    }
}
