//! Acknowledgements: cursors of the channels at home here, and subscriptions that begin at them.

use std::sync::Arc;

use super::Hub;
use crate::agent::EngineWaiterKind;
use crate::command::HistoryFilter;
use crate::config::Now;
use crate::cursor::{
    CursorAction, CursorJob, CursorOwner, CursorRequest, CursorRound, CursorState, CursorStep,
    RECORDS_KEPT, StreamEnds, UserCursors,
};
use crate::cursor_table::record_name;
use crate::engine::{EngineId, EnginePublish, EngineRequest, Retention};
use crate::error::Error;
use crate::event::{Event, History, Published};
use crate::message::{HubMessageKind, ReplyContent, SubscribeRequest};
use crate::options::{AckOptions, ChannelOptions, ChannelRef};
use crate::pending_requests::Waiter;
use crate::position::StreamPosition;
use crate::publication::{NewPublication, PayloadFormat};
use crate::session_id::SessionId;

/// Requests that wait for records in engines, on one worker.
const JOBS_MAX: usize = 1 << 16;

impl Hub {
    /// Acknowledges everything up to a position for a user's device, or reads its cursor if `acked` is `None`; ends with
    /// [`Event::Cursor`]. A position without an epoch is of the present one.
    pub fn handle_cursor(
        &mut self,
        now: Now,
        token: u64,
        ChannelRef { name: channel, options }: ChannelRef<'_>,
        owner: CursorOwner,
        acked: Option<StreamPosition>,
    ) {
        self.now = now;
        let checked = match options.ack {
            Some(_) if options.keeps_history() => {
                self.check_name(channel).and_then(|()| owner.check())
            }
            _ => Err(Error::AckOff),
        };
        let sent = checked.and_then(|()| {
            let (home, channel) = self.home_of(channel);
            let options = Arc::clone(options);
            self.request(home, Waiter::Cursor { token, home }, |request| {
                let action = acked.map_or(CursorAction::Read, CursorAction::Acknowledge);
                let asked = CursorRequest { request, channel, options, owner, action };
                HubMessageKind::Cursor(Box::new(asked))
            })
        });
        if let Err(error) = sent {
            self.events.push_back(Event::Cursor { token, result: Err(error) });
        }
        self.run();
    }

    pub(super) fn home_cursor(&mut self, from: u8, asked: CursorRequest) {
        let user = asked.owner.user.clone();
        self.cursor_job(from, &user, CursorJob::Request(Box::new(asked)));
    }

    /// Serves a subscription that begins at a cursor once that is known. Returns one that does not.
    pub(super) fn wait_for_cursor(
        &mut self,
        from: u8,
        asked: SubscribeRequest,
    ) -> Option<SubscribeRequest> {
        let Some(owner) = asked.cursor.as_ref().filter(|_| asked.cursor_state.is_none()) else {
            return Some(asked);
        };
        if let Err(error) = owner.check() {
            self.reply(from, asked.request, ReplyContent::Failed(error));
            return None;
        }
        let user = owner.user.clone();
        self.cursor_job(from, &user, CursorJob::Subscribe(Box::new(asked)));
        None
    }

    fn cursor_job(&mut self, from: u8, user: &str, job: CursorJob) {
        let Some(ack) = job.options().ack.clone() else {
            return self.fail_cursor(from, &job, Error::AckOff);
        };
        let name = record_name(job.channel(), user);
        match self.engines.of(&job.options().namespace) {
            Some(engine) => self.cursor_round(from, engine, &name, job),
            None => self.serve_from_memory(from, &name, &ack, job),
        }
    }

    fn now_s(&self) -> u32 {
        u32::try_from(self.now.unix_ms / 1_000).unwrap_or(u32::MAX)
    }

