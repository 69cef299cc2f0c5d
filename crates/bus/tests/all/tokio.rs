//! The control plane's end: a tokio thread whose only source of wake-ups is the doorbell.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::thread;

use crate::epoll::{Epoll, receive};
use dunlin_bus::{Endpoint, MeshConfig, mesh};

#[test]
fn a_tokio_thread_and_an_epoll_thread_answer_each_other() {
    const ROUNDS: u32 = if cfg!(miri) { 10 } else { 1000 };
    let [mut worker, control] = mesh(2, &MeshConfig::default()).unwrap().try_into().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
            runtime.unwrap().block_on(answer(control, ROUNDS));
        });
        let epoll = Epoll::new(&worker);
        assert!(!epoll.was_rung());
        for value in 0..ROUNDS {
            worker.send(1, value).unwrap();
            assert_eq!(receive(&mut worker, &epoll), (1, value + 1));
        }
    });
}

async fn answer(mut control: Endpoint<u32>, rounds: u32) {
    let doorbell = control.async_doorbell().unwrap();
    let mut answered = 0;
    while answered < rounds {
        if control.prepare_sleep() {
            doorbell.rung().await.unwrap();
        }
        control.wake();
        while let Some((from, value)) = control.recv() {
            control.send(from, value + 1).unwrap();
            answered += 1;
        }
        control.flush();
    }
}
