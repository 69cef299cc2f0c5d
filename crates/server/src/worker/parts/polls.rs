//! Pending long-polls: what each has missed, its next position, and when it is answered.

use std::sync::Arc;

use dunlin_hub::{
    Epoch, Error, History, HistoryFilter, Publication, SessionId, StreamPosition, Subscribed,
    tenant,
};
use dunlin_net::ConnId;
use dunlin_protocol::long_poll::{Gap, ResponseChannel, write_publication_item, write_response};

use ring::digest;

use super::FastMap;

/// The pending polls of one worker.
#[derive(Default)]
pub(crate) struct Polls {
    of: FastMap<SessionId, Poll>,
    /// Polls to respond to, once no event of the hub is left: the end of a subscription may be among them.
    due: Vec<SessionId>,
}

/// A long-poll that waits for its response.
pub(crate) struct Poll {
    pub(crate) conn: ConnId,
    /// The origin of the request, which must be permitted to read the response.
    pub(crate) origin: Option<Box<str>>,
    /// The key that signed its token.
    key: Option<u64>,
    timeout_ms: u32,
    /// The most bytes of missed publications; further channels wait for the next poll.
    bytes_max: usize,
    channels: Vec<PollChannel>,
    /// Items of the response, each preceded by a comma.
    items: Vec<u8>,
    /// Subscriptions and history pages that the hub has not answered yet.
    outstanding: usize,
    /// The response is a page of history; the outbox, whose content is newer, is not part of it.
    paged: bool,
}

struct PollChannel {
    name: Arc<str>,
    /// The position of the cursor.
    since: Option<StreamPosition>,
    missed: Missed,
    /// The client's position after what was missed: the start of the subscription, unless a page ends earlier. `None`: the
    /// cursor is repeated as it came.
    position: Option<StreamPosition>,
    /// Where the server ended the subscription; the outbox has what was published before.
    ended: Option<StreamPosition>,
    /// The page of history that is read is the stream's present epoch, since the cursor's is not continued.
    reads_new_stream: bool,
    gap: Option<Gap>,
}

/// What a client can get of the messages between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// They are read from the history.
    Readable,
    /// The history is not for this client: it is notified when there were any.
    Withheld,
    /// The channel has no history: nobody knows whether there were any, and each response says so.
    NotKept,
}

/// The next step of a poll.
#[derive(Debug, PartialEq)]
pub(crate) enum PollStep {
    /// Wait for the hub.
    Wait,
    /// One recovery does not contain all that was missed: read this page of the channel's history.
    ReadHistory(HistoryFilter),
    /// Nothing was missed: wait for a publication, at most this long.
    Park { conn: ConnId, timeout_ms: u32 },
    /// Answer now.
    Respond,
    /// The hub has refused a subscription.
    Fail(Error),
}

impl Polls {
    pub(crate) fn begin(&mut self, session: SessionId, poll: Poll) {
        self.of.insert(session, poll);
    }

    pub(crate) fn contains(&self, session: SessionId) -> bool {
        self.of.contains_key(&session)
    }

    /// Returns the sessions for which `of` is true, given the key that signed their token.
    pub(crate) fn sessions(&self, of: impl Fn(SessionId, Option<u64>) -> bool) -> Vec<SessionId> {
        let fits = self.of.iter().filter(|(session, poll)| of(**session, poll.key));
        fits.map(|(session, _)| *session).collect()
    }

    /// Removes a poll that is answered, or whose client is gone.
    pub(crate) fn take(&mut self, session: SessionId) -> Option<Poll> {
        self.of.remove(&session)
    }

    /// Notes that a poll is to be responded to.
    pub(crate) fn make_due(&mut self, session: SessionId) {
        self.due.push(session);
    }

    /// Returns a poll to respond to.
    pub(crate) fn take_due(&mut self) -> Option<SessionId> {
        self.due.pop()
    }

