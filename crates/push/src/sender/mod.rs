//! The sender: a queue, a pool of connections, and one outcome for every request.

#![allow(
    clippy::boxed_local,
    clippy::vec_box,
    reason = "a job moves from queue to batch to connection and back: its address, not its 300 bytes"
)]

pub(crate) mod concurrency;
mod connection;
mod job;
mod metrics;
mod pool;
mod queue;
mod refused_row;
mod scale;
mod trace;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout_at;

use self::job::{Job, Reply};
pub use self::metrics::{Binding, ConnectionMetrics, SenderMetrics};
use self::pool::{Pool, Shared};
use self::trace::Trace;
use crate::connect::Connect;
use crate::outcome::{NotSent, Outcome};
use crate::request::Request;
use crate::service::Service;

/// An attempt to connect is reported as an error after it has waited for this time.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Limits, timeouts and connections of a sender.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The name of the credential in logs and traces; empty: the service's authority.
    pub name: Arc<str>,
    /// The number of main connections. One more is opened for suspects if there are any.
    pub connections: Connections,
    /// Most bytes of requests that are queued or in flight. Further submissions wait for room.
    pub queue_bytes_max: usize,
    /// Time limit of a response. Afterwards a request ends as uncertain even before its deadline, because it occupies
    /// a stream of the connection, which may have only one.
    pub answer_within: Duration,
    /// After this time without input, a connection with outstanding responses is sent a PING. It is closed if the
    /// response to the PING does not arrive within the same time, or if it accepts no output for twice this time.
    /// Requests that were sent completely are then uncertain; all others are sent on another connection.
    pub silence: Duration,
    /// Time limit for requests in flight after the sender is closed.
    pub drain: Duration,
}

/// The number of main connections of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// As many as increase the throughput.
    Auto {
        /// The maximum.
        max: usize,
    },
    /// A fixed number, from the start.
    Fixed(usize),
}

impl Default for SenderConfig {
    fn default() -> SenderConfig {
        SenderConfig {
            name: Arc::default(),
            connections: Connections::Auto { max: 64 },
            queue_bytes_max: 64 << 20,
            answer_within: Duration::from_secs(30),
            silence: Duration::from_secs(10),
            drain: Duration::from_secs(10),
        }
    }
}

/// Sends requests to one service with one credential. Clones share the sender; dropping the last one closes it.
#[derive(Debug)]
pub struct Sender<S: Service> {
    shared: Arc<Shared<S>>,
}

/// The end of a channel to which [`Sender::submit`] reports outcomes.
#[derive(Clone, Debug)]
pub struct Results(mpsc::UnboundedSender<(u64, Outcome)>);

/// A [`Stream`] of outcomes, each with the tag of its request. It holds at most as many as were submitted, which the
/// queues of the senders limit.
#[derive(Debug)]
pub struct ResultStream(mpsc::UnboundedReceiver<(u64, Outcome)>);

/// Creates a channel of outcomes.
pub fn results() -> (Results, ResultStream) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Results(sender), ResultStream(receiver))
}

impl Results {
    /// Reports an outcome that was determined without a sender, so that all outcomes of a batch arrive in one place.
    pub fn send(&self, tag: u64, outcome: Outcome) {
        // The receiver may have been dropped.
        let _ = self.0.send((tag, outcome));
    }
}

impl ResultStream {
    /// Returns the next outcome; `None` once every [`Results`] is dropped and every request has ended.
    pub async fn recv(&mut self) -> Option<(u64, Outcome)> {
        self.0.recv().await
    }

    /// Returns the next outcome, if one has arrived.
    pub fn try_recv(&mut self) -> Option<(u64, Outcome)> {
        self.0.try_recv().ok()
    }
}

impl Stream for ResultStream {
    type Item = (u64, Outcome);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

impl<S: Service> Sender<S> {
    /// Starts a sender on the current `tokio` runtime. It opens its first connection for the first request, or at
    /// once with a fixed number of connections.
    ///
    /// # Panics
    ///
    /// Panics outside of a `tokio` runtime.
    pub fn start(service: S, dial: impl Connect, config: SenderConfig) -> Sender<S> {
        let shared = Arc::new(Shared::new(service, config));
        tokio::spawn(Pool::new(shared.clone(), Arc::new(dial)).run());
        Sender { shared }
    }

    /// Returns the service it sends to.
    pub fn service(&self) -> &S {
        &self.shared.service
    }

