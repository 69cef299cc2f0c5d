//! Requests waiting to be sent: by group and class, in order, each with a deadline.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Waker;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::job::Job;
use crate::outcome::{NotSent, Outcome};
use crate::request::{Class, ConnectionGroup};

const CLASSES: usize = 4;
/// Bytes of a higher class per byte of a waiting lower class.
const SHARE: usize = 16;
/// Maximum credit of a waiting class.
const CREDIT_BYTES_MAX: usize = 64 << 10;
/// A sweep for passed deadlines is linear in the length of the queue, so the interval between sweeps grows with it.
const SWEEP_MIN: Duration = Duration::from_millis(20);
const SWEEP_PER_JOB: Duration = Duration::from_micros(1);

/// The queue of one sender. A separate semaphore limits its bytes, including those of requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    groups: [Waiting; 2],
    /// Jobs whose response asked for a delay.
    delayed: BinaryHeap<Reverse<Delayed>>,
    delays: u64,
    /// No job is popped before this time.
    paused_until: Option<Instant>,
    /// A lower bound of the deadlines of all waiting jobs.
    earliest: Option<Instant>,
    sweep_after: Option<Instant>,
    pub(crate) closed: bool,
    ended: EndedCounts,
    /// Why jobs miss their deadlines, as the pool has last found it; `None`: there are too many.
    late_why: Option<NotSent>,
}

/// Number of jobs that ended in the queue, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndedCounts {
    pub(crate) rejected: u64,
    pub(crate) not_sent: u64,
    pub(crate) uncertain: u64,
}

impl EndedCounts {
    fn end(&mut self, job: Box<Job>, outcome: Outcome) {
        match &outcome {
            Outcome::Uncertain(_) => self.uncertain += 1,
            Outcome::NotSent(_) => self.not_sent += 1,
            // The queue itself never accepts a push.
            Outcome::Rejected(_) | Outcome::Accepted(_) => self.rejected += 1,
        }
        job.finish(outcome);
    }

    fn end_not_sent(&mut self, job: Box<Job>, why: NotSent) {
        let outcome = job.not_sent(why);
        self.end(job, outcome);
    }
}

/// The waiting jobs of one group.
#[derive(Debug, Default)]
struct Waiting {
    classes: [VecDeque<(Instant, Box<Job>)>; CLASSES],
    credits: [usize; CLASSES],
    /// Connections with capacity and nothing to send.
    idle: VecDeque<(Arc<IdleConnection>, Waker)>,
}

/// Whether a connection is in the list of idle ones. Modified only under the queue's lock.
#[derive(Debug, Default)]
pub(crate) struct IdleConnection(AtomicBool);

#[derive(Debug)]
struct Delayed {
    until: Instant,
    order: u64,
    job: Box<Job>,
    /// Its outcome if the queue is closed or failed before `until`.
    otherwise: Outcome,
}

impl Queue {
    /// Adds a job at the end of its class.
    pub(crate) fn push(&mut self, job: Box<Job>) {
        self.put(job, false);
    }

    /// Adds a job that was taken before, in front of its class.
    pub(crate) fn push_front(&mut self, job: Box<Job>) {
        self.put(job, true);
    }

    fn put(&mut self, mut job: Box<Job>, front: bool) {
        job.in_flight = false;
        if self.closed {
            return self.ended.end_not_sent(job, NotSent::Closed);
        }
        let deadline = job.request.deadline;
        self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        let group = &mut self.groups[job.request.group as usize];
        let class = &mut group.classes[job.request.class as usize];
        if front {
            class.push_front((deadline, job));
        } else {
            class.push_back((deadline, job));
        }
        group.wake_one();
    }

    /// Adds a job that may leave at `until`. If that is not before its deadline, it ends with `otherwise` at once.
    pub(crate) fn delay(&mut self, job: Box<Job>, until: Instant, otherwise: Outcome) {
        if self.closed || until >= job.request.deadline {
            return self.ended.end(job, otherwise);
        }
        self.delays += 1;
        self.delayed.push(Reverse(Delayed { until, order: self.delays, job, otherwise }));
    }

