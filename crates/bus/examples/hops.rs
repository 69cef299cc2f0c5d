//! What a hop over the mesh costs, beside the floor of the same run.
//!
//! ```text
//! cargo run --release -p dunlin-bus --example hops [turns]
//! ```
//!
//! Two threads, pinned to a core each where there are two. Every figure is the mean of a short
//! batch; printed are the median batch, the best tenth, and the best. Floors and bus are measured
//! by turns. On a machine with other work, batches shorter than a time slice are what passes
//! undisturbed, so there the best tenth says what the code costs and the median says how busy the
//! machine is.

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
fn main() -> std::io::Result<()> {
    hops::run(std::env::args().nth(1).and_then(|turns| turns.parse().ok()).unwrap_or(20))
}

#[cfg(not(loom))]
mod hops {
    use std::{
        hint::{black_box, spin_loop},
        io,
        mem::MaybeUninit,
        os::fd::{AsFd, BorrowedFd, OwnedFd},
        sync::atomic::{AtomicU64, Ordering},
        thread,
        time::{Duration, Instant},
    };

    use dunlin_bus::{Endpoint, MeshConfig, RequestId, Requests, mesh};
    use rustix::event::{EventfdFlags, epoll};

    /// As many as a machine with 61 workers has, to show that a hop does not mind.
    const ENDPOINTS: usize = 64;
    /// Batches in a turn.
    const BATCHES: usize = 50;
    /// Rounds in a batch between threads that are awake: some 100 µs.
    const AWAKE_ROUNDS: u32 = 500;
    /// Rounds in a batch between threads that sleep: some 1 ms.
    const SLEEPING_ROUNDS: u32 = 20;
    /// Messages in a batch of the stream, and between two flushes of it.
    const STREAM_MESSAGES: u32 = 5_000;
    const STREAM_FLUSH: u32 = 64;

    enum Message {
        Ping(u64),
        Ask(RequestId, u64),
        Answer(RequestId, u64),
        Stream { last: bool },
        Stop,
    }

    type Batches = Vec<Duration>;
    type Measure = fn() -> io::Result<Batches>;
    type Received = (usize, Message);

    pub(crate) fn run(turns: usize) -> io::Result<()> {
        let figures: [(&str, Measure); 6] = [
            ("cache line there (floor), one way", cache_line_hop),
            ("hop to an awake worker, one way", awake_hop),
            ("request, table, reply from an awake worker", request_reply),
            ("a message in a stream, both awake", stream),
            ("bare eventfd and epoll (floor), one way", bare_eventfd_hop),
            ("hop to a sleeping worker, one way", sleeping_hop),
        ];
        let mut measured = figures.map(|_| Batches::new());
        for _ in 0..turns.max(1) {
            for ((_, measure), batches) in figures.iter().zip(&mut measured) {
                batches.extend(measure()?);
            }
        }
        println!("{:<44}{:>10}{:>10}{:>10}", "ns", "median", "tenth", "best");
        for ((name, _), mut batches) in figures.iter().zip(measured) {
            batches.sort();
            let [median, tenth, best] =
                [batches.len() / 2, batches.len() / 10, 0].map(|at| batches[at].as_nanos());
            println!("{name:<44}{median:>10}{tenth:>10}{best:>10}");
        }
        Ok(())
    }