    fn serve_from_memory(&mut self, from: u8, name: &str, ack: &AckOptions, job: CursorJob) {
        let now_s = self.now_s();
        self.stats.cursors_expired += self.cursors.sweep(self.now.ms, now_s);
        let options = Arc::clone(job.options());
        let owner = match &job {
            CursorJob::Subscribe(asked) => asked.owner,
            CursorJob::Request(_) => crate::shares::Owner::NONE,
        };
        let channel = Arc::clone(job.channel());
        // A subscriber begins the stream, so that its cursor has an epoch.
        if matches!(job, CursorJob::Subscribe(_)) {
            let wanted = super::streams::EvictableFor::Empty;
            let at = self.home_channel(&channel, &options, owner, wanted);
            if at.is_none_or(|at| self.ensure_stream(at, &options, owner).is_none()) {
                self.remove_if_unused(&channel);
                return self.fail_cursor(from, &job, Error::LimitExceeded);
            }
        }
        let stream = self.homes.find(&self.names, &channel);
        let ends = match stream.and_then(|at| self.homes[at].stream.as_ref()) {
            Some(stream) => StreamEnds { top: stream.position(), first: stream.first() },
            None => StreamEnds { top: StreamPosition::default(), first: 1 },
        };
        let mut cursors = self.cursors.get(name);
        let was_reset = !cursors.is_empty() && cursors.epoch != ends.top.epoch;
        if cursors.epoch != ends.top.epoch {
            cursors = UserCursors::default();
            cursors.continue_in(ends.top.epoch);
        }
        self.stats.cursors_expired += cursors.expire(now_s, ack) as u64;
        let served = serve(&mut cursors, &job, ends, (now_s, ack, was_reset));
        let namespace = self.shares.namespace(&options.namespace);
        let bytes_max =
            ack.bytes_max.map_or(usize::MAX, |all| all / usize::from(self.config.workers));
        let stored = match served {
            Ok((state, true)) => {
                let stored = self.cursors.set((name, namespace), &cursors, (now_s, ack), bytes_max);
                stored.map(|evicted| {
                    self.stats.cursors_evicted += evicted;
                    state
                })
            }
            served => served.map(|(state, _)| state),
        };
        // A delivery that cannot be counted is one all the same.
        let stored = match served {
            Ok((state, _)) if !state.advanced => Ok(state),
            _ => stored,
        };
        match stored {
            Ok(state) => self.finish_cursor(from, job, state),
            Err(error) => self.fail_cursor(from, &job, error),
        }
    }

    /// Begins a round for a record, or joins those who wait for the next one.
    fn cursor_round(&mut self, from: u8, engine: EngineId, name: &Arc<str>, job: CursorJob) {
        if self.rounds.jobs >= JOBS_MAX {
            self.stats.overloaded += 1;
            return self.fail_cursor(from, &job, Error::Overloaded);
        }
        self.rounds.jobs += 1;
        if let Some(round) = self.rounds.running.get_mut(name) {
            round.next.push_back((from, job));
            return;
        }
        let round = CursorRound {
            engine,
            channel: Arc::clone(job.channel()),
            options: Arc::clone(job.options()),
            step: CursorStep::Record,
            cursors: UserCursors::default(),
            was_reset: false,
            ends: None,
            jobs: vec![(from, job)],
            next: Default::default(),
            answers: Vec::new(),
        };
        self.rounds.running.insert(Arc::clone(name), Box::new(round));
        self.read_record(name);
    }

    fn read_record(&mut self, name: &Arc<str>) {
        let filter =
            HistoryFilter { limit: Some(RECORDS_KEPT), reverse: true, ..HistoryFilter::default() };
        let Some(round) = self.rounds.running.get(name) else { return };
        let retention = self.record_retention(&round.options);
        self.read_for_round(name, Arc::clone(name), retention, filter);
    }

    /// How much is stored of the stream of a record.
    fn record_retention(&self, options: &ChannelOptions) -> Retention {
        let ttl_ms = options.ack.as_ref().map_or(0, |ack| ack.ttl_ms);
        let durability = self.retention(options).durability;
        Retention { size: RECORDS_KEPT, ttl_ms, meta_ttl_ms: ttl_ms, durability }
    }

    fn read_for_round(
        &mut self,
        name: &Arc<str>,
        channel: Arc<str>,
        retention: Retention,
        filter: HistoryFilter,
    ) {
        let Some(round) = self.rounds.running.get(name) else { return };
        let engine = round.engine;
        let waiter = EngineWaiterKind::Cursor(Arc::clone(name));
        let Some(key) = self.engines.begin(self.now.ms, engine, waiter) else {
            self.stats.overloaded += 1;
            return self.fail_round(name, Error::Overloaded);
        };
        // An acknowledgement that was answered is read by whoever comes after.
        let (token, latest) = (key.into(), true);
        let request = EngineRequest::History { token, channel, retention, filter, latest };
        self.engines.send(engine, request);
    }

    /// Asks for the ends of the channel's stream.
    fn read_ends(&mut self, name: &Arc<str>, step: CursorStep, since: Option<StreamPosition>) {
        let Some(round) = self.rounds.running.get_mut(name) else { return };
        round.step = step;
        let limit = Some(u32::from(step == CursorStep::Ends));
        let (channel, options) = (Arc::clone(&round.channel), Arc::clone(&round.options));
        let filter = HistoryFilter { since, limit, ..HistoryFilter::default() };
        let retention = self.retention(&options);
        self.read_for_round(name, channel, retention, filter);
    }

