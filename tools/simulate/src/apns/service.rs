//! The provider API on one connection: takes requests and decides answers and faults.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::account::{Account, Certificate};
use super::channels::{ChannelRequest, ChannelResponse};
use super::ledger::{LedgerLine, ReplyOutcome, parse_uuid, uuid_text};
use super::request::{Fields, Target, has_unique_id};
use super::rules::Rejection;
use super::world::Now;
use super::{Behaviour, Reason, Shared, World};
use crate::http2::Request;

const REFUSED_STREAM: u32 = 7;

/// The provider API of one connection.
#[derive(Debug)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    behaviour: Arc<Behaviour>,
    connection: u32,
    account: Account,
    /// Pushes of this connection: received, accepted, rejected for their device token.
    received: u64,
    accepted: u64,
    bad_tokens: u64,
    /// Accepted pushes until the stream limit is raised again.
    slowed: u64,
    flipped: bool,
    /// The highest stream id that has been processed.
    highest: u32,
    /// The last stream id that is processed, once GOAWAY's is decided.
    cut: Option<u32>,
}

/// The outcome of one request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) mode: ReplyMode,
    pub(crate) reply: Reply,
    pub(crate) effect: Option<Effect>,
    /// Delay of the answer from the arrival of the push.
    pub(crate) after: Duration,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) apns_id: [u8; 36],
    /// Header that carries `apns_id`: `apns-request-id` for channel management.
    pub(crate) id_name: &'static str,
    /// `apns-channel-id` of a newly created channel.
    pub(crate) channel: Option<String>,
    pub(crate) unique_id: Option<[u8; 36]>,
    pub(crate) date: Option<String>,
    /// Empty with status 200.
    pub(crate) body: String,
}

/// How much of the answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    Send,
    /// Nothing is sent.
    Lose,
    /// The head is sent, without END_STREAM.
    Half,
    Reset(u32),
    /// The request is not processed.
    Ignore,
}

/// An effect on the connection after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    StreamsMax(u32),
    GoAway { last: u32, close: bool },
}

impl Service {
    pub(crate) fn new(
        shared: Arc<Shared>,
        behaviour: Arc<Behaviour>,
        connection: u32,
        certificate: Option<Certificate>,
    ) -> Service {
        Service {
            shared,
            behaviour,
            connection,
            account: Account::new(certificate),
            received: 0,
            accepted: 0,
            bad_tokens: 0,
            slowed: 0,
            flipped: false,
            highest: 0,
            cut: None,
        }
    }

    /// Returns the current stream limit.
    pub(crate) fn streams_max(&self) -> u32 {
        let behaviour = &self.behaviour;
        if self.accepted == 0 && !self.account.has_certificate() {
            behaviour.streams_first
        } else if self.slowed > 0 {
            behaviour.slow_down.streams
        } else if self.flipped {
            behaviour.flip_streams.low
        } else {
            behaviour.streams_max
        }
    }

    pub(crate) fn set_behaviour(&mut self, behaviour: Arc<Behaviour>) {
        self.behaviour = behaviour;
    }

