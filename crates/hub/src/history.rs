//! A channel's stream: its offsets and stored publications.

use std::collections::VecDeque;

use crate::command::HistoryFilter;
use crate::error::Error;
use crate::event::History;
use crate::list::Links;
use crate::position::{Epoch, StreamPosition};
use crate::publication::Publication;
use crate::shares::{Idle, Owner};
use crate::slots::NONE;

/// A stream exists while the channel has subscribers or its meta time to live has not expired. The rules are
/// Centrifugo's: history expires as a whole, counted from the last publication; epoch and top offset are kept longer.
pub(crate) struct Stream {
    pub(crate) epoch: Epoch,
    /// Offset of the last publication, stored or not.
    pub(crate) top: u64,
    /// Consecutive offsets, the last of them `top` unless that was not kept.
    publications: VecDeque<Publication>,
    /// Memory of `publications`.
    bytes: usize,
    /// When the publications expire.
    pub(crate) expires_ms: u64,
    /// When the stream expires.
    pub(crate) meta_expires_ms: u64,
    pub(crate) meta_ttl_ms: u64,
    /// The earliest timer that is set for it.
    pub(crate) timer_ms: u64,
    version: Option<Box<Version>>,
    /// Who has created it.
    pub(crate) owner: Owner,
    /// The user's [account](crate::accounts) to which it is charged; [`NONE`] if it is one of its own.
    pub(crate) account: u32,
    /// Place in the ranking of accounts if it is one; otherwise [`NONE`].
    pub(crate) ranked_at: u32,
    /// The list of idle channels that it is in.
    pub(crate) listed: Option<Idle>,
    /// Links of that list.
    pub(crate) idle: Links,
    /// Links among its owner's streams without publications, or among those of its account.
    pub(crate) own: Links,
}

const _: () = assert!(size_of::<Stream>() <= 128);

/// The last version that an application gave.
struct Version {
    number: u64,
    epoch: Box<str>,
}

impl Stream {
    pub(crate) fn new(epoch: Epoch, owner: Owner) -> Self {
        Self {
            epoch,
            top: 0,
            publications: VecDeque::new(),
            bytes: 0,
            expires_ms: u64::MAX,
            meta_expires_ms: u64::MAX,
            meta_ttl_ms: 0,
            timer_ms: u64::MAX,
            version: None,
            owner,
            account: NONE,
            ranked_at: NONE,
            listed: None,
            idle: Links::default(),
            own: Links::default(),
        }
    }

    pub(crate) fn position(&self) -> StreamPosition {
        StreamPosition { offset: self.top, epoch: self.epoch }
    }

    /// Offset of the first publication that is stored; after the top if none is.
    pub(crate) fn first(&self) -> u64 {
        self.publications.front().map_or(self.top + 1, |first| first.offset())
    }