    /// Two threads write one word by turns.
    fn cache_line_hop() -> io::Result<Batches> {
        #[repr(align(128))]
        struct Line(AtomicU64);
        const ROUNDS: u64 = AWAKE_ROUNDS as u64 * BATCHES as u64;
        let line = Line(AtomicU64::new(0));
        let word = &line.0;
        let wait_for = |value: u64| {
            while word.load(Ordering::Acquire) != value {
                spin_loop();
            }
        };
        Ok(thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                for round in 0..ROUNDS {
                    wait_for(2 * round + 1);
                    word.store(2 * round + 2, Ordering::Release);
                }
            });
            pin(0);
            let mut round = 0;
            batches(2 * AWAKE_ROUNDS, || {
                for _ in 0..AWAKE_ROUNDS {
                    word.store(2 * round + 1, Ordering::Release);
                    wait_for(2 * round + 2);
                    round += 1;
                }
            })
        }))
    }

    /// Ping and pong between two threads that never sleep.
    fn awake_hop() -> io::Result<Batches> {
        with_peer(spin, |endpoint| {
            batches(2 * AWAKE_ROUNDS, || {
                for round in 0..AWAKE_ROUNDS {
                    send(endpoint, 1, Message::Ping(round.into()));
                    black_box(spin(endpoint));
                }
            })
        })
    }

    /// There and back, with a table of requests and a deadline for each.
    fn request_reply() -> io::Result<Batches> {
        with_peer(spin, |endpoint| {
            let mut requests = Requests::new(1000);
            batches(AWAKE_ROUNDS, || {
                for round in 0..u64::from(AWAKE_ROUNDS) {
                    let id = requests.insert(round + 1_000, round).expect("one at a time");
                    send(endpoint, 1, Message::Ask(id, round));
                    let (_, Message::Answer(id, answer)) = spin(endpoint) else {
                        unreachable!("the peer answers what it is asked");
                    };
                    assert_eq!(requests.take(id), Some(answer - 1));
                }
            })
        })
    }

    /// As many messages as the ring takes, to a thread that is awake.
    fn stream() -> io::Result<Batches> {
        with_peer(spin, |endpoint| {
            batches(STREAM_MESSAGES, || {
                for left in (0..STREAM_MESSAGES).rev() {
                    let mut message = Message::Stream { last: left == 0 };
                    while let Err(refused) = endpoint.send(1, message) {
                        message = refused.into_value();
                        spin_loop();
                    }
                    if left % STREAM_FLUSH == 0 {
                        endpoint.flush();
                    }
                }
                black_box(spin(endpoint));
            })
        })
    }

    /// The least that can wake a thread through an event loop: one write, one `epoll_wait`.
    fn bare_eventfd_hop() -> io::Result<Batches> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ours = rustix::event::eventfd(0, flags)?;
        let theirs = rustix::event::eventfd(0, flags)?;
        let ring = |bell: &OwnedFd| {
            rustix::io::write(bell, &1u64.to_ne_bytes()).expect("an eventfd of ours");
        };
        let our_bed = Bed::new(ours.as_fd())?;
        let their_bed = Bed::new(theirs.as_fd())?;
        Ok(thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                for _ in 0..SLEEPING_ROUNDS as usize * BATCHES {
                    their_bed.sleep();
                    ring(&ours);
                }
            });
            pin(0);
            batches(2 * SLEEPING_ROUNDS, || {
                for _ in 0..SLEEPING_ROUNDS {
                    ring(&theirs);
                    our_bed.sleep();
                }
            })
        }))
    }

    /// Ping and pong between two threads that sleep in `epoll_wait` whenever nothing is there.
    fn sleeping_hop() -> io::Result<Batches> {
        let sleeper = || {
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
        let mut receive = sleeper();
        with_peer(sleeper(), |endpoint| {
            batches(2 * SLEEPING_ROUNDS, || {
                for round in 0..SLEEPING_ROUNDS {
                    send(endpoint, 1, Message::Ping(round.into()));
                    black_box(receive(endpoint));
                }
            })
        })
    }

    /// Means over `count` of what `batch` does, after one batch to warm up.
    fn batches(count: u32, mut batch: impl FnMut()) -> Batches {
        (0..BATCHES)
            .map(|_| {
                let start = Instant::now();
                batch();
                start.elapsed() / count
            })
            .skip(1)
            .collect()
    }

    /// Runs `measure` on endpoint 0 while a thread answers on endpoint 1, receiving with
    /// `receive`.
    fn with_peer(
        receive: impl FnMut(&mut Endpoint<Message>) -> Received + Send,
        measure: impl FnOnce(&mut Endpoint<Message>) -> Batches,
    ) -> io::Result<Batches> {
        let mut endpoints = mesh(ENDPOINTS, &MeshConfig::default())?;
        let [ours, theirs, ..] = &mut endpoints[..] else { unreachable!("a mesh of 64") };
        Ok(thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                answer(theirs, receive);
            });
            pin(0);
            let result = measure(ours);
            send(ours, 1, Message::Stop);
            result
        }))
    }

    /// Answers everything until it is told to stop.
    fn answer(
        endpoint: &mut Endpoint<Message>,
        mut receive: impl FnMut(&mut Endpoint<Message>) -> Received,
    ) {
        loop {
            match receive(endpoint) {
                (from, Message::Ping(value)) => send(endpoint, from, Message::Ping(value)),
                (from, Message::Ask(id, value)) => {
                    send(endpoint, from, Message::Answer(id, value + 1));
                }
                (from, Message::Stream { last: true }) => send(endpoint, from, Message::Stop),
                (_, Message::Stream { last: false }) => {}
                (_, Message::Answer(..) | Message::Stop) => return,
            }
        }
    }

    fn send(endpoint: &mut Endpoint<Message>, to: usize, message: Message) {
        endpoint.send(to, message).expect("a ring of more than one slot");
        endpoint.flush();
    }

    fn spin(endpoint: &mut Endpoint<Message>) -> Received {
        loop {
            if let Some(message) = endpoint.recv() {
                return message;
            }
            spin_loop();
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
