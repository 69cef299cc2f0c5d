//! Requests in flight, oldest first.

use std::collections::VecDeque;

use crate::Kind;

/// A request that was sent and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The owner's number of the request.
    pub tag: u64,
    /// When it was sent, in nanoseconds of the owner's clock.
    pub sent_ns: u64,
    /// How its answer is framed, and whether it is idempotent.
    pub kind: Kind,
}

/// Requests in the order of sending, which is the order of their answers (RFC 9112 §9.3.2). Requests with consecutive
/// tags that were sent in one write share a record, so a hundred in flight cost as much as one.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    runs: VecDeque<Run>,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    oldest: InFlight,
    /// At least one.
    count: u32,
}

impl Queue {
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<InFlight> {
        self.runs.front().map(|run| run.oldest)
    }

    #[inline]
    pub(crate) fn push(&mut self, first: InFlight, count: u32) {
        if count == 0 {
            return;
        }
        self.len += count;
        if let Some(last) = self.runs.back_mut()
            && last.oldest.tag.wrapping_add(u64::from(last.count)) == first.tag
            && last.oldest.kind == first.kind
            && last.oldest.sent_ns == first.sent_ns
            && let Some(joined) = last.count.checked_add(count)
        {
            last.count = joined;
            return;
        }
        self.runs.push_back(Run { oldest: first, count });
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<InFlight> {
        let run = self.runs.front_mut()?;
        let oldest = run.oldest;
        self.len -= 1;
        run.count -= 1;
        run.oldest.tag = oldest.tag.wrapping_add(1);
        if run.count == 0 {
            self.runs.pop_front();
        }
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tag: u64, sent_ns: u64, kind: Kind) -> InFlight {
        InFlight { tag, sent_ns, kind }
    }

    #[test]
    fn requests_sent_together_are_one_record() {
        let mut queue = Queue::default();
        queue.push(request(1, 10, Kind::GET), 50);
        queue.push(request(51, 10, Kind::GET), 50);
        assert_eq!((queue.runs.len(), queue.len()), (1, 100));
        queue.push(request(101, 11, Kind::GET), 1);
        queue.push(request(102, 11, Kind::HEAD), 2);
        queue.push(request(7, 11, Kind::HEAD), 1);
        assert_eq!((queue.runs.len(), queue.len()), (4, 104));
        let tags: Vec<u64> =
            std::iter::from_fn(|| queue.pop()).map(|request| request.tag).collect();
        assert_eq!(tags, (1..=103).chain([7]).collect::<Vec<u64>>());
        assert_eq!((queue.len(), queue.front()), (0, None));
    }

    #[test]
    fn a_record_is_a_few_words() {
        assert!(size_of::<Run>() <= 32);
    }
}