    /// The engine has read for a round.
    pub(super) fn round_read(&mut self, name: &Arc<str>, result: Result<History, Error>) {
        let now_s = self.now_s();
        let Some(round) = self.rounds.running.get_mut(name) else { return };
        match (round.step, result) {
            (CursorStep::Record, Ok(history)) => {
                for record in history.publications.iter().rev() {
                    match UserCursors::decode(record.data()) {
                        Some(record) => round.cursors.merge(record),
                        // A later version wrote it, and knows more.
                        None => return self.fail_round(name, Error::EngineRefused),
                    }
                }
                if let Some(ack) = &round.options.ack {
                    self.stats.cursors_expired += round.cursors.expire(now_s, ack) as u64;
                }
                self.read_ends(name, CursorStep::Ends, None);
            }
            (CursorStep::Ends, Ok(History { publications, position })) => {
                let first = publications.first().map_or(position.offset + 1, |of| of.offset());
                round.ends = Some(StreamEnds { top: position, first });
                match round.cursors.position().filter(|of| of.epoch != position.epoch) {
                    Some(before) => self.read_ends(name, CursorStep::Lineage, Some(before)),
                    None => self.serve_round(name),
                }
            }
            (CursorStep::Lineage, Ok(_)) => self.serve_round(name),
            (CursorStep::Lineage, Err(Error::UnrecoverablePosition(_))) => {
                (round.cursors, round.was_reset) = (UserCursors::default(), true);
                self.serve_round(name);
            }
            (_, Err(error)) => self.fail_round(name, error),
            (CursorStep::Write, Ok(_)) => debug_assert!(false, "a write is no read"),
        }
    }

    /// Serves whoever waits for a record that was read, and writes it if it has changed.
    fn serve_round(&mut self, name: &Arc<str>) {
        let now_s = self.now_s();
        let Some(round) = self.rounds.running.get_mut(name) else { return };
        let Some((ends, ack)) = round.ends.zip(round.options.ack.clone()) else { return };
        round.cursors.continue_in(ends.top.epoch);
        let served: Vec<_> = std::mem::take(&mut round.jobs)
            .into_iter()
            .map(|(from, job)| {
                let state = serve(&mut round.cursors, &job, ends, (now_s, &ack, round.was_reset));
                (from, job, state)
            })
            .collect();
        let is_written =
            served.iter().any(|(.., served)| served.is_ok_and(|(_, has_changed)| has_changed));
        let record = is_written.then(|| round.cursors.encode());
        for (from, job, state) in served {
            let state = match state {
                Ok((state, _)) => state,
                Err(error) => {
                    self.rounds.jobs -= 1;
                    self.fail_cursor(from, &job, error);
                    continue;
                }
            };
            // An acknowledgement that changes nothing may rest on one of this round.
            match (job, self.rounds.running.get_mut(name)) {
                (CursorJob::Request(asked), Some(round)) if is_written => {
                    round.answers.push((from, asked, state));
                }
                (job, _) => {
                    self.rounds.jobs -= 1;
                    self.finish_cursor(from, job, state);
                }
            }
        }
        match record {
            Some(record) => self.write_record(name, record),
            None => self.end_round(name),
        }
    }

    fn write_record(&mut self, name: &Arc<str>, record: Box<[u8]>) {
        let Some(round) = self.rounds.running.get_mut(name) else { return };
        round.step = CursorStep::Write;
        let (engine, options) = (round.engine, Arc::clone(&round.options));
        let waiter = EngineWaiterKind::Cursor(Arc::clone(name));
        let Some(key) = self.engines.begin(self.now.ms, engine, waiter) else {
            self.stats.overloaded += 1;
            return self.fail_round(name, Error::Overloaded);
        };
        let publish = NewPublication {
            data: record,
            format: PayloadFormat::Binary,
            ..NewPublication::default()
        };
        let (token, channel, time_ms) = (key.into(), Arc::clone(name), self.now.unix_ms);
        let retention = self.record_retention(&options);
        let publish = EnginePublish { token, channel, retention, publish, time_ms };
        self.engines.send(engine, EngineRequest::Publish(Box::new(publish)));
    }

    /// The engine has stored the record of a round, or has not.
    pub(super) fn round_written(&mut self, name: &Arc<str>, result: Result<Published, Error>) {
        match result {
            Ok(_) => {
                let Some(round) = self.rounds.running.get_mut(name) else { return };
                for (from, asked, state) in std::mem::take(&mut round.answers) {
                    self.rounds.jobs -= 1;
                    self.answer_cursor(from, &asked, state);
                }
                self.end_round(name);
            }
            Err(error) => self.fail_round(name, error),
        }
    }

