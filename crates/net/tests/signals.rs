//! Signals as events. Alone in its file, and without the test harness's threads: a signal reaches the loop
//! only if no thread of the process leaves it unblocked.

#![allow(clippy::unwrap_used, reason = "a test, if one without the harness")]

use std::time::Duration;

use dunlin_net::{Context, EventLoop, Handler, LoopConfig, Tcp, WorkerConfig, spawn_workers};
use rustix::process::{Signal, getpid, kill_process};

#[derive(Default)]
struct Signals(Vec<i32>);

impl Handler for Signals {
    type Data = ();
    type Protocols = Tcp;

    fn on_signal(&mut self, _: &mut Context<()>, signal: i32) {
        self.0.push(signal);
    }
}

fn main() {
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let mut signals = Signals::default();
    let cx = event_loop.context();
    cx.register_signals(&[Signal::TERM.as_raw()]).unwrap();
    cx.register_signals(&[Signal::HUP.as_raw()]).unwrap();
    let error = cx.register_signals(&[Signal::KILL.as_raw()]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);

    // A worker that minds its own business: it blocks what it was not asked to block, too.
    let mut workers = spawn_workers(1, &WorkerConfig::default(), |_| {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        for signal in [Signal::USR1, Signal::INT, Signal::TERM] {
            assert_ne!(blocked & 1 << (signal.as_raw() - 1), 0, "{signal:?}");
        }
        assert_eq!(blocked & 1 << (Signal::SEGV.as_raw() - 1), 0);
    })
    .unwrap();
    assert!(matches!(workers.wait(), Some((0, dunlin_net::Exit::Returned(())))));

    for signal in [Signal::TERM, Signal::HUP] {
        kill_process(getpid(), signal).unwrap();
    }
    while signals.0.len() < 2 {
        event_loop.turn(&mut signals, Some(Duration::from_secs(20))).unwrap();
    }
    signals.0.sort_unstable();
    assert_eq!(signals.0, [Signal::HUP.as_raw(), Signal::TERM.as_raw()]);
    println!("signals: ok");
}
