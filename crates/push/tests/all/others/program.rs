//! Servers of other people as programs: Go's `net/http` (scripts/bench/go-server) and netty's (scripts/bench/netty-server). Each
//! answers as the first two digits of the device token say.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// A server, until dropped.
pub struct Program {
    pub name: &'static str,
    pub address: SocketAddr,
    /// Its certificate, which is its own root: the file is [`certificate`](Program::certificate).
    pub directory: tempfile::TempDir,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Go's; `None` where there is no Go.
    pub fn go() -> Option<Program> {
        static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
        let build = || {
            let program = built("go")?.join("go-server");
            let mut build = Command::new("go");
            build.arg("build").arg("-o").arg(&program).arg(".").current_dir(sources("go-server"));
            runs(build).then_some(program)
        };
        let command = Command::new(BUILT.get_or_init(build).as_ref()?);
        Some(Program::start("Go net/http", command, &["vary"]))
    }

    /// Netty's; `None` where there is no Maven, or where it gets nothing.
    pub fn netty() -> Option<Program> {
        static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
        let build = || {
            let (classes, sources) = (built("netty")?, sources("netty-server"));
            let mut libraries = Command::new("mvn");
            libraries.args(["-q", "-B", "dependency:copy-dependencies", "-f"]);
            libraries.arg(sources.join("pom.xml"));
            libraries.arg(format!("-DoutputDirectory={}", classes.display()));
            let mut compile = Command::new("javac");
            compile.arg("-d").arg(&classes).arg("-cp").arg(classes.join("*"));
            compile.arg(sources.join("PushServer.java"));
            (runs(libraries) && runs(compile)).then_some(classes)
        };
        let classes = BUILT.get_or_init(build).as_ref()?;
        let mut command = Command::new("java");
        let path = format!("{}:{}", classes.display(), classes.join("*").display());
        command.args(["-cp", &path, "PushServer"]);
        Some(Program::start("netty", command, &[]))
    }

    fn start(name: &'static str, mut command: Command, more: &[&str]) -> Program {
        let directory = tempfile::tempdir().unwrap();
        // Apple's too, which a command line does not let one change.
        let names = ["localhost".to_owned(), "api.push.apple.com".to_owned()];
        let signed = rcgen::generate_simple_self_signed(names).unwrap();
        let (certificate, key) =
            (directory.path().join("cert.pem"), directory.path().join("key.pem"));
        std::fs::write(&certificate, signed.cert.pem()).unwrap();
        std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
        command.arg("127.0.0.1:0").args([&certificate, &key]).args(more);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().unwrap().unwrap().parse().unwrap();
        Program { name, address, directory, child, lines }
    }

    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    /// Ends it, and gives how often it has accepted each path.
    pub fn accepted(mut self) -> HashMap<String, usize> {
        drop(self.child.stdin.take());
        let entry = |line: String| {
            let (path, times) = line.split_once(' ').unwrap();
            (path.to_owned(), times.parse().unwrap())
        };
        self.lines.by_ref().map(|line| entry(line.unwrap())).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench").join(name)
}

/// Where it is built: of this process alone, for others may build it meanwhile.
fn built(name: &str) -> Option<PathBuf> {
    let name = format!("{name}-{}-{}", env!("CARGO_PKG_NAME"), env!("CARGO_CRATE_NAME"));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory)
}

fn runs(mut command: Command) -> bool {
    match command.status() {
        Ok(status) if status.success() => true,
        outcome => {
            eprintln!("not tried here: {command:?}: {outcome:?}");
            false
        }
    }
}
