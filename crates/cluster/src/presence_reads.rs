//! Reads of channels' members. One read of a channel runs at a time and serves all requests that arrived before it began.
//!
//! A request that arrives during a read waits for the next one, which includes everything that was stored before the request.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::calls::CallOrigin;

/// The most channels that are read concurrently.
const READS_MAX: usize = 4;
/// The most waiting requests; more are refused.
pub(super) const WAITING_MAX: usize = 16_384;

/// A request for the members of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PresenceRequest {
    pub(super) origin: CallOrigin,
    pub(super) kind: PresenceKind,
}

/// What is requested of a channel's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PresenceKind {
    /// Their list, of at most so many bytes.
    List { bytes_max: usize },
    /// The list of those on other nodes.
    Others { bytes_max: usize },
    /// Their number.
    Count,
}

impl PresenceKind {
    /// The largest size of the list; `None`: only the number is requested.
    pub(super) fn bytes_max(self) -> Option<usize> {
        match self {
            PresenceKind::List { bytes_max } | PresenceKind::Others { bytes_max } => {
                Some(bytes_max)
            }
            PresenceKind::Count => None,
        }
    }
}

#[derive(Default)]
struct ChannelReads {
    is_read: bool,
    waiting: Vec<PresenceRequest>,
}

/// Reads in progress, and waiting requests.
#[derive(Default)]
pub(super) struct PresenceReads {
    channels: HashMap<Arc<str>, ChannelReads>,
    /// Channels with waiting requests that are not being read.
    due: VecDeque<Arc<str>>,
    reads: usize,
    waiting: usize,
}

impl PresenceReads {
    /// Adds a request. Returns `false` if too many wait.
    pub(super) fn add(&mut self, channel: &Arc<str>, request: PresenceRequest) -> bool {
        if self.waiting >= WAITING_MAX {
            return false;
        }
        self.waiting += 1;
        let of_channel = self.channels.entry(Arc::clone(channel)).or_default();
        of_channel.waiting.push(request);
        if !of_channel.is_read && of_channel.waiting.len() == 1 {
            self.due.push_back(Arc::clone(channel));
        }
        true
    }

    /// The next channel to read, and its requests.
    pub(super) fn begin(&mut self) -> Option<(Arc<str>, Vec<PresenceRequest>)> {
        if self.reads >= READS_MAX {
            return None;
        }
        let channel = self.due.pop_front()?;
        let of_channel = self.channels.get_mut(&channel)?;
        of_channel.is_read = true;
        let asked = std::mem::take(&mut of_channel.waiting);
        self.reads += 1;
        self.waiting -= asked.len();
        Some((channel, asked))
    }

    /// Marks the read of a channel as completed.
    pub(super) fn end(&mut self, channel: &Arc<str>) {
        self.reads -= 1;
        let Some(of_channel) = self.channels.get_mut(channel) else { return };
        of_channel.is_read = false;
        if of_channel.waiting.is_empty() {
            self.channels.remove(channel);
        } else {
            self.due.push_back(Arc::clone(channel));
        }
    }

    /// Whether requests wait.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Takes all waiting requests, which cannot be served.
    pub(super) fn take_waiting(&mut self) -> Vec<PresenceRequest> {
        self.due.clear();
        self.waiting = 0;
        let of_all = |of: &mut ChannelReads| std::mem::take(&mut of.waiting);
        let waiting = self.channels.values_mut().flat_map(of_all).collect();
        self.channels.retain(|_, of| of.is_read);
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(token: u64) -> PresenceRequest {
        PresenceRequest { origin: CallOrigin { worker: 0, token }, kind: PresenceKind::Count }
    }

    fn begun(reads: &mut PresenceReads) -> Option<(String, Vec<u64>)> {
        let (channel, asked) = reads.begin()?;
        Some((channel.to_string(), asked.iter().map(|request| request.origin.token).collect()))
    }

    /// Regression test: each request caused a separate read, even if many requested one channel at once.
    #[test]
    fn request_before_a_read_shares_it_and_one_during_it_waits_for_the_next() {
        let (mut reads, room) = (PresenceReads::default(), Arc::from("room"));
        reads.add(&room, request(1));
        reads.add(&room, request(2));
        assert_eq!(begun(&mut reads), Some(("room".to_owned(), vec![1, 2])));
        reads.add(&room, request(3));
        reads.add(&room, request(4));
        assert_eq!(begun(&mut reads), None, "it is being read");
        reads.end(&room);
        assert_eq!(begun(&mut reads), Some(("room".to_owned(), vec![3, 4])));
        reads.end(&room);
        assert_eq!(begun(&mut reads), None);
        assert!(reads.channels.is_empty());
    }

    #[test]
    fn so_many_are_read_at_a_time_and_so_many_wait() {
        let mut reads = PresenceReads::default();
        let channel = |at: usize| Arc::from(at.to_string());
        for at in 0..WAITING_MAX {
            assert!(reads.add(&channel(at), request(at as u64)));
        }
        assert!(!reads.add(&channel(0), request(0)));
        for at in 0..READS_MAX {
            assert_eq!(begun(&mut reads), Some((at.to_string(), vec![at as u64])));
        }
        assert_eq!(begun(&mut reads), None);
        assert!(reads.add(&channel(0), request(7)), "those that are read wait no more");
        reads.end(&channel(1));
        assert_eq!(begun(&mut reads), Some((READS_MAX.to_string(), vec![READS_MAX as u64])));
        assert_eq!(reads.take_waiting().len(), WAITING_MAX - READS_MAX);
        for at in [0, 2, 3, 4] {
            reads.end(&channel(at));
        }
        assert!(reads.begin().is_none() && reads.channels.is_empty());
    }
}
