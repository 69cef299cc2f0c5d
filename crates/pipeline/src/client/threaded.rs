//! A client in its own thread, for a blocking program, an async runtime, or another loop.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread::JoinHandle;

use dunlin_net::{Context, EventLoop, LoopConfig, Remote, Url, UrlError};

use super::outcome::Effect;
use super::{
    Caller, Client, ClientConfig, ErrorKind, HostConfig, HostId, Outcome, Prepared, Request,
    RequestError, RequestId, Requests, SendError,
};

/// A complete answer that owns its bytes.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The bytes of the head, from the status line to the empty line.
    pub head: Vec<u8>,
    /// The body, if it was gathered.
    pub body: Vec<u8>,
    /// Nanoseconds in the client's own queues.
    pub queue_ns: u64,
    /// Nanoseconds from writing the request to the last byte of the answer.
    pub service_ns: u64,
}

impl Response {
    /// Returns the value of the first header with this name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        crate::head::header(&self.head, name)
    }
}

/// The result of a request: an answer, or an error with its cause and possible effect.
pub type Result<T> = std::result::Result<T, RequestError>;

type Done = Box<dyn FnOnce(Result<Response>) + Send>;

/// Why a [`ThreadedClient`] does not accept a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The URL is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The client's thread has ended: its event loop failed, or a `done` panicked.
    #[error("the client's thread has ended; let no `done` panic, and start another client")]
    Ended,
}

/// A [`Client`] in its own thread. [`send`](ThreadedClient::send) takes a callback for the outcome,
/// [`call`](ThreadedClient::call) returns a future. Dropping the client ends outstanding requests like
/// [`Client::shutdown`].
///
/// ```no_run
/// use dunlin_pipeline::{ClientConfig, HostConfig, Request, ThreadedClient};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = ThreadedClient::start(ClientConfig::default(), 1000)?;
/// let backend = client.host("http://127.0.0.1:3000", HostConfig::default())?;
/// let response = client.call(backend, &Request::post("/hook", b"{}")).await?;
/// println!("{} {:?}", response.status, response.header("content-type"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ThreadedClient {
    remote: Remote<Client<Deliveries>>,
    /// The URL of each host.
    hosts: Mutex<Vec<Url>>,
    /// Accepted requests that have not ended. This is the only limit of the queue into the thread.
    outstanding: Arc<AtomicUsize>,
    outstanding_max: usize,
    thread: Option<JoinHandle<()>>,
}