    /// Begins the next round of a record, if somebody waits for it.
    fn end_round(&mut self, name: &Arc<str>) {
        let Some(round) = self.rounds.running.get_mut(name) else { return };
        let Some((_, job)) = round.next.front() else {
            self.rounds.running.remove(name);
            return;
        };
        // The namespace may have moved to another engine meanwhile.
        let options = Arc::clone(job.options());
        let Some(engine) = self.engines.of(&options.namespace) else {
            return self.fail_round(name, Error::EngineUnavailable);
        };
        (round.engine, round.options) = (engine, options);
        (round.step, round.cursors) = (CursorStep::Record, UserCursors::default());
        (round.ends, round.was_reset) = (None, false);
        round.jobs = std::mem::take(&mut round.next).into();
        self.read_record(name);
    }

    /// Whether the record of a round is being written.
    pub(super) fn is_round_written(&self, name: &Arc<str>) -> bool {
        self.rounds.running.get(name).is_some_and(|round| round.step == CursorStep::Write)
    }

    /// Ends a round whose engine cannot serve it, and whoever waits for it.
    pub(super) fn fail_round(&mut self, name: &Arc<str>, error: Error) {
        let Some(round) = self.rounds.running.remove(name) else { return };
        self.rounds.jobs -= round.jobs.len() + round.next.len() + round.answers.len();
        for (from, asked, _) in round.answers {
            self.reply(from, asked.request, ReplyContent::Failed(error));
        }
        for (from, job) in round.jobs.into_iter().chain(round.next) {
            self.fail_cursor(from, &job, error);
        }
    }

    fn fail_cursor(&mut self, from: u8, job: &CursorJob, error: Error) {
        self.reply(from, job.request(), ReplyContent::Failed(error));
    }

    fn answer_cursor(&mut self, from: u8, asked: &CursorRequest, state: CursorState) {
        if state.advanced {
            self.stats.acks += 1;
            self.tell_acked(&asked.channel, &asked.options, &asked.owner, state.acked.offset);
        }
        self.reply(from, asked.request, ReplyContent::Cursor(state));
    }

    /// Answers a request, or goes on with a subscription.
    fn finish_cursor(&mut self, from: u8, job: CursorJob, state: CursorState) {
        match job {
            CursorJob::Request(asked) => self.answer_cursor(from, &asked, state),
            CursorJob::Subscribe(mut asked) => {
                let mut cursor = state.since();
                if asked.options.ack.as_ref().is_some_and(|ack| state.is_exhausted(ack)) {
                    // What cannot be delivered does not come again.
                    cursor.offset += 1;
                }
                asked.since = Some(match asked.since {
                    // A poll goes on from where its client is, but for what is acknowledged.
                    Some(since) if since.epoch.accepts(cursor.epoch) => {
                        StreamPosition { offset: since.offset.max(cursor.offset), ..cursor }
                    }
                    Some(since) => since,
                    None => cursor,
                });
                asked.cursor_state = Some(state);
                self.home_subscribe(from, *asked);
            }
        }
    }

    /// Drops the subscriptions that wait for a cursor, as [`forget_waiting`](Hub::forget_waiting).
    pub(super) fn forget_cursors(&mut self, channel: &str, from: u8, member: Option<SessionId>) {
        self.rounds.forget(|asked, worker| {
            let of = asked.member.as_ref().map(|info| info.client);
            worker == from && *asked.channel == *channel && (member.is_none() || member == of)
        });
    }

    /// Drops those of a worker.
    pub(super) fn forget_cursors_of(&mut self, worker: u8) {
        self.rounds.forget(|_, from| from == worker);
    }
}

/// Carries out a request on cursors. Returns where the cursor stands, and whether the record has changed.
fn serve(
    cursors: &mut UserCursors,
    job: &CursorJob,
    ends: StreamEnds,
    (now_s, ack, was_reset): (u32, &AckOptions, bool),
) -> Result<(CursorState, bool), Error> {
    let device = job.device();
    let action = match job {
        CursorJob::Request(asked) => Some(asked.action),
        CursorJob::Subscribe(_) => None,
    };
    if let Some(CursorAction::Acknowledge(acked)) = action {
        let advanced = cursors.acknowledge(device, acked, ends, (now_s, ack))?;
        let state = cursors.state(device, ends, was_reset);
        return Ok((CursorState { advanced, ..state }, advanced));
    }
    let state = cursors.state(device, ends, was_reset);
    let is_delivered = action != Some(CursorAction::Read) && state.unread() > 0;
    if ack.deliveries_max == 0 || !is_delivered {
        return Ok((state, false));
    }
    let is_again = action == Some(CursorAction::Redeliver);
    let has_changed = cursors.count_delivery(device, is_again, (now_s, ack));
    Ok((cursors.state(device, ends, was_reset), has_changed))
}