    /// Handles the answer to a subscription. A page of history has at most `page_max` publications.
    pub(crate) fn handle_subscribed(
        &mut self,
        session: SessionId,
        channel: &str,
        result: Result<Subscribed, Error>,
        page_max: u32,
    ) -> PollStep {
        let Some((poll, at)) = self.entry(session, channel) else { return PollStep::Wait };
        let subscribed = match result {
            Ok(subscribed) => subscribed,
            Err(error) => return PollStep::Fail(error),
        };
        let (entry, position) = (&mut poll.channels[at], subscribed.position);
        if let Some(cursor) = &subscribed.cursor {
            if cursor.was_reset {
                entry.gap = Some(Gap::NewStream);
            } else if cursor.trimmed_before.is_some() {
                entry.gap = Some(Gap::Expired);
            }
            // It continues there if one response does not hold all.
            entry.since.get_or_insert(cursor.since());
        }
        if let Some(since) = entry.since.filter(|_| !subscribed.recovered) {
            if entry.missed == Missed::Withheld {
                let is_at_beginning = since == StreamPosition::default() && position.offset == 0;
                let is_here = since == position || since == sealed(&entry.name, position);
                let missed_nothing = is_at_beginning || is_here;
                entry.gap = (!missed_nothing).then_some(Gap::NoHistory);
            } else if !position.epoch.is_none() {
                // The stream may continue that of the cursor under another epoch: its keeper knows.
                let (since, limit) = (Some(since), Some(page_max));
                let filter = HistoryFilter { since, limit, ..HistoryFilter::default() };
                return PollStep::ReadHistory(filter);
            } else {
                // A channel without history has nothing to recover; the client is notified of the gap all the same.
                entry.gap = Some(Gap::between(since, position));
            }
        }
        entry.position = Some(position);
        poll.advance(at, &subscribed.publications)
    }

    /// Handles a page of history.
    pub(crate) fn handle_history(
        &mut self,
        session: SessionId,
        channel: &str,
        result: Result<History, Error>,
        page_max: u32,
    ) -> PollStep {
        let Some((poll, at)) = self.entry(session, channel) else { return PollStep::Wait };
        let entry = &mut poll.channels[at];
        let history = match result {
            Ok(history) => history,
            Err(Error::UnrecoverablePosition(_)) if !entry.reads_new_stream => {
                entry.reads_new_stream = true;
                let (present_epoch, limit) = (true, Some(page_max));
                let filter = HistoryFilter { present_epoch, limit, ..HistoryFilter::default() };
                return PollStep::ReadHistory(filter);
            }
            Err(error) => return PollStep::Fail(error),
        };
        poll.paged = true;
        let since = entry.since.unwrap_or_default();
        let follows =
            history.publications.first().is_some_and(|first| first.offset() == since.offset + 1);
        let from_the_beginning = since.epoch.is_none() && since.offset == 0;
        if entry.reads_new_stream {
            entry.gap = Some(Gap::NewStream);
        } else if !(follows || from_the_beginning) {
            entry.gap = Some(Gap::Expired);
        }
        let last = history.publications.last().map(Publication::offset);
        let position = history.position;
        entry.position =
            Some(StreamPosition { offset: last.unwrap_or(position.offset), ..position });
        poll.advance(at, &history.publications)
    }

    /// Handles the end of a session whose outbox overflowed in one turn: the response has the positions of the request, and the
    /// next poll finds everything in the history.
    pub(crate) fn handle_overflow(&mut self, session: SessionId) {
        let Some(poll) = self.of.get_mut(&session) else { return };
        poll.paged = true;
        poll.items.clear();
        for entry in &mut poll.channels {
            entry.repeat_cursor();
        }
    }

    /// Handles the end of a subscription by the server, after publications up to `position`. The response is due: what follows
    /// does not reach the poll, and the next one reads it from there.
    pub(crate) fn handle_unsubscribed(
        &mut self,
        session: SessionId,
        channel: &str,
        position: StreamPosition,
    ) -> PollStep {
        let Some((poll, at)) = self.entry(session, channel) else { return PollStep::Wait };
        poll.channels[at].ended = Some(position);
        if poll.outstanding > 0 { PollStep::Wait } else { PollStep::Respond }
    }

