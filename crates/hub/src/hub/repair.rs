//! Gaps between an engine and this node. A gap is detected at the next message or position check, and
//! repaired from the stream before any client receives a later message, or it is reported.

use std::sync::Arc;

use super::Hub;
use crate::agent::{EnginePublication, EngineWaiterKind, RepairRead};
use crate::command::HistoryFilter;
use crate::engine::{EnginePosition, EngineRequest};
use crate::error::Error;
use crate::event::History;
use crate::message::{ReplyContent, SubscribeRequest};
use crate::options::RecoveryMode;
use crate::position::{Epoch, StreamPosition};
use crate::publication::Publication;
use crate::session_id::SessionId;
use crate::shares::Owner;

/// What to do with a waiting subscription.
enum Decision {
    Answer(Option<Vec<Publication>>),
    /// Read the publications after this offset from the engine.
    Read(u64),
    /// It is ahead of this node, or its epoch is unknown to the node: the engine decides whether to refuse
    /// it.
    Confirm,
}

/// What a read of the stream is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A gap.
    Repair,
    /// Subscribers that are behind the ring.
    Recover,
    /// The same, and some of them may be refused.
    Confirm,
}

/// The result of a read of the stream.
#[derive(Clone, Copy)]
pub(super) struct ReadResult<'a> {
    /// Publications after this offset were read.
    since: u64,
    publications: &'a [Publication],
    /// Subscriptions that need confirmation arrived after it was sent: they wait for another read.
    late: bool,
}

impl Hub {
    /// A publication has arrived from the engine.
    pub(super) fn agent_publication(&mut self, at: u32, heard: EnginePublication) {
        let EnginePublication { epoch, ref publication, except } = heard;
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        agent.heard = true;
        let (live, behind_gap) = (agent.live, !agent.held.is_empty());
        if publication.offset() == 0 {
            if live {
                self.deal(at, epoch, publication, except);
            }
            return;
        }
        let position = StreamPosition { offset: publication.offset(), epoch };
        if !live {
            return self.hold(at, heard);
        }
        let Some(stream) = &self.homes[at].stream else {
            // Another node stores history for this channel, but this one does not.
            let unnumbered = publication.unnumbered();
            return self.deal(at, Epoch::NONE, &unnumbered, except);
        };
        if stream.epoch != epoch {
            self.give_up(at, StreamPosition { offset: position.offset - 1, epoch });
        } else if position.offset <= stream.top {
            return;
        } else if behind_gap || position.offset > stream.top + 1 {
            self.hold(at, heard);
            return self.repair(at);
        }
        self.deal(at, epoch, publication, except);
    }

    /// Sends a publication to every worker with subscribers; one with an offset is the next of the stream.
    fn deal(
        &mut self,
        at: u32,
        epoch: Epoch,
        publication: &Publication,
        except: Option<SessionId>,
    ) {
        if publication.offset() > 0 {
            let Some(agent) = self.engines.agents.get(&at) else { return };
            let options = Arc::clone(&agent.options);
            if let Some(stream) = &mut self.homes[at].stream {
                stream.top = publication.offset();
            }
            if options.keeps_history() {
                self.append_history(at, publication, &options, Owner::NONE);
            }
        }
        self.broadcast_publication(at, epoch, publication, except);
    }

    /// Holds back a publication that is not the next.
    fn hold(&mut self, at: u32, heard: EnginePublication) {
        let (cost, offset) = (heard.publication.cost(), heard.publication.offset());
        let Some(agent) = self.engines.agents.get(&at) else { return };
        let id = agent.engine;
        let fits = self.engines.get_mut(id).is_some_and(|engine| {
            let fits = engine.held_bytes + cost <= engine.config.held_bytes_max;
            if fits {
                engine.held_bytes += cost;
            }
            fits
        });
        if !fits {
            return self.give_up(at, StreamPosition { offset, epoch: heard.epoch });
        }
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        let place = agent.held.partition_point(|held| held.publication.offset() < offset);
        agent.held.insert(place, heard);
    }

