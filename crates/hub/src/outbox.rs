//! Bytes waiting for one session.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::frame_log::{FrameLog, Range};
use crate::slots::NONE;

/// Ranges of the frame log in the order they are to be sent. 24 bytes, no allocation, while there
/// is at most one: idle, or a single burst.
pub(crate) struct Outbox {
    head: Range,
    /// Aggregate of all ranges' lengths.
    bytes: u32,
    backlog: Option<Box<Backlog>>,
}

/// Only for a session that lags.
pub(crate) struct Backlog {
    /// Behind `head`, and empty while `head` is.
    ranges: VecDeque<Range>,
    /// Links of the list of slow sessions.
    pub(crate) slow_next: u32,
    pub(crate) slow_prev: u32,
}

impl Default for Backlog {
    fn default() -> Self {
        Self { ranges: VecDeque::new(), slow_next: NONE, slow_prev: NONE }
    }
}

/// How a frame was appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Appended {
    /// The only range.
    First,
    /// It follows the last range in the log and extended it.
    Joined,
    /// A further range.
    Behind,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { head: Range::NONE, bytes: 0, backlog: None }
    }
}

impl Outbox {
    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Ranges waiting.
    pub(crate) fn len(&self) -> usize {
        usize::from(!self.head.is_none())
            + self.backlog.as_ref().map_or(0, |backlog| backlog.ranges.len())
    }

    /// Adds a frame. Unless it joined the last range, the caller has to retain it.
    #[inline]
    pub(crate) fn append(&mut self, range: Range) -> Appended {
        self.bytes = self.bytes.saturating_add(range.len());
        let last = match &mut self.backlog {
            Some(backlog) => backlog.ranges.back_mut().unwrap_or(&mut self.head),
            None => &mut self.head,
        };
        if last.is_none() {
            *last = range;
            Appended::First
        } else if last.chunk == range.chunk && last.end == range.start {
            last.end = range.end;
            Appended::Joined
        } else {
            self.backlog_mut().ranges.push_back(range);
            Appended::Behind
        }
    }

    /// Points `slices` at the first bytes to send; returns how many slices it filled.
    pub(crate) fn slices<'a>(&'a self, log: &'a FrameLog, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slice, range) in slices.iter_mut().zip(self.ranges()) {
            *slice = IoSlice::new(log.bytes(range));
            filled += 1;
        }
        filled
    }

    /// Removes the first `count` bytes, which were sent. Returns how many there were.
    pub(crate) fn advance(&mut self, mut count: u32, log: &mut FrameLog) -> u32 {
        count = count.min(self.bytes);
        let sent = count;
        self.bytes -= count;
        while count > 0 {
            let length = self.head.len();
            if count < length {
                self.head.start += count;
                return sent;
            }
            count -= length;
            log.release(self.head.chunk, 1);
            self.head = match &mut self.backlog {
                Some(backlog) => backlog.ranges.pop_front().unwrap_or(Range::NONE),
                None => Range::NONE,
            };
        }
        self.trim();
        sent
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        let backlog = self.backlog.iter().flat_map(|backlog| backlog.ranges.iter().copied());
        std::iter::once(self.head).filter(|head| !head.is_none()).chain(backlog)
    }

    /// Takes all ranges out. Their references pass to the caller.
    pub(crate) fn take(&mut self) -> Vec<Range> {
        let ranges = self.ranges().collect();
        self.head = Range::NONE;
        self.bytes = 0;
        if let Some(backlog) = &mut self.backlog {
            backlog.ranges = VecDeque::new();
        }
        ranges
    }

    /// Puts retained ranges into the empty outbox, joining those that touch.
    pub(crate) fn refill(&mut self, ranges: impl IntoIterator<Item = Range>, log: &mut FrameLog) {
        debug_assert!(self.is_empty());
        for range in ranges {
            if self.append(range) == Appended::Joined {
                log.release(range.chunk, 1);
            }
        }
        self.trim();
    }

    pub(crate) fn backlog(&self) -> Option<&Backlog> {
        self.backlog.as_deref()
    }

    pub(crate) fn backlog_mut(&mut self) -> &mut Backlog {
        self.backlog.get_or_insert_default()
    }

    /// Frees the backlog once a session does not lag any more.
    pub(crate) fn trim(&mut self) {
        let needed = self.backlog.as_ref().is_some_and(|backlog| {
            !backlog.ranges.is_empty() || backlog.slow_next != NONE || backlog.slow_prev != NONE
        });
        if !needed {
            self.backlog = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame_log::FrameLabel;

    #[test]
    fn an_idle_outbox_is_24_bytes() {
        assert_eq!(size_of::<Outbox>(), 24);
    }

    #[test]
    fn a_burst_is_one_slice() {
        let mut log = FrameLog::new();
        let mut outbox = Outbox::default();
        for n in 0..100u8 {
            let range = log.append(0, 10, FrameLabel::KEPT, |out| out.extend([n; 10]));
            let range = range.expect("written");
            if outbox.append(range) != Appended::Joined {
                log.retain(range.chunk, 1);
            }
        }
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(outbox.slices(&log, &mut slices), 1);
        assert_eq!(slices[0].len(), 1000);
        assert!(outbox.backlog().is_none());
        assert_eq!(outbox.advance(1, &mut log), 1);
        assert_eq!(outbox.advance(5000, &mut log), 999);
        assert!(outbox.is_empty());
        assert_eq!(log.ranges(), 0);
    }
}
