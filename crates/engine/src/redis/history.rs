//! Histories, read in pages.
//!
//! A connection with subscriptions counts for Redis as a publish/subscribe client, which it closes when more than
//! `client-output-buffer-limit pubsub` is waiting for it: 32 MiB, or 8 MiB for a minute. A script therefore stops at a bound of
//! bytes and returns the size of the next message, and the bounds of all pages in flight on a connection stay below
//! [`PAGES_BYTES_MAX`], unless one message alone is larger.

use dunlin_hub::engine::{EngineEvent, Lineage, Retention};
use dunlin_hub::{Epoch, Error, History, HistoryFilter, Publication, StreamPosition};
use dunlin_wire::resp::Value;

use std::sync::Arc;

use super::config::Layout;
use super::operation::{Operation, Queued};
use super::reply::{inherited, position};
use super::{Pending, RedisEngine};
use crate::frame::Frame;
use crate::links::ShardId;
use crate::select::StreamSlice;

/// Bytes of messages on the first page, which is enough for most histories; on each page after a connection broke.
const FIRST_PAGE_BYTES: usize = 32 << 10;

/// Bytes of messages on each later page.
const NEXT_PAGE_BYTES: usize = 1 << 20;

/// Bytes of all pages in flight on one connection.
const PAGES_BYTES_MAX: usize = 4 << 20;

/// A history that is being read.
#[derive(Debug)]
pub(crate) struct HistoryRead {
    pub(crate) token: u64,
    pub(crate) channel: Arc<str>,
    pub(crate) retention: Retention,
    filter: HistoryFilter,
    /// The publications read so far, in the requested order, and the stream's epoch then.
    publications: Vec<Publication>,
    epoch: Epoch,
    /// Maximum bytes of messages on the next page.
    pub(crate) page_bytes: usize,
    /// A connection broke while a page was in flight on it.
    was_cut: bool,
    /// Of a read of the present epoch: the last offset of the entries of earlier epochs on the pages so far, and whether the
    /// last page ended among them.
    skipped: u64,
    skips: bool,
    /// No replica is asked: none can answer, or one was asked and could not.
    pub(crate) latest: bool,
}

/// A page as a server has returned it.
pub(super) struct Page {
    pub(super) position: StreamPosition,
    pub(super) inherits: Lineage,
    /// The requested part, if it is on the page.
    pub(super) selected: Result<History, Error>,
    /// The size of the next message in bytes; 0 if there is none.
    pub(super) more: usize,
    /// The last offset of its entries of earlier epochs; 0 if there is none, or they are wanted.
    skipped: u64,
}

impl HistoryRead {
    pub(crate) fn new(
        token: u64,
        channel: Arc<str>,
        retention: Retention,
        filter: HistoryFilter,
        latest: bool,
    ) -> HistoryRead {
        HistoryRead {
            token,
            channel,
            retention,
            filter,
            publications: Vec::new(),
            epoch: Epoch::NONE,
            page_bytes: FIRST_PAGE_BYTES,
            was_cut: false,
            skipped: 0,
            skips: false,
            latest,
        }
    }

    /// Returns what is still to be read.
    pub(crate) fn rest(&self) -> HistoryFilter {
        let mut rest = self.filter;
        let Some(last) = self.publications.last() else {
            let skipped = StreamPosition { offset: self.skipped, epoch: self.epoch };
            rest.since = (self.skipped > 0).then_some(skipped).or(rest.since);
            return rest;
        };
        rest.since = Some(StreamPosition { offset: last.offset(), epoch: self.epoch });
        rest.limit = rest.limit.map(|limit| limit.saturating_sub(self.publications.len() as u32));
        rest.bytes_max = rest.bytes_max.map(|bytes_max| {
            let costs = self.publications.iter().map(Publication::cost);
            costs.fold(bytes_max, usize::saturating_sub)
        });
        rest
    }

    /// Adds the page that [`rest`](Self::rest) asked for, which is followed by a message of `more` bytes, if any. Returns the
    /// whole history once nothing is left to read.
    fn take(
        &mut self,
        page: Result<History, Error>,
        more: usize,
    ) -> Option<Result<History, Error>> {
        let page = match page {
            Ok(page) => page,
            // Since the last page the stream continued in an epoch that inherits nothing of it: it is read from the beginning.
            Err(Error::UnrecoverablePosition(_))
                if !self.publications.is_empty() || self.skipped > 0 =>
            {
                self.publications.clear();
                self.skipped = 0;
                return None;
            }
            Err(error) => return Some(Err(error)),
        };
        // The following publications were removed since the last page, and so were the older ones read before.
        let is_behind = |last: &Publication| match page.publications.first() {
            Some(next) => next.offset() > last.offset() + 1,
            None => more == 0 && page.position.offset > last.offset(),
        };
        let has_limit = self.rest().limit.is_some();
        let is_cut = !self.filter.reverse && self.publications.last().is_some_and(is_behind);
        if is_cut {
            self.publications.clear();
        }
        self.publications.extend(page.publications);
        self.epoch = page.position.epoch;
        let rest = self.rest();
        let is_full = rest.limit == Some(0) || rest.bytes_max == Some(0);
        if is_full || more == 0 && !(is_cut && has_limit) && !self.skips {
            let publications = std::mem::take(&mut self.publications);
            return Some(Ok(History { publications, position: page.position }));
        }
        let next_bytes = if self.was_cut { FIRST_PAGE_BYTES } else { NEXT_PAGE_BYTES };
        self.page_bytes = next_bytes.max(more);
        None
    }