    /// Passes on the publications held back, up to the first gap.
    pub(super) fn deal_held(&mut self, at: u32) {
        loop {
            let Some(stream) = self.homes[at].stream.as_ref() else {
                return self.engines.clear_held(at);
            };
            let (epoch, top) = (stream.epoch, stream.top);
            let Some(agent) = self.engines.agents.get_mut(&at) else { return };
            let Some(first) = agent.held.front() else { return };
            let (of, offset) = (first.epoch, first.publication.offset());
            let is_next = of == epoch && offset == top + 1;
            if of == epoch && offset > top + 1 {
                return self.repair(at);
            }
            let Some(held) = agent.held.pop_front() else { return };
            let engine = agent.engine;
            if let Some(engine) = self.engines.get_mut(engine) {
                engine.held_bytes -= held.publication.cost();
            }
            // A publication of another epoch, or an earlier one, is not part of this stream.
            if is_next {
                self.deal(at, epoch, &held.publication, held.except);
            }
        }
    }

    /// Handles a position from the engine. `interrupted`: this node may have missed publications.
    pub(super) fn resynchronize(&mut self, at: u32, engine: EnginePosition, interrupted: bool) {
        let EnginePosition { position, inherits } = engine;
        let home = &self.homes[at];
        let Some(stream) = &home.stream else {
            // It is unknown what was published meanwhile.
            if interrupted {
                self.stats.engine_unrepaired += u64::from(!home.interest.is_empty());
                self.home_gap(at);
            }
            return;
        };
        let (epoch, top) = (stream.epoch, stream.top);
        let unused = home.interest.is_empty();
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        let unused = unused && agent.waiting.is_empty();
        if position.epoch == epoch && !inherits.is_empty() {
            agent.inherits = inherits.clone();
        }
        if position.epoch == epoch && position.offset >= top && !unused {
            agent.known_top = position.offset;
            if position.offset > top {
                self.repair(at);
            }
            return;
        }
        if position == (StreamPosition { offset: top, epoch }) {
            return;
        }
        if position.epoch.is_none() {
            // The engine has forgotten the stream. The next subscription begins another.
            self.stats.engine_unrepaired += u64::from(!unused);
            self.home_gap(at);
            self.engines.clear_held(at);
            self.end_stream(at);
            self.rejoin(at);
            return;
        }
        self.give_up(at, position);
        if let Some(agent) = self.engines.agents.get_mut(&at) {
            agent.inherits = inherits;
        }
        self.answer_waiting(at, None);
    }

    /// Waiting subscriptions are answered after the engine has subscribed again.
    fn rejoin(&mut self, at: u32) {
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        if !agent.waiting.is_empty() {
            agent.live = false;
            if agent.joining.is_none() {
                self.join(at);
            }
        }
    }

    /// The missing publications are not available: subscribers subscribe again and recover. The stream
    /// continues after `position`.
    fn give_up(&mut self, at: u32, position: StreamPosition) {
        if !self.homes[at].interest.is_empty() {
            self.stats.engine_unrepaired += 1;
            self.home_gap(at);
        }
        self.engines.clear_held(at);
        self.restart_stream(at, EnginePosition { position, ..Default::default() });
    }

    /// Restarts the ring after this position.
    pub(super) fn restart_stream(&mut self, at: u32, engine: EnginePosition) {
        let EnginePosition { position, inherits } = engine;
        self.clear_history(at);
        if let Some(stream) = &mut self.homes[at].stream {
            (stream.epoch, stream.top) = (position.epoch, position.offset);
        }
        if let Some(agent) = self.engines.agents.get_mut(&at) {
            (agent.known_top, agent.inherits) = (position.offset, inherits);
        }
    }

    /// Reads the publications missing after the top, unless a read is in progress.
    fn repair(&mut self, at: u32) {
        let (Some(agent), Some(stream)) = (self.engines.agents.get(&at), &self.homes[at].stream)
        else {
            return;
        };
        if agent.read.is_none() {
            let since = stream.top;
            self.read(at, since, Purpose::Repair);
        }
    }