    fn entry(&mut self, session: SessionId, channel: &str) -> Option<(&mut Poll, usize)> {
        let poll = self.of.get_mut(&session)?;
        let at = poll.channels.iter().position(|entry| *entry.name == *channel)?;
        Some((poll, at))
    }
}

impl Poll {
    /// Creates a poll of these channels, each with its cursor.
    pub(crate) fn new(
        conn: ConnId,
        key: Option<u64>,
        (timeout_ms, bytes_max): (u32, usize),
        origin: Option<&str>,
        channels: impl Iterator<Item = (Arc<str>, Option<StreamPosition>, Missed)>,
    ) -> Poll {
        let channels: Vec<PollChannel> = channels
            .map(|(name, since, missed)| PollChannel {
                name,
                since,
                missed,
                position: None,
                ended: None,
                reads_new_stream: false,
                gap: None,
            })
            .collect();
        Poll {
            conn,
            origin: origin.map(Into::into),
            key,
            timeout_ms,
            bytes_max,
            outstanding: channels.len(),
            channels,
            items: Vec::new(),
            paged: false,
        }
    }

    /// Returns the names of the channels.
    pub(crate) fn channels(&self) -> impl ExactSizeIterator<Item = &str> {
        self.channels.iter().map(|entry| &*entry.name)
    }

    /// Whether the content of the session's outbox belongs to the response: [`Poll::handle_outbox`].
    pub(crate) fn wants_outbox(&self) -> bool {
        !self.paged
    }

    /// Adds items of the outbox; [`Poll::set_positions`] must follow the last of them.
    pub(crate) fn handle_outbox(&mut self, items: &[u8]) {
        self.items.extend_from_slice(items);
    }

    /// Sets the positions of the channels at the end of the outbox: where the session stands in those that it is subscribed to,
    /// and where it stood in those that it is not any more.
    pub(crate) fn set_positions(&mut self, position: impl Fn(&str) -> Option<StreamPosition>) {
        for entry in &mut self.channels {
            let end = entry.ended.or_else(|| position(&entry.name));
            entry.position = end.or(entry.position);
        }
    }

    /// Returns the body of the response.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let channels: Vec<ResponseChannel<'_>> = self
            .channels
            .iter()
            .map(|entry| ResponseChannel {
                channel: tenant::bare(&entry.name),
                position: entry.cursor(),
                is_sealed: entry.missed == Missed::Withheld,
                gap: entry.gap.or_else(|| {
                    (entry.missed == Missed::NotKept && entry.since.is_some())
                        .then_some(Gap::NoHistory)
                }),
            })
            .collect();
        let mut body = Vec::new();
        write_response(&mut body, &self.items, &channels);
        body
    }

    /// Adds what was missed in a channel.
    fn advance(&mut self, at: usize, missed: &[Publication]) -> PollStep {
        let entry = &mut self.channels[at];
        let bytes: usize = missed.iter().map(|publication| publication.data().len()).sum();
        if missed.is_empty() || self.items.is_empty() || self.items.len() + bytes <= self.bytes_max
        {
            for publication in missed {
                write_publication_item(&mut self.items, tenant::bare(&entry.name), publication);
            }
        } else {
            // It does not fit: the next poll starts at the same position.
            entry.repeat_cursor();
            entry.gap = None;
            self.paged = true;
        }
        self.outstanding -= 1;
        if self.outstanding > 0 {
            return PollStep::Wait;
        }
        let is_due = |of: &PollChannel| of.gap.is_some() || of.ended.is_some();
        let has_news = !self.items.is_empty() || self.channels.iter().any(is_due);
        if has_news || self.timeout_ms == 0 {
            return PollStep::Respond;
        }
        PollStep::Park { conn: self.conn, timeout_ms: self.timeout_ms }
    }
}

impl PollChannel {
    /// The next poll starts where this one did. Without a cursor that is where the subscription began.
    fn repeat_cursor(&mut self) {
        if self.since.is_some() {
            self.position = None;
        }
    }