    /// Processes one request and records it in the ledger.
    pub(crate) fn handle(&mut self, request: &Request, world: &mut World, now: Now) -> Step {
        if let Some(asked) = ChannelRequest::read(request) {
            return self.manage(asked, request, world, now);
        }
        world.counts.received += 1;
        world.counts.body_bytes += request.body.len() as u64;
        self.received += 1;
        let effect = self.go_away(request.stream);
        if self.cut.is_some_and(|cut| request.stream > cut) {
            world.counts.unprocessed += 1;
            world.counts.goaways += u64::from(effect.is_some());
            return Step::unprocessed(ReplyMode::Ignore, effect);
        }
        self.highest = self.highest.max(request.stream);
        let behaviour = Arc::clone(&self.behaviour);
        let number = world.counts.received;
        if behaviour.reset_code == REFUSED_STREAM && falls(number, behaviour.reset_every) {
            world.counts.unprocessed += 1;
            world.counts.goaways += u64::from(effect.is_some());
            return Step::unprocessed(ReplyMode::Reset(REFUSED_STREAM), effect);
        }

        let fields = Fields::read(request);
        let apns_id = fields.apns_id().ok().flatten().unwrap_or_else(|| world.new_id());
        let target = fields.target();
        let outcome = self.judge(&fields, target, request, world, now);
        let (topic, refused) = match outcome {
            Ok(topic) => (topic, None),
            Err((topic, refused)) => (topic, Some(refused)),
        };
        let mut mode = ReplyMode::Send;
        if refused.is_none() {
            mode = self.mode(world, number);
        }
        let answer = match mode {
            ReplyMode::Send | ReplyMode::Ignore => ReplyOutcome::Sent,
            ReplyMode::Lose => ReplyOutcome::Lost,
            ReplyMode::Half => ReplyOutcome::Half,
            ReplyMode::Reset(_) => ReplyOutcome::Reset,
        };
        let topic = match self.account.topic() {
            Some(implied) if topic.is_empty() && refused.is_none() => implied,
            _ => topic,
        };
        let body = if world.ledger.has_room() {
            let digest = Sha256::digest(&request.body);
            digest[..8].try_into().unwrap_or_default()
        } else {
            [0; 8]
        };
        world.ledger.push(&LedgerLine {
            at_ms: now.at_ms,
            connection: self.connection,
            stream: request.stream,
            apns_id,
            device_token: target.map_or(b"", Target::name),
            topic,
            body,
            reason: refused.map(|refused| refused.reason),
            answer,
        });
        let after = match refused {
            None => self.after_accepted(world),
            Some(refused) => self.after_refused(world, refused.reason),
        };
        let effect = effect.or(after);
        if matches!(effect, Some(Effect::GoAway { .. })) {
            world.counts.goaways += 1;
        }
        let unique = refused.is_none() && has_unique_id(self.shared.environment);
        let reply = Reply {
            status: refused.map_or(200, |refused| refused.reason.status()),
            apns_id: uuid_text(&apns_id),
            id_name: "apns-id",
            channel: None,
            unique_id: unique.then(|| uuid_text(&world.new_id())),
            date: self.behaviour.date.then(|| date(self.clock_s(now))),
            body: refused.map(body_of).unwrap_or_default(),
        };
        let after = match &self.behaviour.answer_time {
            time if time.is_zero() => Duration::ZERO,
            time => world.answer_after(time, number, target.map_or(b"", Target::name), now),
        };
        Step { mode, reply, effect, after }
    }

    /// Returns the server's time in seconds since 1970.
    fn clock_s(&self, now: Now) -> u64 {
        (now.unix_ms / 1_000).saturating_add_signed(self.behaviour.clock_ahead_s)
    }

    /// Creates, reads and deletes broadcast channels. Faults do not apply to these requests.
    fn manage(
        &mut self,
        asked: ChannelRequest<'_>,
        request: &Request,
        world: &mut World,
        now: Now,
    ) -> Step {
        let (random, clock_s) = (world.random_u64(), self.clock_s(now));
        let id = asked.id.and_then(parse_uuid).unwrap_or_else(|| world.new_id());
        let managed = self
            .account
            .judge(asked.authorization, &self.shared.keyring, clock_s)
            .and_then(|()| world.channels.handle(asked, &request.body, random));
        let managed = managed.unwrap_or_else(|reason| ChannelResponse {
            status: reason.status(),
            channel: None,
            body: body_of(Rejection { reason, timestamp_ms: None }),
        });
        let ChannelResponse { status, channel, body } = managed;
        let apns_id = uuid_text(&id);
        let id_name = "apns-request-id";
        let reply = Reply { status, apns_id, id_name, channel, body, ..Reply::nothing() };
        Step { mode: ReplyMode::Send, reply, effect: None, after: Duration::ZERO }
    }

