//! Measures how many requests one core can send: a load generator on `net` and [`Connection`]. With `bare` as the last
//! argument, it does not parse the answers; that is the floor.
//!
//! `floor 127.0.0.1:8500 CONNECTIONS DEPTH SECONDS [bare]`

use std::io::IoSlice;
use std::time::{Duration, Instant};

use dunlin_net::{ConnId, ConnectConfig, Context, EventLoop, Handler, LoopConfig, Tcp};
use dunlin_pipeline::{Connection, ConnectionLimits, Copies, Kind, Progress};

struct Generator {
    connections: Vec<Option<Connection>>,
    copies: Copies,
    depth: u32,
    tag: u64,
    start: Instant,
    /// Bytes of an answer, if answers are not parsed.
    bare: Option<usize>,
    bytes: usize,
    answered: u64,
}

impl Generator {
    fn send(&mut self, cx: &mut Context<()>, conn: ConnId) {
        let Some(Some(connection)) = self.connections.get_mut(conn.index() as usize) else {
            return;
        };
        let count = connection.room(self.depth);
        connection.handle_sent(self.tag, count, Kind::GET, self.start.elapsed().as_nanos() as u64);
        self.tag += u64::from(count);
        self.write(cx, conn, count);
    }

    fn write(&mut self, cx: &mut Context<()>, conn: ConnId, count: u32) {
        let bytes = self.copies.slice(count);
        match cx.try_write_slices(conn, &[IoSlice::new(bytes)]) {
            Ok(taken) if taken < bytes.len() => {
                let _ = cx.write(conn, &bytes[taken..]);
            }
            _ => {}
        }
    }
}

impl Handler for Generator {
    type Data = ();
    type Protocols = Tcp;

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        let index = conn.index() as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(Connection::new(&ConnectionLimits::default()));
        self.send(cx, conn);
    }

    fn on_connect_failed(
        &mut self,
        _: &mut Context<()>,
        _: ConnId,
        (): (),
        error: &std::io::Error,
    ) {
        eprintln!("no server: {error}; start one, or give its address");
        std::process::exit(1);
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        if let Some(answer_bytes) = self.bare {
            let before = self.bytes / answer_bytes;
            self.bytes += bytes.len();
            let answers = self.bytes / answer_bytes - before;
            self.answered += answers as u64;
            return self.write(cx, conn, answers as u32);
        }
        let Some(Some(connection)) = self.connections.get_mut(conn.index() as usize) else {
            return;
        };
        let before = connection.answered();
        let progress = connection.handle_input(bytes, &mut ());
        self.answered += connection.answered() - before;
        match progress {
            Ok(Progress::Open) => self.send(cx, conn),
            Ok(_) | Err(_) => cx.close(conn),
        }
    }
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| {
        arguments.get(at).and_then(|argument| argument.parse().ok()).unwrap_or(default)
    };
    let addr = arguments.first().map_or("127.0.0.1:8500", String::as_str);
    let (connections, depth, seconds) = (number(1, 100), number(2, 16) as u32, number(3, 5));
    let request = format!("GET / HTTP/1.1\r\nHost: {addr}\r\n\r\n");
    let mut generator = Generator {
        connections: Vec::new(),
        copies: Copies::new(request.as_bytes(), depth as usize),
        depth,
        tag: 0,
        start: Instant::now(),
        bare: (arguments.last().is_some_and(|last| last == "bare")).then_some(51),
        bytes: 0,
        answered: 0,
    };
    let config = LoopConfig { receive_bytes: 256 << 10, ..LoopConfig::default() };
    let mut event_loop = EventLoop::new(config)?;
    for _ in 0..connections {
        let addr = addr.parse().expect("address:port");
        event_loop.context().connect(addr, &ConnectConfig::default())?;
    }
    while generator.start.elapsed() < Duration::from_secs(seconds as u64) {
        event_loop.turn(&mut generator, Some(Duration::from_millis(100)))?;
    }
    let per_second = generator.answered as f64 / generator.start.elapsed().as_secs_f64();
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let per_cpu_second = generator.answered as f64 / (cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9);
    println!(
        "{per_second:.0} answers/s, {per_cpu_second:.0} per second of CPU, over {connections} connections with {depth} \
         in flight on each"
    );
    let stats = event_loop.context().stats();
    println!(
        "{:.1} answers a read, {:.2} reads a turn, {:.2} writes a read",
        generator.answered as f64 / stats.reads as f64,
        stats.reads as f64 / stats.turns as f64,
        stats.writes as f64 / stats.reads as f64
    );
    Ok(())
}