    /// Returns where the next poll continues. A cursor that is repeated was sealed before, if it has to be.
    fn cursor(&self) -> StreamPosition {
        match (self.position, self.missed) {
            (None, _) => self.since.unwrap_or_default(),
            (Some(position), Missed::Withheld) => sealed(&self.name, position),
            (Some(position), Missed::Readable | Missed::NotKept) => position,
        }
    }
}

/// Returns what the cursor of a client has that may not read the history: it tells whether something was published since, and
/// neither where the stream stands nor which it is. The epoch, which such a client never sees, is the key, so that any node
/// recognises it.
fn sealed(channel: &str, position: StreamPosition) -> StreamPosition {
    let mut digest = digest::Context::new(&digest::SHA256);
    digest.update(&position.epoch.to_u64().to_le_bytes());
    digest.update(&position.offset.to_le_bytes());
    digest.update(channel.as_bytes());
    let mut seal = [0; 8];
    seal.copy_from_slice(&digest.finish().as_ref()[..8]);
    StreamPosition { offset: 0, epoch: Epoch::from_u64(u64::from_le_bytes(seal)) }
}

#[cfg(test)]
mod tests {
    use dunlin_hub::PublicationParts;
    use serde_json::Value;

    use super::*;

    const EPOCH: &str = "a1";

    fn session() -> SessionId {
        SessionId::pack(0, 0, 0, 1, 0)
    }

    fn at(offset: u64) -> StreamPosition {
        StreamPosition { offset, epoch: Epoch::parse(EPOCH) }
    }

    fn polls(timeout_ms: u32, channels: &[(&str, Option<StreamPosition>)]) -> Polls {
        let channels =
            channels.iter().map(|(name, since)| (Arc::from(*name), *since, Missed::Readable));
        let mut polls = Polls::default();
        let poll = Poll::new(ConnId::from_u64(1), None, (timeout_ms, 1 << 20), None, channels);
        polls.begin(session(), poll);
        polls
    }

    fn publications(offsets: std::ops::RangeInclusive<u64>) -> Vec<Publication> {
        let each = offsets.map(|offset| {
            let data = format!("\"p{offset}\"").into_bytes().into();
            PublicationParts { offset, data, ..PublicationParts::default() }.into()
        });
        each.collect()
    }

    fn recovered(position: StreamPosition, missed: Vec<Publication>) -> Subscribed {
        Subscribed {
            position,
            was_recovering: true,
            recovered: true,
            publications: missed,
            positioned: true,
            recoverable: true,
            delta: false,
            members: Vec::new(),
            cursor: None,
        }
    }

    fn body(polls: &mut Polls) -> Value {
        let poll = polls.take(session()).expect("the poll waits");
        serde_json::from_slice(&poll.encode()).expect("a response is JSON")
    }

    #[test]
    fn a_poll_that_missed_something_is_answered_when_its_last_channel_has_said_so() {
        let mut polls = polls(1000, &[("news", Some(at(3))), ("chat", None)]);
        let missed = recovered(at(5), publications(4..=5));
        assert_eq!(
            polls.handle_subscribed(session(), "news", Ok(missed), 100),
            PollStep::Wait,
            "chat is outstanding"
        );
        let subscribed = Subscribed { position: at(9), ..Subscribed::default() };
        let step = polls.handle_subscribed(session(), "chat", Ok(subscribed), 100);
        assert_eq!(step, PollStep::Respond);
        let body = body(&mut polls).to_string();
        assert!(body.contains("p4") && body.contains("p5") && !body.contains("gap"), "{body}");
    }

    #[test]
    fn a_poll_that_times_out_is_answered_with_nothing_and_where_it_stood() {
        let mut polls = polls(1000, &[("news", Some(at(5)))]);
        let step = polls.handle_subscribed(session(), "news", Ok(recovered(at(5), vec![])), 100);
        let parked = PollStep::Park { conn: ConnId::from_u64(1), timeout_ms: 1000 };
        assert_eq!(step, parked);
        // When the deadline passes, the outbox is empty and the hub's position unchanged.
        let mut poll = polls.take(session()).unwrap();
        assert!(poll.wants_outbox());
        let before = poll.encode();
        poll.set_positions(|_| Some(at(5)));
        assert_eq!(poll.encode(), before);
        assert!(polls.take(session()).is_none(), "answered once");
    }