    fn read(&mut self, at: u32, since: u64, what: Purpose) {
        let repairs = what == Purpose::Repair;
        let home = &self.homes[at];
        let (channel, incarnation) = (Arc::clone(&home.name), home.incarnation);
        let Some(epoch) = home.stream.as_ref().map(|stream| stream.epoch) else { return };
        let Some(agent) = self.engines.agents.get(&at) else { return };
        let (id, options) = (agent.engine, Arc::clone(&agent.options));
        let Some(engine) = self.engines.get(id) else { return };
        let bytes_max = match options.recovery_bytes_max {
            _ if repairs => Some(engine.config.held_bytes_max),
            0 => None,
            bytes_max => Some(bytes_max),
        };
        let waiter = EngineWaiterKind::Read { at, incarnation };
        let Some(key) = self.engines.begin(self.now.ms, id, waiter) else {
            self.stats.overloaded += 1;
            return self.read_failed(at, Error::Overloaded);
        };
        if let Some(agent) = self.engines.agents.get_mut(&at) {
            agent.read = Some(RepairRead { key, since, repairs, late: false });
        }
        self.stats.engine_reads += 1;
        let since = Some(StreamPosition { offset: since, epoch });
        let filter = HistoryFilter { since, bytes_max, ..HistoryFilter::default() };
        let retention = self.retention(&options);
        let (token, latest) = (key.into(), what == Purpose::Confirm);
        let request = EngineRequest::History { token, channel, retention, filter, latest };
        self.engines.send(id, request);
    }

    /// A read of an agent has ended.
    pub(super) fn agent_read(&mut self, at: u32, incarnation: u32, result: Result<History, Error>) {
        if self.homes.get(at).is_none_or(|home| home.incarnation != incarnation) {
            return;
        }
        let Some(read) = self.engines.agents.get_mut(&at).and_then(|agent| agent.read.take())
        else {
            return;
        };
        let history = match result {
            Ok(history) => history,
            Err(Error::UnrecoverablePosition(position)) => {
                return self.unrecoverable(at, position);
            }
            Err(error) => return self.read_failed(at, error),
        };
        let Some(stream) = &self.homes[at].stream else { return };
        let (epoch, before) = (stream.epoch, stream.top);
        if history.position.epoch != epoch {
            return self.unrecoverable(at, history.position);
        }
        for publication in &history.publications {
            let next = self.homes[at].stream.as_ref().map(|stream| stream.top + 1);
            if next == Some(publication.offset()) {
                // A publication that was read has no excluded session.
                self.deal(at, epoch, publication, None);
            }
        }
        if let Some(agent) = self.engines.agents.get_mut(&at) {
            agent.known_top = agent.known_top.max(history.position.offset);
        }
        self.fill_history(at, &history.publications);
        self.deal_held(at);
        let top = self.homes[at].stream.as_ref().map_or(0, |stream| stream.top);
        let Some(agent) = self.engines.agents.get(&at) else { return };
        let is_behind = !agent.held.is_empty() || agent.known_top > top;
        match (read.repairs, is_behind) {
            (true, true) if top == before => {
                // The stream no longer has it.
                let position = StreamPosition { offset: agent.known_top, epoch };
                let held_top = agent.held.back().map_or(0, |held| held.publication.offset());
                let offset = position.offset.max(held_top);
                return self.unrecoverable(at, StreamPosition { offset, epoch });
            }
            (_, true) => self.repair(at),
            (true, false) => self.stats.engine_repaired += 1,
            (false, false) => {}
        }
        let (since, publications, late) = (read.since, &history.publications[..], read.late);
        self.answer_waiting(at, Some(ReadResult { since, publications, late }));
    }

    /// The stream does not have the requested publications.
    fn unrecoverable(&mut self, at: u32, position: StreamPosition) {
        let engine = EnginePosition { position, ..Default::default() };
        let same = self.homes[at].stream.as_ref().is_some_and(|of| of.epoch == position.epoch);
        if same {
            self.give_up(at, position);
            self.answer_waiting(at, None);
        } else {
            self.resynchronize(at, engine, false);
        }
    }

