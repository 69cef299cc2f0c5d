//! Threads: calls from outside, workers with descriptor tables of their own, a worker that panics.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use crate::support::{Peer, TIMEOUT, run};
use dunlin_net::{
    ConnId, Context, Descriptors, EventLoop, Exit, Handler, Interest, ListenConfig, LoopConfig,
    LoopGone, Ready, Remote, Sleep, Tcp, TimerId, WorkerConfig, open_listener, remote_pair,
    spawn_workers,
};

/// Counts, and says who it is to whoever connects.
#[derive(Default)]
struct Counter {
    name: String,
    calls: Vec<u32>,
    ticks: usize,
    sleeps: usize,
    wakes: usize,
    rung: usize,
}

impl Handler for Counter {
    type Data = ();
    type Protocols = Tcp;

    fn on_open(&mut self, cx: &mut Context<()>, conn: ConnId) {
        assert!(self.name != "mortal", "mortal");
        cx.write(conn, self.name.as_bytes()).unwrap();
        cx.close(conn);
    }

    fn on_fd(&mut self, _: &mut Context<()>, token: u64, _: Ready) {
        assert_eq!(token, 99);
        self.rung += 1;
    }

    fn on_timer(&mut self, cx: &mut Context<()>, _: TimerId, _: u64) {
        cx.stop();
    }

    fn on_tick(&mut self, _: &mut Context<()>) {
        self.ticks += 1;
    }

    fn on_sleep(&mut self, _: &mut Context<()>) -> Sleep {
        self.sleeps += 1;
        if self.sleeps % 2 == 1 { Sleep::Poll } else { Sleep::Block }
    }

    fn on_wake(&mut self, _: &mut Context<()>) {
        self.wakes += 1;
    }
}

