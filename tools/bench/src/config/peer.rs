//! nginx as a peer: what a change costs when it is a new file and a reload.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dunlin_load::installed::installed;
use dunlin_load::{Context, Error, Process};

const TIMEOUT: Duration = Duration::from_secs(60);

/// An nginx with an upstream of many members.
pub(super) struct Nginx {
    file: PathBuf,
    pid_file: PathBuf,
    address: SocketAddr,
    members: usize,
    _process: Process,
}

impl Nginx {
    pub(super) fn start(
        directory: &Path,
        address: SocketAddr,
        members: usize,
        cores: &[usize],
    ) -> Result<Nginx, Error> {
        let (file, pid_file) = (directory.join("nginx.conf"), directory.join("nginx.pid"));
        write(&file, &pid_file, address, members, 0)?;
        let nginx = installed("nginx", "nginx")?;
        let (nginx, directory) = (nginx.display(), directory.display());
        let command = format!("{nginx} -p {directory} -c {}", file.display());
        let process = Process::start(&command, cores, address, None)?;
        Ok(Nginx { file, pid_file, address, members, _process: process })
    }

    /// Writes a new value, reloads, and waits until a new connection is answered with it.
    pub(super) fn change(&self, value: u32) -> Result<Duration, Error> {
        let began = Instant::now();
        write(&self.file, &self.pid_file, self.address, self.members, value)?;
        let pid = fs::read_to_string(&self.pid_file).context("nginx has no pid file")?;
        let killed = Command::new("kill").args(["-HUP", pid.trim()]).status();
        if !killed.context("cannot signal nginx")?.success() {
            return Err(Error::new("nginx is gone"));
        }
        let wanted = format!("value {value};");
        while began.elapsed() < TIMEOUT {
            if self.ask().is_ok_and(|answer| answer.contains(&wanted)) {
                return Ok(began.elapsed());
            }
        }
        Err(Error::new(format!("nginx does not answer with the change after {TIMEOUT:?}")))
    }

    fn ask(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

fn write(
    file: &Path,
    pid_file: &Path,
    address: SocketAddr,
    members: usize,
    value: u32,
) -> Result<(), Error> {
    let mut text = format!(
        "daemon off; worker_processes 2; pid {}; error_log /dev/null;\n\
         events {{ worker_connections 1024; }}\nhttp {{ access_log off;\nupstream members {{\n",
        pid_file.display()
    );
    for member in 0..members {
        let (high, low) = (member / 250, member % 250 + 1);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "server 10.{}.{}.{low}:80 weight={};",
            high / 250,
            high % 250,
            1 + (value as usize + member) % 9
        );
    }
    let _ = write!(
        text,
        "}}\nserver {{ listen {address}; location / {{ return 200 \"value {value};\"; }}\n\
         location /up {{ proxy_pass http://members; }} }} }}\n"
    );
    fs::write(file, text).context(format!("cannot write {}", file.display()))
}