    /// Returns the topic; on rejection also the reason.
    fn judge<'r>(
        &mut self,
        fields: &Fields<'r>,
        target: Result<Target<'r>, Reason>,
        request: &'r Request,
        world: &mut World,
        now: Now,
    ) -> Result<&'r str, (&'r str, Rejection)> {
        let refuse = |reason| ("", Rejection { reason, timestamp_ms: None });
        let target = target.map_err(refuse)?;
        let spelled = |reason| match reason {
            Reason::BadEnvironmentKeyIdInToken => self.behaviour.environment_reason,
            other => other,
        };
        let now_s = self.clock_s(now);
        let shown = self.account.judge(fields.authorization, &self.shared.keyring, now_s);
        shown.map_err(|reason| refuse(spelled(reason)))?;
        let (unavailable, number) = (self.behaviour.unavailable, world.counts.received);
        if unavailable.every > 0
            && (number - 1) % unavailable.every >= unavailable.every - unavailable.burst
        {
            return Err(refuse(Reason::ServiceUnavailable));
        }
        fields.apns_id().map_err(refuse)?;
        // The certificate's topic is borrowed from the connection, the push only from the request: an empty topic
        // stands in.
        let implied = self.account.topic().map(|_| "");
        let push = fields.push(target, &request.body, implied).map_err(refuse)?;
        if !push.topic.is_empty() && !self.account.allows(push.topic) {
            return Err((
                push.topic,
                Rejection { reason: Reason::TopicDisallowed, timestamp_ms: None },
            ));
        }
        if fields.channel.is_some_and(|channel| !world.channels.takes(channel)) {
            return Err(refuse(Reason::ChannelNotRegistered));
        }
        let judged = world.rules.judge(push.target.name(), push.topic);
        judged.map_err(|refused| (push.topic, refused))?;
        Ok(push.topic)
    }

    /// Decides how much of the answer to an accepted push is sent.
    fn mode(&self, world: &mut World, number: u64) -> ReplyMode {
        let behaviour = &self.behaviour;
        let accepted = world.counts.accepted + 1;
        if falls(number, behaviour.reset_every) {
            world.counts.answers_reset += 1;
            ReplyMode::Reset(behaviour.reset_code)
        } else if falls(accepted, behaviour.lose_answer_every) {
            world.counts.answers_lost += 1;
            ReplyMode::Lose
        } else if falls(accepted, behaviour.half_answer_every) {
            world.counts.answers_half += 1;
            ReplyMode::Half
        } else {
            ReplyMode::Send
        }
    }

    /// Returns the GOAWAY that this request triggers, if any. Sets `cut` once the remaining pushes up to GOAWAY are not
    /// to be processed.
    fn go_away(&mut self, stream: u32) -> Option<Effect> {
        let rule = self.behaviour.goaway;
        if rule.every == 0 || self.received > rule.every {
            return None;
        }
        if self.received == rule.every - rule.unprocessed {
            self.cut = Some(self.highest.max(stream));
        }
        let last = self.cut?;
        (self.received == rule.every).then_some(Effect::GoAway { last, close: rule.close })
    }

    fn after_accepted(&mut self, world: &mut World) -> Option<Effect> {
        world.counts.accepted += 1;
        let before = self.streams_max();
        self.accepted += 1;
        self.slowed = self.slowed.saturating_sub(1);
        if falls(self.accepted, self.behaviour.flip_streams.every) {
            self.flipped = !self.flipped;
        }
        let streams_max = self.streams_max();
        (streams_max != before).then_some(Effect::StreamsMax(streams_max))
    }

    fn after_refused(&mut self, world: &mut World, reason: Reason) -> Option<Effect> {
        world.counts.rejected += 1;
        self.bad_tokens += u64::from(reason.blames_token());
        let bad_tokens_max = self.behaviour.bad_tokens_max;
        if bad_tokens_max > 0 && reason.blames_token() && self.bad_tokens >= bad_tokens_max {
            self.cut = Some(self.highest);
            return Some(Effect::GoAway { last: self.highest, close: false });
        }
        let slow_down = self.behaviour.slow_down;
        if slow_down.streams > 0 && (400..500).contains(&reason.status()) && self.accepted > 0 {
            self.slowed = slow_down.answers.max(1);
            return Some(Effect::StreamsMax(self.streams_max()));
        }
        None
    }
}

impl Step {
    fn unprocessed(mode: ReplyMode, effect: Option<Effect>) -> Step {
        Step { mode, reply: Reply::nothing(), effect, after: Duration::ZERO }
    }
}

impl Reply {
    fn nothing() -> Reply {
        Reply {
            status: 0,
            apns_id: [b'0'; 36],
            id_name: "apns-id",
            channel: None,
            unique_id: None,
            date: None,
            body: String::new(),
        }
    }
}

/// Returns whether `number` is a multiple of `every`; never for 0.
fn falls(number: u64, every: u64) -> bool {
    every > 0 && number.is_multiple_of(every)
}

/// Formats a `date` header (RFC 9110 §5.6.7).
fn date(unix_s: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix_s))
}

/// Encodes the body of a rejection.
fn body_of(refused: Rejection) -> String {
    let reason = refused.reason.as_str();
    match refused.timestamp_ms {
        Some(timestamp_ms) => format!(r#"{{"reason":"{reason}","timestamp":{timestamp_ms}}}"#),
        None => format!(r#"{{"reason":"{reason}"}}"#),
    }
}
