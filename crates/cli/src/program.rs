//! `dunlin program`: what one who writes a program needs, without a server.

use std::ffi::OsString;
use std::io::{BufRead, Read, stdin};
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueHint};
use dunlin_program::suite::{self, FakeHost};
use dunlin_program::{Code, Decision, Hook, Limits, LogLine, TYPES};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::style;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compile programs and start each once, as the server does; prints the line of each error
    Check {
        /// The programs: `moderate.luau`
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Run the tests of programs, with a clock that stands until a test moves it
    Test {
        /// The programs; the tests of `moderate.luau` are in `moderate_test.luau`
        #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Ask a hook of a program about events, and print its decisions as JSON; or pass the standard input to a protocol, and print what the
    /// client is sent
    Run {
        /// The program
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// connect, subscribe, publish, rpc, refresh or sub_refresh; frame: the bytes of one client
        #[arg(value_parser = asked)]
        hook: Asked,
        /// The event, as in '{"user":"ann","channel":"chat","data":"hello"}'; without it, one on each line of the standard input
        event: Option<String>,
    },
    /// Print the type definitions of what a program can use, for editors
    Types,
}

/// What a program is run for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    Hook(Hook),
    Frames,
}

impl Command {
    pub(crate) fn run(self) -> Result<(), CliError> {
        match self {
            Command::Check { files } => check(&files),
            Command::Test { files } => test(&files),
            Command::Run { file, hook, event } => run(&file, hook, event),
            Command::Types => style::print(TYPES),
        }
    }
}

fn asked(name: &str) -> Result<Asked, String> {
    let hook = Hook::of(name).map(Asked::Hook).or((name == "frame").then_some(Asked::Frames));
    hook.ok_or_else(|| {
        "it is connect, subscribe, publish, rpc, refresh or sub_refresh, or frame for a protocol"
            .to_owned()
    })
}

/// Reads and compiles a program. It has the name of its file.
fn code(file: &Path) -> Result<Code, CliError> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    Ok(Code::compile(&name, &text_of(file)?, Limits::default())?)
}

fn text_of(file: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()).into())
}

fn check(files: &[PathBuf]) -> Result<(), CliError> {
    for file in files {
        let code = code(file)?;
        let hooks = Hook::ALL.into_iter().filter(|hook| code.defines(*hook));
        let mut hooks: Vec<&str> = hooks.map(Hook::name).collect();
        if code.speaks() {
            hooks.push("a protocol");
        }
        style::print(&format!("{}: {}\n", file.display(), hooks.join(", ")))?;
    }
    Ok(())
}

fn test(files: &[PathBuf]) -> Result<(), CliError> {
    let (mut passed, mut failed) = (0, 0);
    for file in files {
        let code = code(file)?;
        let tests = tests_of(file);
        for outcome in suite::run(&code, &text_of(&tests)?, Limits::default())? {
            match outcome.failure {
                None => {
                    passed += 1;
                    style::print(&format!(
                        "{}  {}\n",
                        style::paint(style::GOOD, "ok"),
                        outcome.name
                    ))?;
                }
                Some((line, message)) => {
                    failed += 1;
                    let place = line
                        .map_or_else(String::new, |line| format!("{}:{line}: ", tests.display()));
                    let mark = style::paint(style::BAD, "FAILED");
                    style::print(&format!("{mark}  {}\n    {place}{message}\n", outcome.name))?;
                    log(&outcome.log)?;
                }
            }
        }
    }
    match failed {
        0 => style::print(&format!("{passed} passed\n")),
        _ => Err(format!("{failed} of {} tests failed", passed + failed).into()),
    }
}

/// `moderate_test.luau` for `moderate.luau`.
fn tests_of(file: &Path) -> PathBuf {
    let mut name: OsString = file.file_stem().unwrap_or_default().to_owned();
    name.push("_test.luau");
    file.with_file_name(name)
}

/// Passes the standard input to a protocol, as the bytes of one client.
fn run_protocol(code: &Code, file: &Path) -> Result<(), CliError> {
    if !code.speaks() {
        return Err(format!("{} has no function `frame`", file.display()).into());
    }
    let mut input = Vec::new();
    stdin().lock().read_to_end(&mut input)?;
    let exchange = suite::exchange(code, &input, Limits::default())?;
    log(&exchange.log)?;
    style::print_bytes(&exchange.sent)?;
    match exchange.closed {
        Some(reason) => Err(format!("the program has closed the connection: {reason}").into()),
        None => Ok(()),
    }
}

fn run(file: &Path, asked: Asked, event: Option<String>) -> Result<(), CliError> {
    let code = code(file)?;
    let hook = match asked {
        Asked::Hook(hook) => hook,
        Asked::Frames => return run_protocol(&code, file),
    };
    if !code.defines(hook) {
        return Err(format!("{} has no function `{}`", file.display(), hook.name()).into());
    }
    let mut host = FakeHost::new(&code, Limits::default());
    if let Some(event) = event {
        return ask(&mut host, hook, &event);
    }
    for line in stdin().lock().lines() {
        ask(&mut host, hook, &line?)?;
    }
    Ok(())
}

fn ask(host: &mut FakeHost, hook: Hook, event: &str) -> Result<(), CliError> {
    let event: Value =
        serde_json::from_str(event).map_err(|error| format!("the event is no JSON: {error}"))?;
    let decided = host.ask(hook, &event);
    log(&host.instance().take_log())?;
    let answer = match decided? {
        Decision::Rules => json!({"decision": "rules"}),
        Decision::Denied => json!({"decision": "denied"}),
        Decision::Granted(result) => {
            json!({"decision": "granted", "result": serde_json::from_slice::<Value>(&result)?})
        }
        Decision::Refused(code, reason) => {
            json!({"decision": "refused", "code": code, "reason": reason})
        }
        Decision::Disconnected(code, reason) => {
            json!({"decision": "disconnected", "code": code, "reason": reason})
        }
    };
    style::print(&format!("{answer}\n"))
}

fn log(lines: &[LogLine]) -> Result<(), CliError> {
    for LogLine { line, text } in lines {
        let place = line.map_or_else(String::new, |line| format!("line {line}: "));
        style::tell(&format!("    {place}{text}"));
    }
    Ok(())
}