/// The caller of the thread's client: the callback of each request, by tag.
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
    /// Starts the thread. At most `outstanding_max` requests are outstanding at any time.
    ///
    /// # Errors
    ///
    /// Returns an error if the event loop gets no file descriptor or the thread cannot be started.
    pub fn start(config: ClientConfig, outstanding_max: usize) -> io::Result<ThreadedClient> {
        let outstanding = Arc::new(AtomicUsize::new(0));
        let (remote, inbox) = dunlin_net::remote_pair()?;
        let deliveries =
            Deliveries { outstanding: Arc::clone(&outstanding), ..Deliveries::default() };
        let (begun, begins) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name("http-client".to_owned()).spawn(move || {
                let event_loop = EventLoop::with_inbox(LoopConfig::default(), inbox);
                let mut event_loop = match event_loop {
                    Ok(event_loop) => event_loop,
                    Err(error) => return drop(begun.send(Err(error))),
                };
                // `start` waits for this message.
                let _ = begun.send(Ok(()));
                // The loop ends when the client is dropped. If it fails, the next request reports it.
                let _ = event_loop.run(&mut Client::new(config, deliveries));
            })?;
        begins.recv().unwrap_or_else(|_| Err(io::Error::other("the client's thread panicked")))?;
        let (hosts, thread) = (Mutex::default(), Some(thread));
        Ok(ThreadedClient { remote, hosts, outstanding, outstanding_max, thread })
    }

    /// Adds a host by URL. Waits for at most one turn of the thread's loop.
    ///
    /// # Errors
    ///
    /// Returns [`HostError`] if the URL is invalid or the thread has ended.
    pub fn host(&self, url: &str, config: HostConfig) -> std::result::Result<HostId, HostError> {
        let parsed: Url = url.parse()?;
        let (reply, added) = mpsc::channel();
        let (url, mut hosts) = (url.to_owned(), self.lock_hosts());
        let _ = self.remote.run(move |client, _| {
            let _ = reply.send(client.requests().host(&url, config));
        });
        let id = added.recv().map_err(|_| HostError::Ended)??;
        hosts.truncate(id.0 as usize);
        hosts.push(parsed);
        Ok(id)
    }

    /// Renders a request for a host. It can be sent any number of times.
    ///
    /// # Panics
    ///
    /// Panics if this client has no such host.
    pub fn prepare(&self, host: HostId, request: &Request<'_>) -> Prepared {
        let authority = self.lock_hosts().get(host.0 as usize).map(|url| url.authority.clone());
        Prepared::new(&authority.expect(HostId::FOREIGN), request)
    }

    /// Sends a request. `done` is called once in the client's thread when the request has ended; it must not block.
    ///
    /// # Errors
    ///
    /// [`SendError::Outstanding`] if `outstanding_max` requests are outstanding, [`SendError::Closing`] if the thread
    /// has ended. `done` is then not called. If the queue of the host is full, or this client has no such host,
    /// `done` is called with the error.
    pub fn send(
        &self,
        host: HostId,
        request: Prepared,
        done: impl FnOnce(Result<Response>) + Send + 'static,
    ) -> std::result::Result<(), SendError> {
        let taken = self.outstanding.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (taken < self.outstanding_max).then_some(taken + 1)
        });
        taken.map_err(|_| SendError::Outstanding)?;
        let sent = self.remote.run(move |client, _| {
            let tag = client.caller().keep(Box::new(done));
            let mut requests = client.requests();
            if let Err(error) = requests.send(host, &request, tag) {
                let error = requests.send_error(host, error);
                client.caller().deliver(tag, Err(error));
            }
        });
        sent.map_err(|_| {
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
            SendError::Closing
        })
    }

    /// Sends a request and returns a future of its answer, for any runtime. Dropping the future does not cancel the
    /// request.
    ///
    /// # Panics
    ///
    /// Panics if this client has no such host.
    pub fn call(&self, host: HostId, request: &Request<'_>) -> Call {
        let state = Arc::new(Mutex::new(CallState::Waiting(None)));
        let done = Arc::clone(&state);
        let sent = self.send(host, self.prepare(host, request), move |result| end(&done, result));
        if let Err(error) = sent {
            let name =
                self.lock_hosts().get(host.0 as usize).map_or_else(String::new, Url::to_string);
            let kind = ErrorKind::from(error);
            let error = RequestError {
                host: name.into(),
                request: RequestId(0),
                kind,
                effect: Effect::None,
            };
            end(&state, Err(error));
        }
        Call { state }
    }

    /// Returns the number of accepted requests that have not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    fn lock_hosts(&self) -> std::sync::MutexGuard<'_, Vec<Url>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn deliver(&mut self, tag: u64, result: Result<Response>) {
        if let Some(done) = self.places.get_mut(tag as usize).and_then(Option::take) {
            self.free.push(tag);
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
            done(result);
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
        let result = match outcome {
            Outcome::Answered(answer) => Ok(Response {
                status: answer.status,
                head: answer.head.bytes.to_vec(),
                body: answer.body.to_vec(),
                queue_ns: answer.queue_ns,
                service_ns: answer.service_ns,
            }),
            Outcome::NotSent(error) | Outcome::Failed(error) | Outcome::Uncertain(error) => {
                Err(error.clone())
            }
        };
        self.deliver(tag, result);
    }
}

/// An outstanding request of a [`ThreadedClient`]: a future of its answer.
#[derive(Debug)]
#[must_use = "the request has left, but nobody waits for its answer"]
pub struct Call {
    state: Arc<Mutex<CallState>>,
}

#[derive(Debug)]
enum CallState {
    Waiting(Option<Waker>),
    Ended(Option<Box<Result<Response>>>),
}

fn end(state: &Mutex<CallState>, result: Result<Response>) {
    let ended = CallState::Ended(Some(Box::new(result)));
    let before =
        std::mem::replace(&mut *state.lock().unwrap_or_else(PoisonError::into_inner), ended);
    if let CallState::Waiting(Some(waker)) = before {
        waker.wake();
    }
}

impl Future for Call {
    type Output = Result<Response>;

    /// # Panics
    ///
    /// Panics if it is polled after it returned `Ready`.
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Result<Response>> {
        match &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            CallState::Ended(result) => Poll::Ready(*result.take().expect("polled when ready")),
            CallState::Waiting(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