#[test]
fn calls_of_many_threads_arrive_each_in_its_order() {
    let server = run(Counter::default(), ListenConfig::tcp());
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let remote = server.remote.clone();
            std::thread::spawn(move || {
                for call in 0..1000 {
                    remote.run(move |counter, _| counter.calls.push(thread * 1000 + call)).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let calls = server.ask(|counter, _| std::mem::take(&mut counter.calls));
    for thread in 0..4 {
        let own: Vec<u32> = calls.iter().copied().filter(|call| call / 1000 == thread).collect();
        assert_eq!(own, (thread * 1000..thread * 1000 + 1000).collect::<Vec<u32>>());
    }
    let (sleeps, wakes) = server.ask(|counter, _| (counter.sleeps, counter.wakes));
    assert!(wakes <= sleeps);

    let remote = server.remote.clone();
    drop(server);
    assert_eq!(remote.run(|_, _| ()), Err(LoopGone));
}

#[test]
fn a_foreign_descriptor_is_watched_until_it_is_not() {
    let mut event_loop: EventLoop<Counter> = EventLoop::new(LoopConfig::default()).unwrap();
    let mut counter = Counter::default();
    let flags = rustix::event::EventfdFlags::empty();
    let bell = rustix::event::eventfd(0, flags).unwrap();
    event_loop.context().register_fd(bell.as_fd(), 99, Interest::READABLE).unwrap();
    for ring in 1..=3 {
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        while counter.rung < ring {
            event_loop.turn(&mut counter, Some(TIMEOUT)).unwrap();
        }
        assert_eq!(counter.rung, ring, "each ring is an edge, read or not");
    }
    event_loop.context().deregister_fd(bell.as_fd()).unwrap();
    rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
    event_loop.context().run_after(1, 0);
    event_loop.run(&mut counter).unwrap();
    assert_eq!(counter.rung, 3);
}

#[test]
fn workers_share_a_port_and_nothing_else() {
    let listen = ListenConfig { reuse_port: true, ..ListenConfig::tcp() };
    let first = open_listener("127.0.0.1:0".parse().unwrap(), &listen).unwrap();
    let addr = first.local_addr().unwrap();
    let second = open_listener(addr, &listen).unwrap();
    let pairs = [remote_pair::<Counter>().unwrap(), remote_pair::<Counter>().unwrap()];
    let mut keep = vec![first.as_raw_fd(), second.as_raw_fd()];
    keep.extend(pairs.iter().map(|(remote, _)| remote.doorbell().as_raw_fd()));
    let not_kept = std::fs::File::open("/dev/null").unwrap();
    let (remotes, inboxes): (Vec<Remote<Counter>>, Vec<_>) = pairs.into_iter().unzip();
    let listeners = [first, second];

    let inboxes: Vec<_> = inboxes.into_iter().map(|inbox| Mutex::new(Some(inbox))).collect();
    let config = WorkerConfig {
        descriptors: Descriptors::Own(keep),
        name: "w".into(),
        ..Default::default()
    };
    let probe = not_kept.as_raw_fd();
    let started = Arc::new(Barrier::new(3));
    let workers_started = Arc::clone(&started);
    let mut workers = spawn_workers(2, &config, move |index| {
        assert_eq!(std::thread::current().name(), Some(format!("w{index}").as_str()));
        let gone = std::fs::metadata(format!("/proc/thread-self/fd/{probe}")).is_err();
        assert!(gone, "what is not listed is not in the worker's table");
        let inbox = inboxes[index].lock().unwrap().take().unwrap();
        let mut event_loop = EventLoop::with_inbox(LoopConfig::default(), inbox).unwrap();
        let listener = listeners[index].try_clone().unwrap();
        event_loop.context().adopt_listener(listener, &listen).unwrap();
        let mut counter = Counter { name: format!("worker {index}"), ..Counter::default() };
        workers_started.wait();
        event_loop.run(&mut counter).unwrap();
        event_loop.context().stats().accepted
    })
    .unwrap();
    started.wait();

    let mut heard = [0u64; 2];
    while heard.contains(&0) {
        match Peer::connect(addr).hears_the_rest().as_str() {
            "worker 0" => heard[0] += 1,
            "worker 1" => heard[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    for remote in &remotes {
        remote.run(|_, cx| cx.stop()).unwrap();
    }
    while let Some((index, exit)) = workers.wait() {
        let Exit::Returned(accepted) = exit else { panic!("worker {index} {exit}") };
        assert_eq!(accepted, heard[index]);
    }
    drop(not_kept);
}

#[test]
fn a_worker_that_panics_takes_down_nobody_and_can_begin_anew() {
    let listen = ListenConfig { reuse_port: true, ..ListenConfig::tcp() };
    let mortal = open_listener("127.0.0.1:0".parse().unwrap(), &listen).unwrap();
    let other = open_listener("127.0.0.1:0".parse().unwrap(), &listen).unwrap();
    let (mortal_addr, other_addr) = (mortal.local_addr().unwrap(), other.local_addr().unwrap());
    let lives = Arc::new(AtomicUsize::new(0));
    let listeners = [mortal, other];
    let counted = Arc::clone(&lives);
    let pinned = WorkerConfig { pin: true, ..WorkerConfig::default() };
    let mut workers = spawn_workers(2, &pinned, move |index| {
        let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
        let listener = listeners[index].try_clone().unwrap();
        event_loop.context().adopt_listener(listener, &listen).unwrap();
        let reborn = index == 0 && counted.fetch_add(1, Ordering::SeqCst) > 0;
        let name = if index == 0 && !reborn { "mortal" } else { "alive" };
        event_loop.run(&mut Counter { name: name.into(), ..Counter::default() }).unwrap();
    })
    .unwrap();

    let mut victim = TcpStream::connect(mortal_addr).unwrap();
    victim.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert!(matches!(victim.read(&mut [0]), Ok(0) | Err(_)), "its connections end");
    match workers.wait() {
        Some((0, Exit::Panicked(message))) => assert_eq!(message, "mortal"),
        other => panic!("{other:?}"),
    }
    assert_eq!(Peer::connect(other_addr).hears_the_rest(), "alive");

    // The listener never closed: who comes meanwhile waits in its backlog.
    let mut survivor = Peer::connect(mortal_addr);
    workers.start(0).unwrap();
    assert_eq!(survivor.hears_the_rest(), "alive");
    assert_eq!(lives.load(Ordering::SeqCst), 2);
    assert!(workers.try_wait().is_none());
}
