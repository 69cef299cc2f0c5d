//! Exhausts file descriptors. In a test binary of its own, because the limit applies to the whole process.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use dunlin_pipeline::{ClientConfig, HostConfig, ThreadedClient};
use rustix::process::{Resource, getrlimit, setrlimit};

/// With any number of descriptors left, a client either starts and works, or returns an error.
#[test]
fn a_threaded_client_that_starts_has_its_event_loop() {
    let before = getrlimit(Resource::Nofile);
    let (mut refused, mut started) = (0, 0);
    for current in 0..64 {
        let limit = rustix::process::Rlimit { current: Some(current), ..before };
        setrlimit(Resource::Nofile, limit).unwrap();
        let client = ThreadedClient::start(ClientConfig::default(), 1);
        setrlimit(Resource::Nofile, before).unwrap();
        match client {
            Ok(client) => {
                client.host("http://127.0.0.1:1", HostConfig::default()).unwrap();
                started += 1;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::MFILE.raw_os_error()));
                refused += 1;
            }
        }
    }
    assert!(refused > 1 && started > 1, "{refused} refused, {started} started");
}