    /// Pauses the queue until `until`.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.paused_until = Some(self.paused_until.map_or(until, |paused| paused.max(until)));
    }

    /// Pops up to `count` jobs, as long as the bodies of those before use less than `bytes`.
    pub(crate) fn pop(
        &mut self,
        group: ConnectionGroup,
        count: usize,
        mut bytes: usize,
        now: Instant,
        jobs: &mut Vec<Box<Job>>,
    ) {
        if self.paused_until.is_some_and(|until| until > now) {
            return;
        }
        let group = &mut self.groups[group as usize];
        let mut taken = 0;
        let mut clock = None;
        while taken < count && bytes > 0 {
            let Some((deadline, job)) = group.pop() else { return };
            if deadline <= now {
                let why = self.late_why.clone().unwrap_or(NotSent::Deadline);
                self.ended.end_not_sent(job, why);
                continue;
            }
            if let Some(expires) = job.request.expires
                && *clock.get_or_insert_with(SystemTime::now) >= expires
            {
                self.ended.end_not_sent(job, NotSent::Expired);
                continue;
            }
            bytes = bytes.saturating_sub(job.request.body.len());
            taken += 1;
            jobs.push(job);
        }
    }

    /// Registers a connection that has capacity and nothing to send, to be woken for the next job.
    pub(crate) fn handle_idle(
        &mut self,
        group: ConnectionGroup,
        idle: &Arc<IdleConnection>,
        waker: &Waker,
    ) {
        if !idle.0.swap(true, Relaxed) {
            self.groups[group as usize].idle.push_back((idle.clone(), waker.clone()));
        }
    }

    /// Removes a connection that has ended.
    pub(crate) fn forget(&mut self, group: ConnectionGroup, idle: &Arc<IdleConnection>) {
        self.groups[group as usize].idle.retain(|(known, _)| !Arc::ptr_eq(known, idle));
        self.wake_next(group);
    }

    /// Passes the wakeup of a connection that has no use for it to the next idle one.
    pub(crate) fn wake_next(&mut self, group: ConnectionGroup) {
        let group = &mut self.groups[group as usize];
        if !group.is_empty() {
            group.wake_one();
        }
    }

    /// Moves delayed jobs that are due to their classes, and ends late jobs with `why`, now and until the next call.
    pub(crate) fn handle_time(&mut self, now: Instant, why: &NotSent) {
        while self.delayed.peek().is_some_and(|Reverse(delayed)| delayed.until <= now) {
            if let Some(Reverse(delayed)) = self.delayed.pop() {
                self.push_front(delayed.job);
            }
        }
        if self.late_why.as_ref() != Some(why) {
            self.late_why = Some(why.clone());
        }
        if self.earliest.is_some_and(|earliest| earliest <= now)
            && self.sweep_after.is_none_or(|after| after <= now)
        {
            self.sweep(now, why);
        }
        for group in &mut self.groups {
            if !group.is_empty() {
                while group.wake_one() {}
            }
        }
    }

    fn sweep(&mut self, now: Instant, why: &NotSent) {
        let mut earliest = None;
        let mut late = Vec::new();
        for group in &mut self.groups {
            for class in &mut group.classes {
                if class.iter().any(|(deadline, _)| *deadline <= now) {
                    let (over, rest) = class.drain(..).partition(|(deadline, _)| *deadline <= now);
                    *class = rest;
                    let over: VecDeque<(Instant, Box<Job>)> = over;
                    late.extend(over);
                }
                let first = class.iter().map(|(deadline, _)| *deadline).min();
                earliest = [earliest, first].into_iter().flatten().min();
            }
        }
        self.earliest = earliest;
        let interval = SWEEP_MIN.max(SWEEP_PER_JOB * self.len() as u32);
        self.sweep_after = Some(now + interval);
        for (_, job) in late {
            self.ended.end_not_sent(job, why.clone());
        }
    }

    /// Returns when [`handle_time`](Queue::handle_time) has something to do.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let delayed = self.delayed.peek().map(|Reverse(delayed)| delayed.until);
        let sweep = self.earliest.max(self.earliest.and(self.sweep_after));
        let paused = if self.is_empty() { None } else { self.paused_until };
        [delayed, sweep, paused].into_iter().flatten().min()
    }

    /// Closes the queue: all jobs, and those added later, end with `why`.
    pub(crate) fn close(&mut self, why: &NotSent) {
        self.closed = true;
        self.fail(why);
    }

    /// Ends all jobs: waiting ones with `why`, delayed ones with their own outcome.
    pub(crate) fn fail(&mut self, why: &NotSent) {
        for group in &mut self.groups {
            while let Some((_, job)) = group.pop() {
                self.ended.end_not_sent(job, why.clone());
            }
        }
        for Reverse(delayed) in self.delayed.drain() {
            self.ended.end(delayed.job, delayed.otherwise);
        }
    }

    /// Returns the number of jobs that ended here.
    pub(crate) fn ended(&self) -> EndedCounts {
        self.ended
    }

    /// Returns the number of jobs waiting in a group.
    pub(crate) fn waiting(&self, group: ConnectionGroup) -> usize {
        self.groups[group as usize].classes.iter().map(VecDeque::len).sum()
    }

    /// Returns whether there are no jobs, not even delayed ones.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.iter().all(Waiting::is_empty) && self.delayed.is_empty()
    }

    /// Returns the number of jobs, including delayed ones.
    pub(crate) fn len(&self) -> usize {
        self.waiting(ConnectionGroup::Main)
            + self.waiting(ConnectionGroup::Suspect)
            + self.delayed.len()
    }
}

