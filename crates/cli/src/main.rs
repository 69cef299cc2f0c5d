//! dunlin: serve, apns, push, config, cluster, federation, peers, program, trace, explain, top, health, token, check; bench is a program of its own.
#![forbid(unsafe_code)]

mod apns;
mod check;
mod cluster;
mod config;
mod error;
mod explain;
mod federation;
mod health;
mod log_writer;
#[cfg(feature = "programs")]
mod program;
mod push;
mod reference;
mod serve;
mod style;
mod token;
mod tools;
mod top;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// Holds millions of connections on one machine and pushes messages to them.
#[derive(Debug, Parser)]
#[command(
    name = "dunlin",
    version,
    styles = style::HELP,
    propagate_version = false,
    arg_required_else_help = true,
    after_help = "Start with `dunlin serve` and open the page it names."
)]
struct Dunlin {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the server; without --config it runs in development mode on 127.0.0.1
    Serve(serve::Serve),
    /// Measure a push server, load any HTTP server, attack one; runs the program dunlin-bench
    #[command(disable_help_flag = true)]
    Bench(tools::Arguments),
    /// Apple's push service: send pushes, manage broadcast channels, benchmark the sender, run a simulator
    #[command(subcommand, arg_required_else_help = true)]
    Apns(apns::Command),
    /// Read and change the settings of a running server; print or check a configuration file
    #[command(subcommand, arg_required_else_help = true)]
    Config(Box<config::Command>),
    /// Show the nodes of a cluster
    #[command(subcommand, arg_required_else_help = true)]
    Cluster(cluster::Command),
    /// Make the key by which servers of other owners know this one
    #[command(subcommand, arg_required_else_help = true)]
    Federation(federation::Command),
    /// Show the servers of other owners that messages are exchanged with; dial one now
    #[command(subcommand, arg_required_else_help = true)]
    Peers(federation::Peers),
    /// Follow what happens to one user, client, address or channel of a running server
    Trace(trace::Trace),
    /// Explain why a client may subscribe to a channel, publish to it or read it, or why not
    Explain(explain::Explain),
    /// Watch a running server in the terminal: connections, messages, refusals
    Top(top::Top),
    /// Check whether a server serves; exits with 1 if not, for containers and scripts
    Health(health::Health),
    /// Send a notification to one device, or to every device token of a file
    #[command(subcommand, arg_required_else_help = true)]
    Push(push::Command),
    /// Check a program, run its tests, ask its hooks, print its type definitions
    #[cfg(feature = "programs")]
    #[command(subcommand, arg_required_else_help = true)]
    Program(program::Command),
    /// Create a token for testing, as your backend would
    Token(token::Token),
    /// Check which limits of this machine are too low for N connections, and print how to raise them
    Check(check::Check),
    /// Print a completion script, as in `dunlin completions bash > /etc/bash_completion.d/dunlin`
    Completions {
        /// The shell it is for
        shell: Shell,
    },
    /// Write a man page for each command into a directory
    #[command(hide = true)]
    Man {
        /// The directory
        directory: std::path::PathBuf,
    },
    /// Print the page of all commands and flags
    #[command(hide = true)]
    Reference,
}

fn main() -> ExitCode {
    let outcome = match Dunlin::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Bench(arguments) => arguments.run(&[]),
        Command::Apns(apns) => apns.run(),
        Command::Config(config) => config.run(),
        Command::Cluster(cluster) => cluster.run(),
        Command::Federation(federation) => federation.run(),
        Command::Peers(peers) => peers.run(),
        #[cfg(feature = "programs")]
        Command::Program(program) => program.run(),
        Command::Trace(trace) => trace.run(),
        Command::Explain(explain) => explain.run(),
        Command::Top(top) => top.run(),
        Command::Health(health) => match health.run() {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Command::Push(push) => push.run(),
        Command::Token(token) => token.run(),
        Command::Check(check) => match check.run() {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Dunlin::command(), "dunlin", &mut script);
            style::print(&String::from_utf8_lossy(&script))
        }
        Command::Man { directory } => {
            clap_mangen::generate_to(Dunlin::command(), directory).map_err(Into::into)
        }
        Command::Reference => style::print(&reference::page(Dunlin::command())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed it: `dunlin config docs | head`.
        Err(error) if style::is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            style::error(&*error);
            error::exit_code(&*error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Dunlin::command().debug_assert();
    }

    /// Splits a command as a shell does, up to the first pipe, redirection or comment. `None`: its line is not all of it.
    fn words(line: &str) -> Option<Vec<String>> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for char in line.chars() {
            match (quote, char) {
                (Some(open), _) if open == char => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(char);
                    word.get_or_insert_default();
                }
                (None, '#') if word.is_none() => break,
                (None, '|' | '<' | '>' | ';' | '&') => break,
                (None, '\\' | '$') => return None,
                (None, ' ') => words.extend(word.take()),
                (_, char) => word.get_or_insert_default().push(char),
            }
        }
        words.extend(word);
        quote.is_none().then_some(words)
    }

    fn pages(folder: &std::path::Path, pages: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => self::pages(&path, pages),
                Some(end) if end == "md" => pages.push(path),
                _ => {}
            }
        }
    }

    /// With every feature, as the pages are written. A page said `dunlin explain --channel`, which there is not.
    #[test]
    fn every_command_of_the_docs_can_be_typed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut all = vec![root.join("README.md")];
        pages(&root.join("docs"), &mut all);
        let (mut wrong, mut typed) = (Vec::new(), 0);
        for page in all {
            let text = std::fs::read_to_string(&page).unwrap();
            let mut shell = false;
            for line in text.lines().map(str::trim_start) {
                if let Some(language) = line.strip_prefix("```") {
                    shell = matches!(language, "sh" | "console");
                }
                let line = line.strip_prefix("$ ").unwrap_or(line);
                let line = line.strip_prefix("sudo ").unwrap_or(line);
                let Some(words) =
                    Some(line).filter(|line| shell && line.starts_with("dunlin ")).and_then(words)
                else {
                    continue;
                };
                typed += 1;
                if let Err(error) = Dunlin::try_parse_from(&words)
                    && error.use_stderr()
                {
                    let why = error.to_string();
                    wrong.push(format!(
                        "{}: {line}: {}",
                        page.display(),
                        why.lines().next().unwrap_or_default()
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(typed > 50, "{typed}");
    }
}
