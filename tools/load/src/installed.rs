//! Finds other programs on this machine, and their versions.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;

/// Finds a program in these directories, in PATH, or in `/usr/sbin` and `/sbin`: Debian installs servers there, outside
/// an ordinary user's PATH.
pub fn find(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = directories.iter().cloned().chain(std::env::split_paths(&path));
    places
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|place| place.join(name))
        .find(|file| file.is_file())
}

/// Finds a program that must be installed.
///
/// # Errors
/// Names the Debian package to install.
pub fn installed(name: &str, package: &str) -> Result<PathBuf, Error> {
    find(name, &[])
        .ok_or_else(|| Error::new(format!("{name} is not installed: apt-get install {package}")))
}

/// Returns the version in a program's output: in the first line with a digit, on standard output or standard error.
pub fn version(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit()))?;
    number(line).map(str::to_owned)
}

/// Returns the first number of the form 1.2, without surrounding characters.
fn number(line: &str) -> Option<&str> {
    line.split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .map(|word| word.trim_matches('.'))
        .find(|word| word.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_say() {
        for (line, version) in [
            ("nginx version: nginx/1.26.3", "1.26.3"),
            ("Redis server v=8.0.2 sha=00000000:0 malloc=jemalloc-5.3.0", "8.0.2"),
            ("nats-server: v2.10.27", "2.10.27"),
            ("mosquitto version 2.0.21", "2.0.21"),
            ("wrk debian/4.1.0-4 [epoll] Copyright (C) 2012 Will Glozer", "4.1.0"),
            ("h2load nghttp2/1.64.0", "1.64.0"),
            ("oha 1.16.0", "1.16.0"),
        ] {
            assert_eq!(number(line), Some(version));
        }
        assert_eq!(number("no version 7 here"), None);
    }

    #[test]
    fn missing_program_is_reported_with_its_package() {
        assert!(find("sh", &[]).is_some());
        let error = installed("no-such-program", "some-package").unwrap_err().to_string();
        assert!(error.contains("apt-get install some-package"), "{error}");
    }
}
