//! A loop in a thread of its own, and peers that say their lines with blocking sockets.
#![allow(clippy::unwrap_used, reason = "a peer that does not play its part fails the test")]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "a module of tests has no outside")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use dunlin_net::{Context, EventLoop, Handler, ListenConfig, LoopConfig, Remote};

/// What a test waits for at most before it fails. No test passes by waiting.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A handler at work on a listener, until dropped.
pub struct Running<H: Handler> {
    pub addr: SocketAddr,
    pub remote: Remote<H>,
    thread: Option<JoinHandle<()>>,
}

pub fn run<H: Handler + Send + 'static>(handler: H, listen: ListenConfig) -> Running<H> {
    run_with(handler, LoopConfig::default(), listen)
}

pub fn run_with<H: Handler + Send + 'static>(
    mut handler: H,
    config: LoopConfig,
    listen: ListenConfig,
) -> Running<H> {
    let (remote, inbox) = dunlin_net::remote_pair().unwrap();
    let (ready, started) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut event_loop = EventLoop::with_inbox(config, inbox).unwrap();
        let cx = event_loop.context();
        let listener = cx.listen("127.0.0.1:0".parse().unwrap(), &listen).unwrap();
        ready.send(cx.listener_addr(listener).unwrap()).unwrap();
        event_loop.run(&mut handler).unwrap();
    });
    Running { addr: started.recv().unwrap(), remote, thread: Some(thread) }
}

impl<H: Handler> Running<H> {
    pub fn connect(&self) -> Peer {
        Peer::connect(self.addr)
    }

    /// Asks the loop something and waits for the answer.
    pub fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut H, &mut Context<H::Data>) -> T + Send + 'static,
    ) -> T {
        let (reply, answer) = mpsc::channel();
        self.remote
            .run(move |handler, cx| reply.send(question(handler, cx)).unwrap())
            .expect("the loop runs");
        answer.recv_timeout(TIMEOUT).expect("the loop turns")
    }

    /// Asks the loop again and again until it is so.
    pub fn until(
        &self,
        so: impl Fn(&mut H, &mut Context<H::Data>) -> bool + Clone + Send + 'static,
    ) {
        let begun = std::time::Instant::now();
        loop {
            if self.ask(so.clone()) {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "it did not come about");
            std::thread::yield_now();
        }
    }
}

impl<H: Handler> Drop for Running<H> {
    fn drop(&mut self) {
        let _ = self.remote.run(|_, cx| cx.stop());
        let result = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            result.unwrap().expect("the loop ended in order");
        }
    }
}

/// One end of a dialogue, with a blocking socket.
pub struct Peer {
    pub stream: TcpStream,
}

impl Peer {
    pub fn connect(addr: SocketAddr) -> Peer {
        Peer::from(TcpStream::connect(addr).unwrap())
    }

    pub fn says(&mut self, bytes: impl AsRef<[u8]>) -> &mut Peer {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// The next bytes, as many as `expected` has, are these.
    pub fn hears(&mut self, expected: impl AsRef<[u8]>) -> &mut Peer {
        let expected = expected.as_ref();
        let mut heard = vec![0; expected.len()];
        self.stream.read_exact(&mut heard).unwrap();
        assert_eq!(String::from_utf8_lossy(&heard), String::from_utf8_lossy(expected));
        self
    }

    /// An HTTP response: its status line and headers without `Date`, and its body by `Content-Length`.
    pub fn hears_response(&mut self) -> (String, String) {
        let head = self.hears_head();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    /// The head of an HTTP response, without `Date`.
    pub fn hears_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            assert_eq!(self.stream.read(&mut byte).unwrap(), 1, "closed in the middle of a head");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let lines: Vec<&str> =
            head.trim_end().lines().filter(|line| !line.starts_with("Date: ")).collect();
        lines.join("\n")
    }

    pub fn finishes(&mut self) -> &mut Peer {
        self.stream.shutdown(Shutdown::Write).unwrap();
        self
    }

    /// Everything until the other end finishes.
    pub fn hears_the_rest(&mut self) -> String {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
        String::from_utf8(rest).unwrap()
    }

    /// FIN, and nothing before it.
    pub fn hears_the_end(&mut self) {
        assert_eq!(self.hears_the_rest(), "");
    }
}

impl From<TcpStream> for Peer {
    fn from(stream: TcpStream) -> Peer {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Peer { stream }
    }
}
