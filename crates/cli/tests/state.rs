//! `dunlin serve --state`: what was acknowledged as durable outlives the process, however it ends.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server of this very build.
struct Served {
    child: Child,
    admin: SocketAddr,
}

impl Served {
    /// Starts by way of a shell, so that `limits` can be set before.
    fn start(state: &Path, limits: &str) -> Served {
        let free = || TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        let (client, admin) = (free(), free());
        let command = format!(
            "{limits} exec {} serve --workers 2 --client {client} --admin {admin} --state {}",
            env!("CARGO_BIN_EXE_dunlin"),
            state.display()
        );
        let mut child =
            Command::new("sh").args(["-c", &command]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains(&admin.to_string())));
        assert!(ready, "it did not start");
        Served { child, admin }
    }

    /// Status and body of the answer; `None` when the server has gone.
    fn call(&self, method: &str, target: &str, body: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.admin).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    fn kill(&mut self) {
        // Killed already, or about to be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn what_was_durable_when_the_process_was_killed_is_there_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<String> = Vec::new();
    for life in 0..3 {
        let mut served = Served::start(directory.path(), "");
        for name in &acknowledged {
            let found = served.call("GET", &format!("/config/channel/namespaces/{name}"), "");
            assert_eq!(found.expect("an answer").0, 200, "{name} was acknowledged");
        }
        // Killed while four write: whoever had its answer must find its change again.
        let written: Vec<String> = std::thread::scope(|scope| {
            let served_ref = &served;
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    scope.spawn(move || {
                        let mut mine = Vec::new();
                        for change in 0.. {
                            let name = format!("life{life}-{writer}-{change}");
                            let target = format!("/config/channel/namespaces/{name}?durable=1");
                            match served_ref.call("PUT", &target, "{}") {
                                Some((201, _)) => mine.push(name),
                                Some(other) => panic!("{other:?}"),
                                None => return mine,
                            }
                            if writer == 0 && change == 20 {
                                let pid = served_ref.child.id().to_string();
                                let _ = Command::new("kill").args(["-9", &pid]).status();
                            }
                        }
                        mine
                    })
                })
                .collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        assert!(written.len() >= 20, "{}", written.len());
        served.kill();
        acknowledged.extend(written);
    }
}

#[test]
fn a_disk_that_takes_no_more_refuses_changes_and_serving_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    drop(Served::start(directory.path(), ""));
    // No file may grow beyond half a MiB: the log meets its end as on a full disk.
    let served = Served::start(directory.path(), "trap '' XFSZ; ulimit -f 1024;");
    let value = format!("[{}]", vec!["\"https://a.example\""; 2_000].join(","));
    let other = format!("[{}]", vec!["\"https://b.example\""; 2_000].join(","));
    let mut outcome = None;
    for change in 0..1_000 {
        let body = if change % 2 == 0 { &value } else { &other };
        let (status, answer) =
            served.call("PUT", "/config/client/allowed_origins", body).expect("an answer");
        if status != 200 {
            outcome = Some((status, answer));
            break;
        }
    }
    let (status, answer) = outcome.expect("the disk has an end");
    assert_eq!(status, 507, "{answer}");
    assert!(answer.contains("/problems/log-not-written"), "{answer}");
    assert_eq!(served.call("GET", "/health", "").expect("an answer").0, 200);
    assert_eq!(served.call("GET", "/config/limits", "").expect("an answer").0, 200);
}
