//! A request, and the receiver of its outcome.

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use super::trace::Trace;
use crate::outcome::{NotSent, Outcome, Timings, Uncertain};
use crate::request::Request;

/// A request on its way through the sender. It ends exactly once: by [`Job::finish`], or when it is dropped.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Number of responses that asked for another attempt.
    pub(crate) attempt: u32,
    /// Number of responses that called its authorization expired.
    pub(crate) spent: u32,
    /// Number of times the peer did not process it.
    pub(crate) refusals: u32,
    /// Generation of the authorization it was last sent with.
    pub(crate) generation: u64,
    /// It was sent completely before and got no response.
    pub(crate) possible_duplicate: bool,
    /// It is on a connection and may have been sent completely.
    pub(crate) in_flight: bool,
    queued_at: Instant,
    /// Timings of the last response.
    timings: Timings,
    reply: Option<Reply>,
    /// Its span, if it is traced.
    pub(crate) trace: Option<Box<Trace>>,
    /// Its share of the queue's capacity, released when it ends.
    _room: OwnedSemaphorePermit,
}

/// The receiver of an outcome.
#[derive(Debug)]
pub(crate) enum Reply {
    One(oneshot::Sender<Outcome>),
    Tagged(u64, mpsc::UnboundedSender<(u64, Outcome)>),
}

impl Job {
    pub(crate) fn new(request: Request, reply: Reply, room: OwnedSemaphorePermit) -> Box<Job> {
        Box::new(Job {
            request,
            attempt: 0,
            spent: 0,
            refusals: 0,
            generation: 0,
            possible_duplicate: false,
            in_flight: false,
            queued_at: Instant::now(),
            timings: Timings::default(),
            reply: Some(reply),
            trace: None,
            _room: room,
        })
    }

    /// Records the response to an attempt that was sent at `sent_at`.
    pub(crate) fn handle_answer(&mut self, sent_at: Instant, now: Instant) {
        self.timings = Timings { queue: sent_at - self.queued_at, service: now - sent_at };
    }

    pub(crate) fn finish(mut self: Box<Self>, outcome: Outcome) {
        self.report(outcome);
    }

    /// Returns the outcome of a job that ends while it is not on a connection: uncertain if it was sent completely
    /// before.
    pub(crate) fn not_sent(&self, why: NotSent) -> Outcome {
        match (self.possible_duplicate, &why) {
            (false, _) => Outcome::NotSent(why),
            (true, NotSent::Closed) => Outcome::Uncertain(Uncertain::Closed),
            (true, _) => Outcome::Uncertain(Uncertain::Deadline),
        }
    }

    /// Records in the trace that it returns to the queue.
    pub(crate) fn note_return(&self, why: &'static str) {
        if let Some(trace) = &self.trace {
            trace.returned(why);
        }
    }

    fn report(&mut self, mut outcome: Outcome) {
        match &mut outcome {
            Outcome::Accepted(accepted) => {
                accepted.possible_duplicate = self.possible_duplicate;
                accepted.timings = self.timings;
            }
            Outcome::Rejected(rejected) => {
                rejected.possible_duplicate = self.possible_duplicate;
                rejected.timings = self.timings;
            }
            Outcome::NotSent(_) | Outcome::Uncertain(_) => {}
        }
        if let Some(trace) = self.trace.take() {
            trace.end(&outcome);
        }
        if let Some(reply) = self.reply.take() {
            reply.send(outcome);
        }
    }
}

impl Reply {
    /// Sends the outcome. The receiver may have been dropped.
    pub(crate) fn send(self, outcome: Outcome) {
        match self {
            Reply::One(sender) => drop(sender.send(outcome)),
            Reply::Tagged(tag, sender) => drop(sender.send((tag, outcome))),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.reply.is_none() {
            return;
        }
        let outcome = if self.in_flight || self.possible_duplicate {
            Outcome::Uncertain(Uncertain::Closed)
        } else {
            Outcome::NotSent(NotSent::Closed)
        };
        self.report(outcome);
    }
}