    #[test]
    fn a_poll_without_a_timeout_is_answered_at_once() {
        let mut polls = polls(0, &[("news", None)]);
        let subscribed = Subscribed { position: at(9), ..Subscribed::default() };
        let step = polls.handle_subscribed(session(), "news", Ok(subscribed), 100);
        assert_eq!(step, PollStep::Respond);
    }

    #[test]
    fn a_cursor_too_far_back_is_answered_with_a_page_and_no_outbox() {
        let mut polls = polls(1000, &[("news", Some(at(3)))]);
        let subscribed =
            Subscribed { position: at(900), was_recovering: true, ..Subscribed::default() };
        let step = polls.handle_subscribed(session(), "news", Ok(subscribed), 100);
        let filter =
            HistoryFilter { since: Some(at(3)), limit: Some(100), ..HistoryFilter::default() };
        assert_eq!(step, PollStep::ReadHistory(filter));
        let page = History { position: at(900), publications: publications(4..=103) };
        assert_eq!(polls.handle_history(session(), "news", Ok(page), 100), PollStep::Respond);
        let poll = polls.of.get(&session()).unwrap();
        assert!(!poll.wants_outbox(), "the outbox is at 900");
        assert_eq!((poll.channels[0].cursor(), poll.channels[0].gap), (at(103), None));
    }

    #[test]
    fn a_page_that_does_not_follow_the_cursor_is_marked_as_a_gap() {
        let mut polls = polls(1000, &[("news", Some(at(3)))]);
        let subscribed = Subscribed { position: at(900), ..Subscribed::default() };
        polls.handle_subscribed(session(), "news", Ok(subscribed), 100);
        let page = History { position: at(900), publications: publications(801..=900) };
        assert_eq!(polls.handle_history(session(), "news", Ok(page), 100), PollStep::Respond);
        assert_eq!(polls.of[&session()].channels[0].gap, Some(Gap::Expired));
    }

    /// The stream may go on in another epoch (a failover), or be another one: its keeper decides.
    #[test]
    fn poll_after_new_stream_reads_what_no_earlier_epoch_had() {
        let mut polls = polls(1000, &[("news", Some(at(5)))]);
        let other = StreamPosition { offset: 7, epoch: Epoch::parse("b2") };
        let subscribed = Subscribed { position: other, ..Subscribed::default() };
        let step = polls.handle_subscribed(session(), "news", Ok(subscribed), 100);
        let limit = Some(100);
        let since = HistoryFilter { since: Some(at(5)), limit, ..HistoryFilter::default() };
        assert_eq!(step, PollStep::ReadHistory(since));
        let refused = Err(Error::UnrecoverablePosition(other));
        let present = HistoryFilter { present_epoch: true, limit, ..HistoryFilter::default() };
        let step = polls.handle_history(session(), "news", refused, 100);
        assert_eq!(step, PollStep::ReadHistory(present));
        let page = History { position: other, publications: publications(6..=7) };
        assert_eq!(polls.handle_history(session(), "news", Ok(page), 100), PollStep::Respond);
        let entry = &polls.of[&session()].channels[0];
        assert_eq!((entry.cursor(), entry.gap), (other, Some(Gap::NewStream)));
    }

    #[test]
    fn poll_whose_stream_goes_on_in_another_epoch_has_no_gap() {
        let mut polls = polls(1000, &[("news", Some(at(5)))]);
        let other = StreamPosition { offset: 7, epoch: Epoch::parse("b2") };
        let subscribed = Subscribed { position: other, ..Subscribed::default() };
        polls.handle_subscribed(session(), "news", Ok(subscribed), 100);
        let page = History { position: other, publications: publications(6..=7) };
        assert_eq!(polls.handle_history(session(), "news", Ok(page), 100), PollStep::Respond);
        let entry = &polls.of[&session()].channels[0];
        assert_eq!((entry.cursor(), entry.gap), (other, None));
    }

