//! A process that runs out of descriptors: alone in its binary, for it has one limit.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use dunlin_pipeline::{ClientConfig, HostConfig, ThreadedClient};
use rustix::process::{Resource, getrlimit, setrlimit};

/// However few descriptors are left, a client that starts works, and one that does not says why.
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
