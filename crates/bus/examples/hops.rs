//! What a hop over the mesh costs, beside the floor of the same run.
//!
//! ```text
//! cargo run --release -p dunlin-bus --example hops [rounds]
//! ```
//!
//! Two threads, pinned to a core each where there are two. Each figure is measured in batches,
//! bus and floor by turns; printed are the median and the best batch. On a machine with other
//! work, the best batch is what the code costs.

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
fn main() -> std::io::Result<()> {
    hops::run(std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(20_000))
}

#[cfg(not(loom))]
mod hops {
    use std::{
        hint::black_box,
        io,
        mem::MaybeUninit,
        os::fd::{AsFd, BorrowedFd, OwnedFd},
        sync::atomic::{AtomicU64, Ordering},
        thread,
        time::{Duration, Instant},
    };

    use dunlin_bus::{Endpoint, MeshConfig, RequestId, Requests, mesh};
    use rustix::event::{EventfdFlags, epoll};

    const BATCHES: usize = 15;
    /// As many as a machine with 61 workers has, to show that a hop does not mind.
    const ENDPOINTS: usize = 64;

    enum Message {
        Ping(u64),
        Ask(RequestId, u64),
        Answer(RequestId, u64),
        Stop,
    }

    pub(crate) fn run(rounds: u64) -> io::Result<()> {
        let (mut line, mut awake, mut reply) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bare, mut asleep, mut stream) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..BATCHES {
            line.push(cache_line_hop(rounds));
            awake.push(awake_hop(rounds)?);
            reply.push(request_reply(rounds)?);
            bare.push(bare_eventfd_hop(rounds / 10)?);
            asleep.push(sleeping_hop(rounds / 10)?);
            stream.push(one_way(rounds * 50)?);
        }
        println!("{:<44}{:>10}{:>10}", "ns", "median", "best");
        print("cache line there (floor), one way", &mut line);
        print("hop to an awake worker, one way", &mut awake);
        print("request, table, reply from an awake worker", &mut reply);
        print("bare eventfd and epoll (floor), one way", &mut bare);
        print("hop to a sleeping worker, one way", &mut asleep);
        print("a message in a stream", &mut stream);
        Ok(())
    }

    fn print(name: &str, batches: &mut [Duration]) {
        batches.sort();
        let [best, median] = [batches[0], batches[batches.len() / 2]];
        println!("{name:<44}{:>10}{:>10}", median.as_nanos(), best.as_nanos());
    }

    /// Two threads write one word by turns.
    fn cache_line_hop(rounds: u64) -> Duration {
        #[repr(align(128))]
        struct Line(AtomicU64);
        let word = Line(AtomicU64::new(0));
        let word = &word.0;
        let wait_for = |value: u64| {
            while word.load(Ordering::Acquire) != value {
                std::hint::spin_loop();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                for round in 0..rounds {
                    wait_for(2 * round + 1);
                    word.store(2 * round + 2, Ordering::Release);
                }
            });
            pin(0);
            let start = Instant::now();
            for round in 0..rounds {
                word.store(2 * round + 1, Ordering::Release);
                wait_for(2 * round + 2);
            }
            start.elapsed() / (2 * rounds) as u32
        })
    }

    /// Ping and pong between two threads that never sleep.
    fn awake_hop(rounds: u64) -> io::Result<Duration> {
        with_peer(spin, echo(spin), |endpoint| {
            let start = Instant::now();
            for round in 0..rounds {
                send(endpoint, 1, Message::Ping(round));
                black_box(spin(endpoint));
            }
            start.elapsed() / (2 * rounds) as u32
        })
    }

    /// The same with a table of requests and a deadline for each.
    fn request_reply(rounds: u64) -> io::Result<Duration> {
        with_peer(spin, echo(spin), |endpoint| {
            let mut requests = Requests::new(1000);
            let start = Instant::now();
            for round in 0..rounds {
                let id = requests.insert(round + 1_000, round).expect("one at a time");
                send(endpoint, 1, Message::Ask(id, round));
                let (_, Message::Answer(id, answer)) = spin(endpoint) else {
                    unreachable!("the peer answers what it is asked");
                };
                assert_eq!(requests.take(id), Some(answer - 1));
            }
            start.elapsed() / rounds as u32
        })
    }

    /// Ping and pong between two threads that sleep in `epoll_wait` whenever nothing is there.
    fn sleeping_hop(rounds: u64) -> io::Result<Duration> {
        let sleepers = || {
            let mut bed = None;
            move |endpoint: &mut Endpoint<Message>| {
                let bed = bed.get_or_insert_with(|| Bed::new(endpoint.doorbell()).expect("epoll"));
                loop {
                    if let Some(message) = endpoint.recv() {
                        return message;
                    }
                    if endpoint.prepare_sleep() {
                        bed.sleep();
                    }
                    endpoint.wake();
                }
            }
        };
        let mut receive = sleepers();
        with_peer(sleepers(), echo(sleepers()), |endpoint| {
            let start = Instant::now();
            for round in 0..rounds {
                send(endpoint, 1, Message::Ping(round));
                black_box(receive(endpoint));
            }
            start.elapsed() / (2 * rounds) as u32
        })
    }

    /// The least that can wake a thread through an event loop: one write, one `epoll_wait`.
    fn bare_eventfd_hop(rounds: u64) -> io::Result<Duration> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ours = rustix::event::eventfd(0, flags)?;
        let theirs = rustix::event::eventfd(0, flags)?;
        let ring = |bell: &OwnedFd| rustix::io::write(bell, &1u64.to_ne_bytes()).map(|_| ());
        thread::scope(|scope| {
            let peer = scope.spawn(|| {
                pin(1);
                let bed = Bed::new(theirs.as_fd())?;
                for _ in 0..rounds {
                    bed.sleep();
                    ring(&ours)?;
                }
                io::Result::Ok(())
            });
            pin(0);
            let bed = Bed::new(ours.as_fd())?;
            let start = Instant::now();
            for _ in 0..rounds {
                ring(&theirs)?;
                bed.sleep();
            }
            let elapsed = start.elapsed() / (2 * rounds) as u32;
            peer.join().expect("the peer does not panic")?;
            Ok(elapsed)
        })
    }

    /// A stream from one thread to another, both awake, flushed every 64 messages.
    fn one_way(rounds: u64) -> io::Result<Duration> {
        let count = move |endpoint: &mut Endpoint<Message>| {
            for _ in 0..rounds {
                black_box(spin(endpoint));
            }
            send(endpoint, 0, Message::Stop);
        };
        with_peer(spin, count, |endpoint| {
            let start = Instant::now();
            for round in 0..rounds {
                let mut message = Message::Ping(round);
                while let Err(refused) = endpoint.send(1, message) {
                    message = refused.into_value();
                    std::hint::spin_loop();
                }
                if round % 64 == 63 {
                    endpoint.flush();
                }
            }
            endpoint.flush();
            black_box(spin(endpoint));
            start.elapsed() / rounds as u32
        })
    }

    /// Runs `measure` on endpoint 0 while endpoint 1 does `serve` on a thread of its own; before
    /// that, once around with `receive` so that both are there.
    fn with_peer(
        mut receive: impl FnMut(&mut Endpoint<Message>) -> (usize, Message),
        serve: impl FnOnce(&mut Endpoint<Message>) + Send,
        measure: impl FnOnce(&mut Endpoint<Message>) -> Duration,
    ) -> io::Result<Duration> {
        let mut endpoints = mesh::<Message>(ENDPOINTS, &MeshConfig::default())?;
        let [ours, theirs, ..] = &mut endpoints[..] else { unreachable!("a mesh of 64") };
        Ok(thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                send(theirs, 0, Message::Ping(0));
                serve(theirs);
            });
            pin(0);
            receive(ours);
            let result = measure(ours);
            // Refused by a peer that has finished by itself; nobody listens then.
            let _ = ours.send(1, Message::Stop);
            ours.flush();
            result
        }))
    }

    /// Answers everything until it is told to stop.
    fn echo(
        mut receive: impl FnMut(&mut Endpoint<Message>) -> (usize, Message),
    ) -> impl FnOnce(&mut Endpoint<Message>) {
        move |endpoint| loop {
            match receive(endpoint) {
                (from, Message::Ping(value)) => send(endpoint, from, Message::Ping(value)),
                (from, Message::Ask(id, value)) => {
                    send(endpoint, from, Message::Answer(id, value + 1));
                }
                (_, Message::Answer(..) | Message::Stop) => return,
            }
        }
    }

    fn send(endpoint: &mut Endpoint<Message>, to: usize, message: Message) {
        endpoint.send(to, message).expect("a ring of more than one slot");
        endpoint.flush();
    }

    fn spin(endpoint: &mut Endpoint<Message>) -> (usize, Message) {
        loop {
            if let Some(message) = endpoint.recv() {
                return message;
            }
            std::hint::spin_loop();
        }
    }

    /// An epoll with one doorbell in it.
    struct Bed(OwnedFd);

    impl Bed {
        fn new(doorbell: BorrowedFd<'_>) -> io::Result<Bed> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, doorbell, epoll::EventData::new_u64(0), flags)?;
            Ok(Bed(epoll))
        }

        fn sleep(&self) {
            let mut events = [const { MaybeUninit::uninit() }; 8];
            while epoll::wait(&self.0, &mut events, None).is_err() {}
        }
    }

    /// Binds this thread to a core, if the machine has it; otherwise the scheduler decides.
    fn pin(core: usize) {
        let mut cores = rustix::thread::CpuSet::new();
        cores.set(core);
        let _ = rustix::thread::sched_setaffinity(None, &cores);
    }
}