impl Waiting {
    fn wake_one(&mut self) -> bool {
        let Some((idle, waker)) = self.idle.pop_front() else { return false };
        idle.0.store(false, Relaxed);
        waker.wake();
        true
    }

    fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }

    fn pop(&mut self) -> Option<(Instant, Box<Job>)> {
        let voip = Class::Voip as usize;
        let first = self.classes.iter().position(|class| !class.is_empty())?;
        // A lower class with enough credit for its next job goes first, except before a VoIP call.
        let affords = |index: usize| {
            let next = self.classes[index].front();
            next.is_some_and(|(_, job)| job.request.bytes() <= self.credits[index])
        };
        let from = match (first + 1..CLASSES).find(|&index| affords(index)) {
            Some(lower) if first != voip => lower,
            _ => first,
        };
        let (deadline, job) = self.classes[from].pop_front()?;
        let bytes = job.request.bytes();
        if from == first {
            for index in first + 1..CLASSES {
                if self.classes[index].is_empty() {
                    self.credits[index] = 0;
                } else {
                    let credit = self.credits[index] + bytes / SHARE;
                    self.credits[index] = credit.min(CREDIT_BYTES_MAX);
                }
            }
        } else {
            self.credits[from] -= bytes;
        }
        Some((deadline, job))
    }
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Delayed) -> bool {
        self.order == other.order
    }
}

