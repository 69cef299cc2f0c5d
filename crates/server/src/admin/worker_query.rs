//! Requests that need a reply from every worker. Each is answered when all have replied, or at a deadline with the
//! replies so far.

/// Requests in flight. The `T` of each collects the replies.
#[derive(Debug)]
pub(super) struct WorkerQueries<T> {
    in_flight: Vec<WorkerQuery<T>>,
    last_id: u64,
    in_flight_max: usize,
}

/// A request that waits for workers.
#[derive(Debug)]
pub(super) struct WorkerQuery<T> {
    id: u64,
    /// In the loop's milliseconds.
    deadline_ms: u64,
    /// Workers that have not replied.
    pub(super) unresponsive: Vec<usize>,
    pub(super) replies: T,
}

impl<T> WorkerQueries<T> {
    pub(super) fn new(in_flight_max: usize) -> Self {
        Self { in_flight: Vec::new(), last_id: 0, in_flight_max }
    }

    /// Begins a request to `workers` workers and returns its id. `None` if too many are in flight.
    pub(super) fn begin(&mut self, deadline_ms: u64, workers: usize, replies: T) -> Option<u64> {
        if self.in_flight.len() >= self.in_flight_max {
            return None;
        }
        self.last_id += 1;
        let (id, unresponsive) = (self.last_id, (0..workers).collect());
        self.in_flight.push(WorkerQuery { id, deadline_ms, unresponsive, replies });
        Some(id)
    }

    /// Begins a request to one of `workers` workers, which take turns. Returns its id and the worker.
    pub(super) fn begin_one(
        &mut self,
        deadline_ms: u64,
        workers: usize,
        replies: T,
    ) -> Option<(u64, usize)> {
        let id = self.begin(deadline_ms, 0, replies)?;
        let worker = id as usize % workers;
        self.in_flight.last_mut()?.unresponsive.push(worker);
        Some((id, worker))
    }

    /// Handles a worker's reply. Returns the request if that was the last one.
    pub(super) fn handle_reply(
        &mut self,
        id: u64,
        worker: usize,
        add: impl FnOnce(&mut T),
    ) -> Option<WorkerQuery<T>> {
        let at = self.in_flight.iter().position(|query| query.id == id)?;
        let query = &mut self.in_flight[at];
        query.unresponsive.retain(|&other| other != worker);
        add(&mut query.replies);
        query.unresponsive.is_empty().then(|| self.in_flight.swap_remove(at))
    }

    /// Returns the workers that each request waits for.
    #[cfg(test)]
    pub(super) fn unresponsive(&self) -> Vec<&[usize]> {
        self.in_flight.iter().map(|query| &*query.unresponsive).collect()
    }

    /// Removes and returns the requests whose deadline has passed.
    pub(super) fn poll_overdue(&mut self, now_ms: u64) -> Vec<WorkerQuery<T>> {
        self.in_flight.extract_if(.., |query| query.deadline_ms <= now_ms).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reply_completes_a_request_and_later_ones_are_ignored() {
        let mut queries = WorkerQueries::new(2);
        let id = queries.begin(1_000, 2, 0).unwrap();
        assert!(queries.handle_reply(id, 1, |sum| *sum += 3).is_none());
        let done = queries.handle_reply(id, 0, |sum| *sum += 4).unwrap();
        assert_eq!((done.replies, done.unresponsive.len()), (7, 0));
        assert!(queries.handle_reply(id, 0, |sum| *sum += 4).is_none());
        assert!(queries.poll_overdue(u64::MAX).is_empty());
    }

    #[test]
    fn at_its_deadline_a_request_names_the_workers_that_did_not_reply() {
        let mut queries = WorkerQueries::new(2);
        let first = queries.begin(1_000, 3, 0).unwrap();
        queries.begin(1_001, 3, 0).unwrap();
        assert_eq!(queries.begin(1_002, 3, 0), None, "one more than the bound");
        queries.handle_reply(first, 1, |sum| *sum += 1);
        assert!(queries.poll_overdue(999).is_empty());
        let overdue = queries.poll_overdue(1_000);
        assert_eq!((overdue.len(), overdue[0].replies), (1, 1));
        assert_eq!(overdue[0].unresponsive, [0, 2]);
        assert!(queries.begin(2_000, 3, 0).is_some(), "there is room again");
    }
}