    /// Makes the next page smaller after a connection broke with a page in flight. Returns false if that has happened before.
    pub(crate) fn repeat_smaller(&mut self) -> bool {
        self.page_bytes = FIRST_PAGE_BYTES;
        !std::mem::replace(&mut self.was_cut, true)
    }
}

impl RedisEngine {
    /// Returns the next waiting history, if the connection has room for its page.
    pub(super) fn next_history(&mut self, partition: usize, shard: ShardId) -> Option<Queued> {
        let place = &mut self.partitions[partition];
        let Operation::History(read) = &place.histories.front()?.operation else { return None };
        let link = &mut self.links[usize::from(shard.0)];
        if link.pages_bytes > 0 && link.pages_bytes + read.page_bytes > PAGES_BYTES_MAX {
            link.pages_wait = true;
            return None;
        }
        place.histories.pop_front()
    }

    /// Frees the space of a page whose command was answered, or lost with its connection.
    pub(super) fn page_ended(&mut self, shard: ShardId, pending: Option<&Pending>) {
        let Some(Operation::History(read)) = pending.and_then(Pending::operation) else { return };
        let Some(link) = self.links.get_mut(usize::from(shard.0)) else { return };
        link.pages_bytes = link.pages_bytes.saturating_sub(read.page_bytes);
        if std::mem::take(&mut link.pages_wait) {
            for partition in 0..self.partitions.len() {
                let place = &self.partitions[partition];
                if place.link == Some(shard) && !place.histories.is_empty() {
                    self.touch(partition);
                }
            }
        }
    }

    /// Handles a page.
    pub(super) fn history_reply(
        &mut self,
        now_ms: u64,
        partition: usize,
        read: Box<HistoryRead>,
        reply: &Value<'_>,
    ) {
        let Some([epoch, top, before, entries, more]) = reply.elements() else {
            return self.history_ended(read.token, Err(Error::EngineRefused));
        };
        let page = self.page(&read, [epoch, top, before, entries, more]);
        self.learn(now_ms, partition, &read.channel, page.position, None);
        self.page_came(now_ms, partition, read, page);
    }

    /// Parses a server's answer to a read.
    pub(super) fn page(&self, read: &HistoryRead, said: [&Value<'_>; 5]) -> Page {
        let [epoch, top, before, entries, more] = said;
        let (position, inherits) = (position(epoch, top), inherited(before));
        let entries = entries.elements().unwrap_or_default();
        let part = StreamSlice { position, inherits: &inherits, size: read.retention.size };
        let selected = self.select_part(&part, entries, &read.rest());
        let more = match more {
            Value::Integer(bytes) => usize::try_from(*bytes).unwrap_or_default(),
            _ => 0,
        };
        let earlier = |entry: &Value<'_>| {
            let frame = Frame::parse(entry.bytes().unwrap_or_default()).ok()?;
            (frame.position.epoch != position.epoch).then_some(frame.position.offset)
        };
        let skips = read.filter.present_epoch && self.config.layout == Layout::Dunlin;
        let skipped = if skips { entries.iter().rev().find_map(earlier).unwrap_or(0) } else { 0 };
        Page { position, inherits, selected, more, skipped }
    }

    /// Accepts a page: the read ends, or requests the next page.
    pub(super) fn page_came(
        &mut self,
        now_ms: u64,
        partition: usize,
        mut read: Box<HistoryRead>,
        page: Page,
    ) {
        let Page { position, inherits, selected, more, skipped } = page;
        read.skips = skipped > read.skipped && skipped < position.offset;
        read.skipped = read.skipped.max(skipped);
        let (token, channel) = (read.token, Arc::clone(&read.channel));
        let Some(result) = read.take(selected, more) else {
            let queued = Queued::new(Operation::History(read), now_ms, &self.queue_bytes);
            self.partitions[partition].histories.push_front(queued);
            return self.touch(partition);
        };
        if read.rest().since.is_some() && !inherits.is_empty() {
            let epoch = position.epoch;
            self.events.push_back(EngineEvent::Lineage { channel, epoch, inherits });
        }
        self.history_ended(token, result);
    }

