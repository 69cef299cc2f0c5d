//! `dunlin bench` as a program of its own, for those who measure another server and want nothing else.
//!
//! ```text
//! cargo run --release -p dunlin-bench --example dunlin-bench -- connections --help
//! ```

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: dunlin_bench::Command,
}

fn main() -> ExitCode {
    match dunlin_bench::run(Arguments::parse().command) {
        Ok(status) => status.into(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
