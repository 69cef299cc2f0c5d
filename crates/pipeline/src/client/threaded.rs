//! A client in a thread of its own, for those who live elsewhere: a blocking program, a thread with another loop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use dunlin_net::{Context, EventLoop, LoopConfig, Remote};

use super::{
    BadUrl, Caller, Client, ClientConfig, HostConfig, HostId, Outcome, Prepared, Refused, Request,
    RequestError, RequestId, Requests,
};

/// How a request sent by a [`ThreadedClient`] ended: an [`Outcome`] that owns what it holds.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The server has answered it.
    Answered {
        /// The status code.
        status: u16,
        /// The body, when it was gathered.
        body: Vec<u8>,
    },
    /// It had no effect.
    NotSent(RequestError),
    /// It has no valid answer.
    Failed(RequestError),
    /// Nobody knows whether it was processed.
    Uncertain(RequestError),
}

type Done = Box<dyn FnOnce(Delivery) + Send>;

/// A [`Client`] in a thread of its own. Its hosts are added by URL; each request comes with what to do when it has
/// ended, which is called in that thread, once, and must not block there: send to a channel, wake a task. Dropping
/// it ends what is outstanding as [`Client::shutdown`] does.
///
/// ```no_run
/// use dunlin_pipeline::{ClientConfig, ThreadedClient, Delivery, HostConfig, Request};
///
/// let client = ThreadedClient::start(ClientConfig::default(), 1000)?;
/// let backend = client.host("http://127.0.0.1:3000", HostConfig::default()).expect("a URL");
/// let hook = client.prepare("127.0.0.1:3000", &Request::post("/hook", b"{}"));
/// client.send(backend, hook, |delivery| match delivery {
///     Delivery::Answered { status, .. } => println!("{status}"),
///     Delivery::NotSent(error) | Delivery::Failed(error) | Delivery::Uncertain(error) => println!("{error}"),
/// }).expect("fewer than a thousand are outstanding");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ThreadedClient {
    remote: Remote<Client<Deliveries>>,
    /// Requests taken and not ended; the queue into the thread has no other bound.
    outstanding: Arc<AtomicUsize>,
    outstanding_max: usize,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// The caller of a client's client: what to do with each request, by its tag.
#[derive(Default)]
struct Deliveries {
    places: Vec<Option<Done>>,
    free: Vec<u64>,
    outstanding: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Deliveries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deliveries").field("outstanding", &self.outstanding).finish_non_exhaustive()
    }
}

impl ThreadedClient {
    /// Starts the thread. At most `outstanding_max` requests are taken and not ended at any time.
    ///
    /// # Errors
    ///
    /// No descriptor for the loop, or no thread.
    pub fn start(config: ClientConfig, outstanding_max: usize) -> io::Result<ThreadedClient> {
        let outstanding = Arc::new(AtomicUsize::new(0));
        let (remote, inbox) = dunlin_net::remote_pair()?;
        let deliveries =
            Deliveries { outstanding: Arc::clone(&outstanding), ..Deliveries::default() };
        let thread =
            std::thread::Builder::new().name("http-client".to_owned()).spawn(move || {
                let mut event_loop = EventLoop::with_inbox(LoopConfig::default(), inbox)?;
                event_loop.run(&mut Client::new(config, deliveries))
            })?;
        Ok(ThreadedClient { remote, outstanding, outstanding_max, thread: Some(thread) })
    }

    /// Adds a host by its URL. Waits for the thread, a turn of its loop at most.
    ///
    /// # Errors
    ///
    /// [`BadUrl`].
    pub fn host(&self, url: &str, config: HostConfig) -> Result<HostId, BadUrl> {
        let (reply, added) = mpsc::channel();
        let url = url.to_owned();
        let _ = self.remote.run(move |client, _| {
            let _ = reply.send(client.requests().host(&url, config));
        });
        // The thread lives as long as this handle; one that panicked knows no host.
        added.recv().unwrap_or(Err(BadUrl::Host))
    }

    /// Renders a request for a host of this authority (`name:port`).
    pub fn prepare(&self, authority: &str, request: &Request<'_>) -> Prepared {
        Prepared::new(authority, request)
    }

    /// Sends a request; `done` is called once, when it has ended.
    ///
    /// # Errors
    ///
    /// [`Refused::Full`] while `outstanding_max` requests are outstanding, [`Refused::Closing`] when the thread is
    /// gone. `done` is then not called.
    pub fn send(
        &self,
        host: HostId,
        request: Prepared,
        done: impl FnOnce(Delivery) + Send + 'static,
    ) -> Result<(), Refused> {
        let taken = self.outstanding.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (taken < self.outstanding_max).then_some(taken + 1)
        });
        taken.map_err(|_| Refused::Full)?;
        let sent = self.remote.run(move |client, _| {
            let tag = client.caller().keep(Box::new(done));
            let mut requests = client.requests();
            match requests.send(host, &request, tag) {
                Ok(_) => {}
                Err(refused) => {
                    let error = requests.refusal(host, refused);
                    client.caller().deliver(tag, Delivery::NotSent(error));
                }
            }
        });
        sent.map_err(|_| {
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
            Refused::Closing
        })
    }

    /// Requests taken and not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }
}

impl Drop for ThreadedClient {
    fn drop(&mut self) {
        let _ = self.remote.run(|client, cx| {
            client.shutdown(cx);
            cx.stop();
        });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Deliveries {
    fn keep(&mut self, done: Done) -> u64 {
        match self.free.pop() {
            Some(tag) => {
                self.places[tag as usize] = Some(done);
                tag
            }
            None => {
                self.places.push(Some(done));
                self.places.len() as u64 - 1
            }
        }
    }

    fn deliver(&mut self, tag: u64, delivery: Delivery) {
        if let Some(done) = self.places.get_mut(tag as usize).and_then(Option::take) {
            self.free.push(tag);
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
            done(delivery);
        }
    }
}

impl Caller for Deliveries {
    type Data = ();

    fn on_outcome(
        &mut self,
        _: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        tag: u64,
        outcome: &Outcome<'_>,
    ) {
        let delivery = match outcome {
            Outcome::Answered(answer) => {
                Delivery::Answered { status: answer.status, body: answer.body.to_vec() }
            }
            Outcome::NotSent(error) => Delivery::NotSent(error.clone()),
            Outcome::Failed(error) => Delivery::Failed(error.clone()),
            Outcome::Uncertain(error) => Delivery::Uncertain(error.clone()),
        };
        self.deliver(tag, delivery);
    }
}