    fn history_ended(&mut self, token: u64, result: Result<History, Error>) {
        self.stats.unreadable += u64::from(result == Err(Error::EngineRefused));
        self.events.push_back(EngineEvent::History { token, result });
    }
}

#[cfg(test)]
mod tests {
    use dunlin_hub::PublicationParts;

    use super::*;

    const RETENTION: Retention =
        Retention { size: 10, ttl_ms: 1, meta_ttl_ms: 1, durability: None };

    fn read(filter: HistoryFilter) -> HistoryRead {
        HistoryRead::new(1, "a".into(), RETENTION, filter, false)
    }

    /// A page of a stream with this epoch and top.
    fn page(epoch: &str, top: u64, offsets: &[u64]) -> Result<History, Error> {
        let publication = |&offset: &u64| {
            let parts = PublicationParts { offset, ..PublicationParts::default() };
            Publication::from(parts)
        };
        let position = StreamPosition { offset: top, epoch: Epoch::parse(epoch) };
        Ok(History { publications: offsets.iter().map(publication).collect(), position })
    }

    fn offsets(result: Option<Result<History, Error>>) -> Vec<u64> {
        let history = result.expect("the whole").expect("no error");
        history.publications.iter().map(Publication::offset).collect()
    }

    #[test]
    fn pages_follow_each_other_in_the_order_that_was_asked_for() {
        let mut forward = read(HistoryFilter::default());
        assert_eq!(
            forward.take(page("A", 4, &[]), 70_000),
            None,
            "one that does not fit is read alone"
        );
        assert!(forward.page_bytes >= 70_000);
        assert_eq!(forward.take(page("A", 4, &[1, 2]), 10), None);
        assert_eq!(forward.rest().since.map(|since| since.offset), Some(2));
        assert_eq!(offsets(forward.take(page("A", 5, &[3, 4, 5]), 0)), [1, 2, 3, 4, 5]);
        let mut back = read(HistoryFilter { reverse: true, limit: Some(3), ..Default::default() });
        assert_eq!(back.take(page("A", 4, &[4, 3]), 10), None);
        assert_eq!(back.rest().limit, Some(1));
        assert_eq!(offsets(back.take(page("A", 5, &[2]), 10)), [4, 3, 2]);
    }

    #[test]
    fn history_trimmed_between_two_pages_leaves_no_hole() {
        let mut trimmed = read(HistoryFilter::default());
        assert_eq!(trimmed.take(page("A", 4, &[1, 2]), 10), None);
        assert_eq!(offsets(trimmed.take(page("A", 9, &[4, 5]), 0)), [4, 5]);
        let mut removed = read(HistoryFilter::default());
        assert_eq!(removed.take(page("A", 4, &[1, 2]), 10), None);
        assert_eq!(offsets(removed.take(page("A", 4, &[]), 0)), [0; 0]);
        let mut limited = read(HistoryFilter { limit: Some(3), ..HistoryFilter::default() });
        assert_eq!(limited.take(page("A", 4, &[1, 2]), 10), None);
        assert_eq!(
            limited.take(page("A", 9, &[5]), 0),
            None,
            "there may be more than was asked for"
        );
        assert_eq!(offsets(limited.take(page("A", 9, &[6, 7]), 0)), [5, 6, 7]);
    }

    #[test]
    fn a_stream_that_begins_anew_between_two_pages_is_read_anew() {
        let mut anew = read(HistoryFilter::default());
        assert_eq!(anew.take(page("A", 4, &[1, 2]), 10), None);
        let at = StreamPosition { offset: 1, epoch: Epoch::parse("B") };
        assert_eq!(anew.take(Err(Error::UnrecoverablePosition(at)), 0), None);
        assert_eq!(anew.rest(), HistoryFilter::default());
        assert_eq!(offsets(anew.take(page("B", 1, &[1]), 0)), [1]);
        let mut unknown = read(HistoryFilter::default());
        let refused = Err(Error::UnrecoverablePosition(at));
        assert_eq!(
            unknown.take(refused.clone(), 0),
            Some(refused),
            "of the first page it is the answer"
        );
    }

    #[test]
    fn a_page_whose_connection_broke_is_smaller_and_then_fails() {
        let mut cut = read(HistoryFilter::default());
        assert_eq!(cut.take(page("A", 4, &[1]), 10), None);
        assert_eq!(cut.page_bytes, NEXT_PAGE_BYTES);
        assert!(cut.repeat_smaller() && cut.page_bytes == FIRST_PAGE_BYTES);
        assert_eq!(cut.take(page("A", 4, &[2]), 10), None);
        assert_eq!(cut.page_bytes, FIRST_PAGE_BYTES);
        assert!(!cut.repeat_smaller());
    }
}