    /// Sends a request: waits for room, then for the outcome.
    pub async fn send(&self, request: Request) -> Outcome {
        let (sender, receiver) = oneshot::channel();
        self.put(request, Reply::One(sender)).await;
        // A job reports its outcome even when it is dropped.
        receiver.await.unwrap_or(Outcome::NotSent(NotSent::Closed))
    }

    /// Queues a request; waits only for room in the queue. Its outcome is reported with `tag`.
    pub async fn submit(&self, request: Request, tag: u64, results: &Results) {
        self.put(request, Reply::Tagged(tag, results.0.clone())).await;
    }

    async fn put(&self, request: Request, reply: Reply) {
        let permits = permits(&request);
        let shared = &self.shared;
        if permits as usize > shared.config.queue_bytes_max {
            let why = format!("a request of {permits} bytes is larger than the whole queue");
            return reply.send(Outcome::NotSent(NotSent::Invalid(why)));
        }
        let room = shared.room.clone();
        let permit = match room.clone().try_acquire_many_owned(permits) {
            Ok(permit) => permit,
            Err(_) => match timeout_at(request.deadline, room.acquire_many_owned(permits)).await {
                Ok(Ok(permit)) => permit,
                Ok(Err(_)) => return reply.send(Outcome::NotSent(NotSent::Closed)),
                Err(_) => return reply.send(Outcome::NotSent(shared.lateness())),
            },
        };
        self.queue(Job::new(request, reply, permit));
    }

    fn queue(&self, mut job: Box<Job>) {
        job.trace = Trace::begin(&self.shared.service, &self.shared.config.name, &job.request);
        self.shared.stats.submitted.fetch_add(1, Relaxed);
        self.shared.queue().push(job);
        self.shared.wake_idle();
    }

    /// Returns why there is no connection.
    #[cfg(feature = "fcm")]
    pub(crate) fn obstacle(&self) -> Option<crate::connect::ConnectError> {
        self.shared.obstacle(Duration::ZERO)
    }

    /// Returns the current figures of the queue, the connections and the outcomes.
    pub fn metrics(&self) -> SenderMetrics {
        let shared = &self.shared;
        let stats = &shared.stats;
        let connect_error = shared.obstacle(SHOWN_AFTER);
        let (queued, ended) = {
            let queue = shared.queue();
            (queue.len(), queue.ended())
        };
        let links = shared.links.lock().unwrap_or_else(PoisonError::into_inner);
        let response_times = stats.response_times.snapshot();
        let quantile_s = |share| response_times.quantile_ns(share).map(|ns| ns as f64 / 1e9);
        SenderMetrics {
            answered: stats.answered.load(Relaxed),
            answer_p50_s: quantile_s(0.5),
            answer_p99_s: quantile_s(0.99),
            response_times,
            queued,
            queued_bytes: shared.config.queue_bytes_max - shared.room.available_permits(),
            submitted: stats.submitted.load(Relaxed),
            accepted: stats.accepted.load(Relaxed),
            rejected: stats.rejected.load(Relaxed) + ended.rejected,
            not_sent: stats.not_sent.load(Relaxed) + ended.not_sent,
            uncertain: stats.uncertain.load(Relaxed) + ended.uncertain,
            retried: stats.retried.load(Relaxed),
            refused: stats.refused.load(Relaxed),
            resent: stats.resent.load(Relaxed),
            opened: stats.opened.load(Relaxed),
            failed: stats.failed.load(Relaxed),
            lost: stats.lost.load(Relaxed),
            lost_error: shared.lost_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            connect_error,
            connections: links.iter().map(|link| link.metrics()).collect(),
        }
    }

    /// Closes the sender: queued requests end as not sent, requests in flight have [`SenderConfig::drain`] to be
    /// answered. Returns at once.
    pub fn close(&self) {
        self.shared.closing.store(true, Relaxed);
        self.shared.wake();
    }
}

/// Returns the permits of a request: its size in bytes.
fn permits(request: &Request) -> u32 {
    u32::try_from(request.bytes()).unwrap_or(u32::MAX)
}

impl<S: Service> Clone for Sender<S> {
    fn clone(&self) -> Sender<S> {
        self.shared.senders.fetch_add(1, Relaxed);
        Sender { shared: self.shared.clone() }
    }
}

impl<S: Service> Drop for Sender<S> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Relaxed) == 1 {
            self.close();
        }
    }
}