impl Eq for Delayed {}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Delayed) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Delayed {
    fn cmp(&self, other: &Delayed) -> std::cmp::Ordering {
        (self.until, self.order).cmp(&(other.until, other.order))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;
    use crate::outcome::{Accepted, Timings, Uncertain};
    use crate::request::Request;
    use crate::sender::job::Reply;

    type Ends = mpsc::UnboundedReceiver<(u64, Outcome)>;

    struct Harness {
        room: Arc<Semaphore>,
        sender: mpsc::UnboundedSender<(u64, Outcome)>,
        ends: Ends,
        now: Instant,
    }

    impl Harness {
        fn new() -> Harness {
            let (sender, ends) = mpsc::unbounded_channel();
            Harness { room: Arc::new(Semaphore::new(1 << 30)), sender, ends, now: Instant::now() }
        }

        fn job(&self, tag: u64, class: Class, body: usize, seconds: u64) -> Box<Job> {
            let request = Request {
                path: String::new(),
                headers: Vec::new(),
                body: Bytes::from(vec![0; body]),
                class,
                group: ConnectionGroup::Main,
                deadline: self.now + Duration::from_secs(seconds),
                expires: None,
                resend_uncertain: false,
                subject: 0,
            };
            let permits = request.bytes() as u32;
            let room = self.room.clone().try_acquire_many_owned(permits).expect("room");
            Job::new(request, Reply::Tagged(tag, self.sender.clone()), room)
        }
    }

    fn take(queue: &mut Queue, count: usize, now: Instant) -> Vec<Box<Job>> {
        let mut jobs = Vec::new();
        queue.pop(ConnectionGroup::Main, count, usize::MAX, now, &mut jobs);
        jobs
    }

    #[test]
    fn a_call_goes_first_and_no_class_waits_for_ever() {
        let harness = Harness::new();
        let mut queue = Queue::default();
        for tag in 0..100 {
            queue.push(harness.job(tag, Class::Low, 0, 60));
        }
        for tag in 100..200 {
            queue.push(harness.job(tag, Class::High, 0, 60));
        }
        queue.push(harness.job(200, Class::Voip, 0, 60));
        let jobs = take(&mut queue, 100, harness.now);
        let classes: Vec<Class> = jobs.iter().map(|job| job.request.class).collect();
        assert_eq!(classes[0], Class::Voip);
        let low = classes.iter().filter(|class| **class == Class::Low).count();
        // One byte in seventeen is of the lower class.
        assert!((4..=6).contains(&low), "{low}");
    }

    #[test]
    fn a_window_takes_as_many_as_leave_something_of_it() {
        let harness = Harness::new();
        let mut queue = Queue::default();
        for tag in 0..10 {
            queue.push(harness.job(tag, Class::High, 400, 60));
        }
        let mut jobs = Vec::new();
        queue.pop(ConnectionGroup::Main, 10, 1_000, harness.now, &mut jobs);
        assert_eq!(jobs.len(), 3, "the third begins within the window");
        assert_eq!(queue.waiting(ConnectionGroup::Main), 7);
    }

    #[test]
    fn a_deadline_ends_a_job_in_the_queue_with_the_reason() {
        let mut harness = Harness::new();
        let mut queue = Queue::default();
        queue.push(harness.job(1, Class::High, 0, 5));
        queue.push(harness.job(2, Class::High, 0, 50));
        assert_eq!(queue.next_time(), Some(harness.now + Duration::from_secs(5)));
        let why = NotSent::Connect("no route".to_owned());
        queue.handle_time(harness.now + Duration::from_secs(6), &why);
        assert_eq!(queue.ended().not_sent, 1);
        assert_eq!(harness.ends.try_recv().ok(), Some((1, Outcome::NotSent(why))));
        assert!(harness.ends.try_recv().is_err());
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn a_retry_behind_the_deadline_is_the_end_at_once() {
        let mut harness = Harness::new();
        let mut queue = Queue::default();
        let otherwise = Outcome::NotSent(NotSent::Expired);
        let later = harness.now + Duration::from_secs(10);
        queue.delay(harness.job(1, Class::High, 0, 5), later, otherwise.clone());
        assert_eq!(harness.ends.try_recv().ok(), Some((1, otherwise.clone())));
        queue.delay(harness.job(2, Class::High, 0, 50), later, otherwise);
        assert!(take(&mut queue, 1, harness.now).is_empty());
        queue.handle_time(later, &NotSent::Deadline);
        assert_eq!(take(&mut queue, 1, later).len(), 1);
    }

    #[test]
    fn every_job_ends_once_even_when_it_is_dropped() {
        let mut harness = Harness::new();
        drop(harness.job(1, Class::High, 0, 5));
        assert_eq!(harness.ends.try_recv().ok(), Some((1, Outcome::NotSent(NotSent::Closed))));
        let mut job = harness.job(2, Class::High, 0, 5);
        job.in_flight = true;
        drop(job);
        assert_eq!(harness.ends.try_recv().ok(), Some((2, Outcome::Uncertain(Uncertain::Closed))));
        harness.job(3, Class::High, 0, 5).finish(Outcome::NotSent(NotSent::Expired));
        assert_eq!(harness.ends.try_recv().ok(), Some((3, Outcome::NotSent(NotSent::Expired))));
        assert!(harness.ends.try_recv().is_err());
        assert_eq!(harness.room.available_permits(), 1 << 30, "and gives its room back");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_says_what_queue_and_service_took() {
        let mut harness = Harness::new();
        let mut job = harness.job(1, Class::High, 0, 60);
        // Two attempts: the first response asks for a retry.
        for seconds in [2, 5] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            let sent_at = Instant::now();
            tokio::time::advance(Duration::from_secs(1)).await;
            job.handle_answer(sent_at, Instant::now());
        }
        job.finish(Outcome::Accepted(Accepted::default()));
        let (queue, service) = (Duration::from_secs(8), Duration::from_secs(1));
        let timings = Timings { queue, service };
        let accepted = Outcome::Accepted(Accepted { timings, ..Accepted::default() });
        assert_eq!(harness.ends.try_recv().ok(), Some((1, accepted)));
    }

    #[test]
    fn a_pause_holds_everything() {
        let harness = Harness::new();
        let mut queue = Queue::default();
        queue.push(harness.job(1, Class::Voip, 0, 60));
        let until = harness.now + Duration::from_secs(3);
        queue.pause(until);
        assert!(take(&mut queue, 1, harness.now).is_empty());
        assert_eq!(queue.next_time(), Some(until));
        assert_eq!(take(&mut queue, 1, until).len(), 1);
    }
}