    #[test]
    fn poll_whose_subscription_ended_answers_where_it_stood() {
        let mut polls = polls(1000, &[("news", Some(at(5))), ("chat", Some(at(2)))]);
        polls.handle_subscribed(session(), "news", Ok(recovered(at(5), vec![])), 100);
        // Before the other channel is answered, and after two publications that are in the outbox.
        let step = polls.handle_unsubscribed(session(), "news", at(7));
        assert_eq!(step, PollStep::Wait);
        let step = polls.handle_subscribed(session(), "chat", Ok(recovered(at(2), vec![])), 100);
        assert_eq!(step, PollStep::Respond, "it does not wait for a subscription that has ended");
        let mut poll = polls.take(session()).unwrap();
        // Another subscriber has come back to the channel, and the hub is further.
        poll.set_positions(|channel| (channel == "chat").then(|| at(3)));
        let positions: Vec<_> = poll.channels.iter().map(|of| (of.cursor(), of.gap)).collect();
        assert_eq!(positions, [(at(7), None), (at(3), None)]);
    }

    #[test]
    fn poll_of_a_channel_without_history_says_that_messages_may_be_missing() {
        let channels = [(Arc::from("news"), Some(StreamPosition::default()), Missed::NotKept)];
        let mut polls = Polls::default();
        let conn = ConnId::from_u64(1);
        let poll = Poll::new(conn, None, (1000, 1 << 20), None, channels.into_iter());
        polls.begin(session(), poll);
        let subscribed = recovered(StreamPosition::default(), vec![]);
        let step = polls.handle_subscribed(session(), "news", Ok(subscribed), 100);
        assert_eq!(step, PollStep::Park { conn, timeout_ms: 1000 }, "it waits all the same");
        let body = body(&mut polls);
        assert_eq!(body["gap"][0]["reason"], "no_history", "{body}");
    }

    #[test]
    fn an_outbox_that_overflows_sends_the_client_back_to_where_it_stood() {
        let mut polls = polls(1000, &[("news", Some(at(5)))]);
        polls.handle_subscribed(session(), "news", Ok(recovered(at(7), publications(6..=7))), 100);
        polls.handle_overflow(session());
        let poll = polls.take(session()).unwrap();
        assert!(!poll.wants_outbox() && poll.items.is_empty());
        assert_eq!(poll.channels[0].cursor(), at(5));
    }

    /// Regression: a cursor that was repeated was sealed once more, and the poll after it reported a gap where nothing was missed.
    #[test]
    fn poll_with_a_repeated_sealed_cursor_has_no_gap() {
        let cursor = sealed("quiet", at(5));
        let begin = |since| {
            let channels = [
                (Arc::from("news"), Some(at(3)), Missed::Readable),
                (Arc::from("quiet"), Some(since), Missed::Withheld),
            ];
            let mut polls = Polls::default();
            let bounds = (1000, 1 << 20);
            polls.begin(
                session(),
                Poll::new(ConnId::from_u64(1), None, bounds, None, channels.into_iter()),
            );
            let here = Subscribed { position: at(5), ..Subscribed::default() };
            polls.handle_subscribed(session(), "quiet", Ok(here), 100);
            polls.handle_subscribed(session(), "news", Ok(recovered(at(3), vec![])), 100);
            polls
        };
        let mut polls = begin(cursor);
        polls.handle_overflow(session());
        let poll = polls.take(session()).unwrap();
        let repeated = poll.channels[1].cursor();
        assert_eq!(repeated, cursor);
        // Nothing was published to the quiet channel since.
        let poll = begin(repeated).take(session()).unwrap();
        assert_eq!((poll.channels[1].gap, poll.channels[1].cursor()), (None, cursor));
    }

    #[test]
    fn a_refused_subscription_fails_the_poll() {
        let mut polls = polls(1000, &[("news", None)]);
        let step = polls.handle_subscribed(session(), "news", Err(Error::LimitExceeded), 100);
        assert_eq!(step, PollStep::Fail(Error::LimitExceeded));
        let of_nobody = polls.handle_subscribed(session(), "other", Err(Error::Timeout), 100);
        assert_eq!(of_nobody, PollStep::Wait);
    }
}