    /// A read failed. The next message or position check tries again.
    fn read_failed(&mut self, at: u32, error: Error) {
        self.engines.clear_held(at);
        let Some(stream) = &self.homes[at].stream else { return };
        let top = stream.top;
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        (agent.known_top, agent.heard) = (top, false);
        for (from, asked) in std::mem::take(&mut agent.waiting) {
            match self.decide(at, &asked, None) {
                Decision::Answer(recovered) => self.answer_subscribe(at, from, *asked, recovered),
                Decision::Read(_) | Decision::Confirm => {
                    self.reply(from, asked.request, ReplyContent::Failed(error));
                }
            }
        }
    }

    /// Answers the waiting subscriptions that the ring and the publications just `read` can serve; for the
    /// others the engine is asked.
    pub(super) fn answer_waiting(&mut self, at: u32, read: Option<ReadResult<'_>>) {
        let Some(agent) = self.engines.agents.get_mut(&at) else { return };
        let (mut wanted, mut what) = (None::<u64>, Purpose::Recover);
        for (from, asked) in std::mem::take(&mut agent.waiting) {
            let since = match self.decide(at, &asked, read) {
                Decision::Answer(recovered) => {
                    self.answer_subscribe(at, from, *asked, recovered);
                    continue;
                }
                Decision::Read(since) => since,
                Decision::Confirm => {
                    what = Purpose::Confirm;
                    let agent = self.engines.agents.get_mut(&at);
                    if let Some(under_way) = agent.and_then(|agent| agent.read.as_mut()) {
                        under_way.late = true;
                    }
                    self.homes[at].stream.as_ref().map_or(0, |stream| stream.top)
                }
            };
            wanted = Some(wanted.map_or(since, |least| least.min(since)));
            if let Some(agent) = self.engines.agents.get_mut(&at) {
                agent.waiting.push((from, asked));
            }
        }
        if let Some(since) = wanted
            && self.engines.agents.get(&at).is_some_and(|agent| agent.read.is_none())
        {
            self.read(at, since, what);
        }
    }

    /// What a subscription recovers at the top of the stream.
    fn decide(&self, at: u32, asked: &SubscribeRequest, read: Option<ReadResult<'_>>) -> Decision {
        let Some(since) = asked.since else { return Decision::Answer(None) };
        let Some(stream) = &self.homes[at].stream else {
            // As in a channel in memory.
            return Decision::Answer((since == StreamPosition::default()).then(Vec::new));
        };
        let options = &asked.options;
        let Some(agent) = self.engines.agents.get(&at) else { return Decision::Answer(None) };
        let has_ended = since == StreamPosition::BARRED || agent.has_ended(since);
        let since = agent.translate(since, stream.epoch);
        let publications_max = options.recovery_publications_max as usize;
        let (from, recovered) = match options.recovery_mode {
            RecoveryMode::Cache if since == StreamPosition::BARRED || stream.top == 0 => {
                return Decision::Answer(None);
            }
            RecoveryMode::Cache => (stream.top - 1, stream.recover_latest(since)),
            RecoveryMode::Stream => {
                let bytes_max = options.recovery_bytes_max;
                (since.offset, stream.recover(since, publications_max, bytes_max))
            }
        };
        if recovered.is_some() {
            return Decision::Answer(recovered);
        }
        if options.recovery_mode == RecoveryMode::Stream {
            let missed = stream.top.checked_sub(from);
            let too_many = |missed| publications_max > 0 && missed > publications_max as u64;
            if !since.epoch.accepts(stream.epoch) || missed.is_none() {
                // Another node may be ahead of this one, which may have missed the last publications.
                let is_refused = has_ended || read.is_some_and(|read| !read.late);
                return if is_refused { Decision::Answer(None) } else { Decision::Confirm };
            } else if missed.is_some_and(too_many) {
                return Decision::Answer(None);
            }
        }
        match read.filter(|read| read.since <= from) {
            Some(read) => {
                let bytes_max = options.recovery_bytes_max;
                Decision::Answer(stream.join(from, read.publications, bytes_max))
            }
            None => Decision::Read(from),
        }
    }
}
