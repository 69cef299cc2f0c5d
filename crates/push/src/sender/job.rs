//! A request, and where its outcome goes.

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use super::trace::Trace;
use crate::outcome::{NotSent, Outcome, Timings, Uncertain};
use crate::request::Request;

/// A request on its way through the sender. It ends exactly once: in [`Job::finish`], or, whatever goes
/// wrong, when it is dropped.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Answers that asked for another try.
    pub(crate) attempt: u32,
    /// Answers that called its authorization spent.
    pub(crate) spent: u32,
    /// How often the peer did not process it.
    pub(crate) refusals: u32,
    /// Of the authorization it was last sent with.
    pub(crate) generation: u64,
    /// It was sent whole at some time and got no answer.
    pub(crate) possible_duplicate: bool,
    /// It is on a connection now, perhaps wholly.
    pub(crate) in_flight: bool,
    queued_at: Instant,
    /// Of the last answer.
    timings: Timings,
    reply: Option<Reply>,
    /// If it is traced.
    pub(crate) trace: Option<Box<Trace>>,
    /// Room in the queue, given back at the end.
    _room: OwnedSemaphorePermit,
}

/// Where an outcome goes.
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

    /// An answer to what was sent at `sent_at` has come.
    pub(crate) fn handle_answer(&mut self, sent_at: Instant, now: Instant) {
        self.timings = Timings { queue: sent_at - self.queued_at, service: now - sent_at };
    }

    pub(crate) fn finish(mut self: Box<Self>, outcome: Outcome) {
        self.report(outcome);
    }

    /// The end of a job that is not on a connection when it ends: uncertain all the same if it had been sent whole
    /// before.
    pub(crate) fn not_sent(&self, why: NotSent) -> Outcome {
        match (self.possible_duplicate, &why) {
            (false, _) => Outcome::NotSent(why),
            (true, NotSent::Closed) => Outcome::Uncertain(Uncertain::Closed),
            (true, _) => Outcome::Uncertain(Uncertain::Deadline),
        }
    }

    /// It goes back to the queue.
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
    /// The receiver may have been dropped.
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
