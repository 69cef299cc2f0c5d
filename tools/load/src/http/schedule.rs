//! Which request to send next, and when it is due.

/// The requests of one thread. Tags count from 0 in each thread; numbers are unique among all threads.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    thread: u64,
    threads: u64,
    /// The tag of the next request.
    next: u64,
    /// One past the tag of the last request; `None` while that is not known.
    end: Option<u64>,
    /// Requests per second of all threads, in an open model.
    rate: Option<f64>,
    start_ns: u64,
}

impl Schedule {
    pub(super) fn new(thread: u32, threads: u32, rate: Option<f64>) -> Self {
        let (thread, threads) = (u64::from(thread), u64::from(threads));
        Self { thread, threads, next: 0, end: None, rate, start_ns: 0 }
    }

    /// Starts the clock of an open model.
    pub(super) fn start(&mut self, now_ns: u64) {
        self.start_ns = now_ns;
    }

    /// Limits the requests from here on to `count`, summed over all threads.
    pub(super) fn limit(&mut self, count: u64) {
        let mine = count / self.threads + u64::from(self.thread < count % self.threads);
        self.end = Some(self.next + mine);
    }

    /// Ends the schedule. In an open model, requests that are already due are still sent.
    pub(super) fn stop(&mut self, now_ns: u64) {
        let due = if self.rate.is_some() { self.available(now_ns, u64::MAX) } else { 0 };
        let last = self.next + due;
        self.end = Some(self.end.map_or(last, |end| end.min(last)));
    }

    /// Returns the request's number among those of all threads, from 0.
    #[inline]
    pub(super) fn number(&self, tag: u64) -> u64 {
        tag * self.threads + self.thread
    }

    /// Returns when the request is due, in an open model.
    #[inline]
    pub(super) fn due_ns(&self, tag: u64) -> Option<u64> {
        let rate = self.rate?;
        Some(self.start_ns + (self.number(tag) as f64 * 1e9 / rate) as u64)
    }

    pub(super) fn is_open_model(&self) -> bool {
        self.rate.is_some()
    }

    /// Returns how many requests may be sent now, at most `most`.
    #[inline]
    pub(super) fn available(&self, now_ns: u64, most: u64) -> u64 {
        let left = self.end.map_or(most, |end| (end - self.next).min(most));
        let Some(rate) = self.rate else { return left };
        let elapsed = now_ns.saturating_sub(self.start_ns) as f64 * rate / 1e9;
        let due = (elapsed - self.thread as f64) / self.threads as f64;
        let due = if due < 0.0 { 0 } else { due as u64 + 1 };
        due.saturating_sub(self.next).min(left)
    }

    /// Takes `count` tags, and returns the first.
    #[inline]
    pub(super) fn take(&mut self, count: u64) -> u64 {
        let first = self.next;
        self.next += count;
        first
    }

    /// Returns the number of tags taken.
    pub(super) fn sent(&self) -> u64 {
        self.next
    }

    pub(super) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    /// Returns how many requests remain to be sent, once the end is known.
    pub(super) fn left(&self) -> u64 {
        self.end.map_or(0, |end| end.saturating_sub(self.next))
    }

    /// Returns when the next request is due, in an open model.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        if self.is_over() { None } else { self.due_ns(self.next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_numbers_and_miss_none() {
        let mut numbers = Vec::new();
        for thread in 0..3 {
            let mut schedule = Schedule::new(thread, 3, None);
            schedule.limit(10);
            while !schedule.is_over() {
                let tag = schedule.take(schedule.available(0, 1));
                numbers.push(schedule.number(tag));
            }
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn an_open_model_keeps_its_schedule_and_owes_what_was_due_when_it_stops() {
        let mut schedule = Schedule::new(1, 2, Some(1000.0));
        schedule.start(5_000_000);
        // Thread 1 of 2 has the odd numbers: 1 ms, 3 ms, 5 ms after the start.
        assert_eq!(schedule.available(5_999_999, 9), 0);
        assert_eq!(schedule.available(6_000_000, 9), 1);
        assert_eq!(schedule.due_ns(1), Some(8_000_000));
        assert_eq!(schedule.take(1), 0);
        assert_eq!(schedule.next_due_ns(), Some(8_000_000));
        schedule.stop(10_000_000);
        assert_eq!((schedule.available(99_000_000, 9), schedule.left()), (2, 2));
        schedule.take(2);
        assert!(schedule.is_over() && schedule.next_due_ns().is_none());
    }

    #[test]
    fn a_closed_model_stops_where_it_is() {
        let mut schedule = Schedule::new(0, 1, None);
        assert_eq!(schedule.available(0, 7), 7);
        schedule.take(7);
        schedule.stop(0);
        assert!(schedule.is_over());
    }
}