    /// Memory of the publications.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.publications.len()
    }

    /// Records an application's version. Returns `false` if it is not greater than the last one of the same version
    /// epoch.
    pub(crate) fn advance_version(&mut self, version: u64, epoch: &str) -> bool {
        let (last, last_epoch) = match &self.version {
            Some(last) => (last.number, &*last.epoch),
            None => (0, ""),
        };
        let comparable = epoch.is_empty() || *epoch == *last_epoch;
        if version > 0 && comparable && version <= last {
            return false;
        }
        match &mut self.version {
            Some(last) => {
                last.number = version;
                if *epoch != *last.epoch {
                    last.epoch = epoch.into();
                }
            }
            None if version == 0 && epoch.is_empty() => {}
            None => self.version = Some(Box::new(Version { number: version, epoch: epoch.into() })),
        }
        true
    }

    /// Appends the publication at offset `top` and keeps at most `size`. Publications before one that was not stored
    /// are removed. Returns the change of memory in bytes.
    pub(crate) fn keep(&mut self, publication: Publication, size: usize) -> isize {
        debug_assert_eq!(publication.offset(), self.top);
        let before = self.bytes;
        if self.publications.back().is_some_and(|last| last.offset() + 1 != publication.offset()) {
            self.clear();
        }
        self.bytes += publication.cost();
        let len = self.publications.len();
        if len == self.publications.capacity() {
            // Doubles the capacity, up to the maximum.
            self.publications.reserve_exact(len.max(2).min((size + 1).saturating_sub(len)));
        }
        self.publications.push_back(publication);
        while self.publications.len() > size {
            self.evict();
        }
        self.bytes as isize - before as isize
    }

    /// Drops the oldest publication; returns its memory.
    pub(crate) fn evict(&mut self) -> usize {
        let cost = self.publications.pop_front().map_or(0, |oldest| oldest.cost());
        self.bytes -= cost;
        cost
    }

    /// Drops all publications; returns their memory.
    pub(crate) fn clear(&mut self) -> usize {
        self.publications = VecDeque::new();
        std::mem::take(&mut self.bytes)
    }

    /// All publications after `since`, if none is missing and there are at most `max` with at most `bytes_max` bytes
    /// (0: no limit).
    pub(crate) fn recover(
        &self,
        since: StreamPosition,
        max: usize,
        bytes_max: usize,
    ) -> Option<Vec<Publication>> {
        let missed = self.top.checked_sub(since.offset)?;
        let kept = self.publications.len() as u64;
        let ends_at_top = || self.publications.back().is_some_and(|last| last.offset() == self.top);
        let whole = since.epoch.accepts(self.epoch)
            && missed <= kept
            && (max == 0 || missed <= max as u64)
            && (missed == 0 || ends_at_top());
        let publications = || self.publications.range((kept - missed) as usize..);
        let fits = || {
            bytes_max == 0 || self.bytes <= bytes_max || {
                publications().map(|publication| publication.cost()).sum::<usize>() <= bytes_max
            }
        };
        (whole && fits()).then(|| publications().cloned().collect())
    }

    /// All publications after offset `since` up to the top, from those read elsewhere and those stored here. `None`
    /// if one is missing, or they exceed `bytes_max` (0: no limit).
    pub(crate) fn join(
        &self,
        since: u64,
        read: &[Publication],
        bytes_max: usize,
    ) -> Option<Vec<Publication>> {
        let (mut joined, mut bytes) = (Vec::new(), 0);
        let mut last = since;
        for publication in read.iter().chain(&self.publications) {
            if publication.offset() == last + 1 && last < self.top {
                last = publication.offset();
                bytes += publication.cost();
                joined.push(publication.clone());
            }
        }
        (last == self.top && (bytes_max == 0 || bytes <= bytes_max)).then_some(joined)
    }

    /// Inserts publications that were read elsewhere, consecutive and in order, before the stored ones, up to `size`
    /// in total. Returns the change of memory in bytes.
    pub(crate) fn fill(&mut self, read: &[Publication], size: usize) -> isize {
        let before = self.bytes;
        for publication in read.iter().rev() {
            let next = self.publications.front().map_or(self.top, |first| first.offset() - 1);
            if publication.offset() == next && next > 0 && self.publications.len() < size {
                self.bytes += publication.cost();
                self.publications.push_front(publication.clone());
            }
        }
        self.bytes as isize - before as isize
    }

    /// The last publication, if the position is before it; `None` if it is not stored any more.
    pub(crate) fn recover_latest(&self, since: StreamPosition) -> Option<Vec<Publication>> {
        if since.offset > 0 && since == self.position() {
            return Some(Vec::new());
        }
        if since == StreamPosition::BARRED {
            return None;
        }
        let last = self.publications.back().filter(|last| last.offset() == self.top)?;
        Some(vec![last.clone()])
    }

    /// # Errors
    /// [`Error::UnrecoverablePosition`] when `since` is of another epoch, [`Error::BadRequest`]
    /// for what would be before the first offset.
    pub(crate) fn read(&self, filter: &HistoryFilter) -> Result<History, Error> {
        let position = self.position();
        let first = self.publications.front().map_or(self.top + 1, |first| first.offset());
        let kept = self.publications.len();
        let range = match filter.since {
            None => 0..kept,
            Some(since) if !since.epoch.accepts(self.epoch) => {
                return Err(Error::UnrecoverablePosition(position));
            }
            Some(since) if filter.reverse => {
                if since.offset == 0 {
                    return Err(Error::BadRequest);
                }
                // Beyond the top, or before what is kept: empty, as in Centrifugo.
                let before = since.offset - 1;
                if (first..=self.top).contains(&before) {
                    0..kept.min((before - first + 1) as usize)
                } else {
                    0..0
                }
            }
            Some(since) => {
                let start = since.offset.saturating_add(1).clamp(first, self.top + 1) - first;
                kept.min(start as usize)..kept
            }
        };
        let limit = filter.limit.map_or(usize::MAX, |limit| limit as usize);
        let mut room = filter.bytes_max.unwrap_or(usize::MAX);
        let mut fits = |publication: &&Publication| {
            // The first publication is always returned, or a reader could not advance.
            let had_room = room > 0;
            room = room.saturating_sub(publication.cost());
            had_room
        };
        let publications = self.publications.range(range);
        let publications = if filter.reverse {
            publications.rev().take(limit).take_while(&mut fits).cloned().collect()
        } else {
            publications.take(limit).take_while(&mut fits).cloned().collect()
        };
        Ok(History { publications, position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publication::PublicationParts;

    const EPOCH: Epoch = Epoch::from_u64(77);

    fn publication(offset: u64) -> Publication {
        PublicationParts { offset, ..PublicationParts::default() }.into()
    }

    fn stream(published: u64, size: usize) -> Stream {
        let mut stream = Stream::new(EPOCH, Owner::NONE);
        for offset in 1..=published {
            stream.top = offset;
            stream.keep(publication(offset), size);
        }
        stream
    }

    fn at(offset: u64) -> StreamPosition {
        StreamPosition { offset, epoch: EPOCH }
    }

    fn offsets(publications: &[Publication]) -> Vec<u64> {
        publications.iter().map(|publication| publication.offset()).collect()
    }

    #[test]
    fn recovery_is_whole_or_not_at_all() {
        let stream = stream(10, 4);
        let recover = |since, max| stream.recover(since, max, 0).map(|all| offsets(&all));
        assert_eq!(recover(at(10), 0), Some(vec![]));
        assert_eq!(recover(at(8), 0), Some(vec![9, 10]));
        assert_eq!(recover(at(6), 0), Some(vec![7, 8, 9, 10]));
        assert_eq!(recover(at(5), 0), None, "6 is gone");
        assert_eq!(recover(at(11), 0), None, "from the future");
        assert_eq!(recover(at(7), 2), None, "more than may be recovered");
        assert_eq!(recover(at(8), 2), Some(vec![9, 10]));
        let whichever = StreamPosition { offset: 9, epoch: Epoch::NONE };
        assert_eq!(recover(whichever, 0), Some(vec![10]));
        let foreign = StreamPosition { offset: 9, epoch: Epoch::FOREIGN };
        assert_eq!(recover(foreign, 0), None);
    }

    #[test]
    fn publications_not_kept_are_a_gap_at_the_end_and_never_in_between() {
        let mut stream = stream(3, 10);
        stream.top = 4;
        let read = |stream: &Stream, since: Option<u64>, reverse| {
            let filter =
                HistoryFilter { since: since.map(at), reverse, ..HistoryFilter::default() };
            offsets(&stream.read(&filter).expect("readable").publications)
        };
        assert_eq!(stream.recover(at(3), 0, 0), None);
        assert_eq!(stream.recover(at(4), 0, 0), Some(vec![]));
        assert_eq!(read(&stream, None, false), [1, 2, 3]);
        assert_eq!(read(&stream, Some(1), false), [2, 3]);
        assert_eq!(read(&stream, Some(3), false), [0u64; 0]);
        assert_eq!(read(&stream, Some(5), true), [3, 2, 1]);
        assert_eq!(read(&stream, Some(3), true), [2, 1]);
        stream.top = 5;
        stream.keep(publication(5), 10);
        assert_eq!((read(&stream, None, false), stream.recover(at(3), 0, 0)), (vec![5], None));
        assert_eq!(stream.recover(at(4), 0, 0).map(|all| offsets(&all)), Some(vec![5]));
        assert_eq!(stream.bytes(), publication(0).cost());
    }

    #[test]
    fn subscriber_of_the_state_gets_the_last_publication_alone() {
        let mut stream = stream(10, 4);
        let recover =
            |stream: &Stream, since| stream.recover_latest(since).map(|all| offsets(&all));
        assert_eq!(recover(&stream, StreamPosition::default()), Some(vec![10]));
        assert_eq!(recover(&stream, at(2)), Some(vec![10]));
        assert_eq!(
            recover(&stream, StreamPosition { offset: 10, epoch: Epoch::FOREIGN }),
            Some(vec![10])
        );
        assert_eq!(recover(&stream, at(10)), Some(vec![]));
        assert_eq!(recover(&stream, StreamPosition::BARRED), None);
        stream.clear();
        assert_eq!(recover(&stream, at(10)), Some(vec![]));
        assert_eq!(recover(&stream, at(9)), None, "it is not held any more");
    }

    #[test]
    fn a_cleared_stream_recovers_only_its_top() {
        let mut stream = stream(3, 10);
        assert!(stream.clear() > 0);
        assert_eq!(stream.recover(at(3), 0, 0), Some(vec![]));
        assert_eq!(stream.recover(at(2), 0, 0), None);
        assert_eq!(stream.position(), at(3));
    }

    #[test]
    fn history_reads_as_centrifugo_does() {
        let stream = stream(10, 4);
        let read = |since: Option<u64>, limit, reverse| {
            let filter =
                HistoryFilter { since: since.map(at), limit, reverse, ..Default::default() };
            offsets(&stream.read(&filter).expect("readable").publications)
        };
        assert_eq!(read(None, None, false), [7, 8, 9, 10]);
        assert_eq!(read(None, Some(0), false), [0u64; 0]);
        assert_eq!(read(None, Some(2), false), [7, 8]);
        assert_eq!(read(None, Some(2), true), [10, 9]);
        assert_eq!(read(Some(8), None, false), [9, 10]);
        assert_eq!(read(Some(2), Some(1), false), [7], "what is left");
        assert_eq!(read(Some(10), None, false), [0u64; 0]);
        assert_eq!(read(Some(u64::MAX), None, false), [0u64; 0]);
        assert_eq!(read(Some(9), None, true), [8, 7]);
        assert_eq!(read(Some(11), Some(1), true), [10]);
        assert_eq!(read(Some(12), None, true), [0u64; 0]);
        assert_eq!(read(Some(3), None, true), [0u64; 0]);
        let foreign = StreamPosition { offset: 3, epoch: Epoch::FOREIGN };
        let filter = HistoryFilter { since: Some(foreign), ..HistoryFilter::default() };
        assert_eq!(stream.read(&filter), Err(Error::UnrecoverablePosition(at(10))));
        let filter =
            HistoryFilter { since: Some(at(0)), reverse: true, ..HistoryFilter::default() };
        assert_eq!(stream.read(&filter), Err(Error::BadRequest));
    }

    #[test]
    fn an_answer_ends_at_a_bound_of_bytes() {
        let stream = stream(10, 10);
        let each = publication(0).cost();
        let read = |bytes_max, reverse| {
            let filter =
                HistoryFilter { bytes_max: Some(bytes_max), reverse, ..HistoryFilter::default() };
            offsets(&stream.read(&filter).expect("readable").publications)
        };
        assert_eq!(read(1, false), [1], "a page has one at least");
        assert_eq!(read(each, false), [1]);
        assert_eq!(read(each + 1, true), [10, 9]);
        assert_eq!(read(10 * each, false).len(), 10);
        assert!(stream.recover(at(7), 0, 3 * each).is_some());
        assert!(stream.recover(at(7), 0, 3 * each - 1).is_none());
    }

    #[test]
    fn versions_only_go_up_within_their_epoch() {
        let mut stream = Stream::new(EPOCH, Owner::NONE);
        assert!(stream.advance_version(5, ""));
        assert!(!stream.advance_version(5, ""));
        assert!(!stream.advance_version(4, ""));
        assert!(stream.advance_version(3, "b"), "another epoch begins anew");
        assert!(!stream.advance_version(3, "b"));
        assert!(stream.advance_version(4, "b"));
        assert!(stream.advance_version(0, ""), "without a version: always");
    }
}
