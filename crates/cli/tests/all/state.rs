//! `dunlin serve --state`: what was acknowledged as durable outlives the process, however it ends.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::process::Command;

use crate::kit::Served;

#[test]
fn durable_change_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<String> = Vec::new();
    for incarnation in 0..3 {
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
                            let name = format!("incarnation{incarnation}-{writer}-{change}");
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
