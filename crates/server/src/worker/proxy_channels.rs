//! Proxies of channels: whether a client may subscribe or publish, and how.

use std::sync::Arc;

use dunlin_hub::{ChannelRef, NewPublication, SessionId};
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{
    Command, Commands, Error, ErrorCode, PublishRequest, Request, SubscribeRequest,
};
use dunlin_protocol::{Format, Payload};

use super::backends::BackendResult;
use super::clients::Clients;
use super::deciders::Deciders;
use super::parts::{DecisionKey, ProxyCall};
use super::permission::{Permission, Source};
use super::turn::{Core, Turn};
use crate::proxy::{
    BackendDecision, Event, ProxyError, ProxyReply, PublishResult, Question, SubscribeResult,
    cache_ttl_ms, payload,
};

/// A command of a client: connection, session and the command's id.
pub(super) type CommandOrigin = (ConnId, SessionId, u32);

impl Clients {
    /// Asks a backend whether a client may subscribe. `said` is the command as received.
    pub(super) fn ask_subscribe(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (conn, session, id): CommandOrigin,
        request: &SubscribeRequest<'_>,
        said: &[u8],
        proxy: &Arc<str>,
    ) -> Result<(), Error<'static>> {
        let channel = &*request.channel;
        turn.core.namespace_of(channel)?;
        if turn.core.hub.has_subscription(session, channel) {
            return Err(ErrorCode::AlreadySubscribed.into());
        }
        let call = self.call((conn, session, Some(id)), Event::Subscribe, proxy, channel, said);
        if let Some(backends) =
            self.deciders.backends.as_ref().filter(|of| !of.decisions.is_empty())
            && let Some(key) = self.deciders.decision_key(turn.core, &call, request)
            && let Some(body) = backends.decisions.get(&key, turn.cx.now_ms())
        {
            let answered = ProxyReply::Response(200, (*body).into());
            self.subscribe_decided(turn, &call, Ok(answered), false);
            return Ok(());
        }
        if let Some((call, answer)) =
            self.deciders.ask(turn, &self.sessions, call, &Question::Subscribe(request))
        {
            self.subscribe_decided(turn, &call, answer, true);
        }
        Ok(())
    }

    /// `is_new`: the decision does not come from the cache.
    pub(super) fn subscribe_decided(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        answer: BackendResult,
        is_new: bool,
    ) {
        let Some(format) = self.format_of(turn, call) else { return };
        let command = Commands::of(format, &call.frame).next();
        let Some(Ok(Command { id, request: Request::Subscribe(request) })) = &command else {
            return;
        };
        if is_new {
            self.deciders.keep_decision(turn, call, request, &answer);
        }
        let decision = answer.and_then(ProxyReply::read::<SubscribeResult>);
        let outcome = match decision.and_then(decided) {
            Ok(BackendDecision::Granted(result)) => {
                self.subscribe_granted(turn, call, *id, request, Some(result))
            }
            Ok(decision) => return self.refuse(turn, call, decision),
            Err(fault) => {
                self.deciders.report_fault(turn, &call.proxy, &fault);
                match self.rules_permit(turn.core, call, Permission::Subscribe, &fault) {
                    true => self.subscribe_granted(turn, call, *id, request, None),
                    false => Err(fault.reply()),
                }
            }
        };
        if let Err(error) = outcome {
            turn.reply_error(call.conn, call, &error);
        }
    }

    /// Makes the subscription that the backend has decided on. Without a `result` it is one that the rules permit in its
    /// place, and it ends with them.
    fn subscribe_granted(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        id: u32,
        request: &SubscribeRequest<'_>,
        result: Option<SubscribeResult>,
    ) -> Result<(), Error<'static>> {
        let (session, channel) = (call.session, &*request.channel);
        let asked = self.sessions.client_side(turn.core, request)?;
        let Some(result) = result else {
            let claim = self.sessions.claim(turn.core, session, channel)?;
            let source = match claim.is_capable(Permission::Subscribe) {
                true => Source::Client,
                false => Source::Fallback,
            };
            let entitlement = claim.entitle(source, asked)?;
            self.begin_subscription(turn, (session, id), channel, entitlement);
            return Ok(());
        };
        let expire_at_s = (result.expire_at > 0).then_some(result.expire_at);
        let unix_ms = turn.now().unix_ms;
        if expire_at_s.is_some_and(|at_s| at_s.saturating_mul(1000) <= unix_ms) {
            return Err(ErrorCode::Expired.into());
        }
        let decided = match result.options() {
            Ok(decided) => decided,
            Err(fault) => {
                self.deciders.report_fault(turn, &call.proxy, &fault);
                return Err(fault.reply());
            }
        };
        let source =
            Source::Decision(&decided, self.sessions.decision_facts(turn, channel, expire_at_s));
        let entitlement =
            self.sessions.claim(turn.core, session, channel)?.entitle(source, asked)?;
        self.begin_subscription(turn, (session, id), channel, entitlement);
        Ok(())
    }

    /// Asks a backend whether a client may publish, and what. `said` is the command as received.
    pub(super) fn ask_publish(
        &mut self,
        turn: &mut Turn<'_, '_>,
        (conn, session, id): CommandOrigin,
        request: &PublishRequest<'_>,
        said: &[u8],
        proxy: &Arc<str>,
    ) -> Result<(), Error<'static>> {
        turn.core.namespace_of(&request.channel)?;
        let channel = &*request.channel;
        let call = self.call((conn, session, Some(id)), Event::Publish, proxy, channel, said);
        if let Some((call, answer)) =
            self.deciders.ask(turn, &self.sessions, call, &Question::Publish(request))
        {
            self.publish_decided(turn, &call, answer);
        }
        Ok(())
    }

    pub(super) fn publish_decided(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        answer: BackendResult,
    ) {
        let Some(format) = self.format_of(turn, call) else { return };
        let command = Commands::of(format, &call.frame).next();
        let Some(Ok(Command { id, request: Request::Publish(request) })) = &command else { return };
        let decision = answer.and_then(|answered| {
            let decision = decided(answered.read::<PublishResult>()?)?;
            Ok(match decision {
                BackendDecision::Granted(result) => BackendDecision::Granted(publication(result)?),
                BackendDecision::Nothing => BackendDecision::Nothing,
                BackendDecision::Error(error) => BackendDecision::Error(error),
                BackendDecision::Disconnect(disconnect) => BackendDecision::Disconnect(disconnect),
            })
        });
        let publication = match decision {
            Ok(BackendDecision::Granted(publication)) => publication,
            Ok(decision) => return self.refuse(turn, call, decision),
            Err(fault) => {
                self.deciders.report_fault(turn, &call.proxy, &fault);
                if !self.rules_permit(turn.core, call, Permission::Publish, &fault) {
                    return turn.reply_error(call.conn, call, &fault.reply());
                }
                NewPublication::default()
            }
        };
        match turn.core.namespace_of(&request.channel).map(|of| Arc::clone(&of.options)) {
            Ok(options) => {
                let trace = call.span.as_ref().map(|span| span.context);
                let publication = NewPublication { trace, ..publication };
                let publish = turn.core.publication_of(call.session, request, publication);
                let channel = ChannelRef::new(&request.channel, &options);
                self.publish_command(turn, (call.session, *id), channel, publish);
            }
            Err(error) => turn.reply_error(call.conn, call, &error),
        }
    }

    /// Whether the rules permit what a backend or a program has not decided, if they may decide. A program may leave it to them.
    fn rules_permit(
        &self,
        core: &Core<'_>,
        call: &ProxyCall,
        permission: Permission,
        fault: &ProxyError,
    ) -> bool {
        (matches!(fault, ProxyError::Undecided) || self.deciders.falls_back(&call.proxy))
            && self.sessions.permits_without_proxy(core, call.session, &call.channel, permission)
    }

    /// The backend has refused.
    fn refuse<T>(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        decision: BackendDecision<T>,
    ) {
        match decision {
            BackendDecision::Granted(_) | BackendDecision::Nothing => {}
            BackendDecision::Error(error) => {
                turn.reply_error(call.conn, call, &error);
            }
            BackendDecision::Disconnect(disconnect) => {
                self.disconnect(turn, call.conn, &disconnect);
            }
        }
    }

    /// Returns the format of a call's client, if it is still connected.
    fn format_of(&self, turn: &mut Turn<'_, '_>, call: &ProxyCall) -> Option<Format> {
        let link = turn.cx.data(call.conn).filter(|link| !link.closing)?;
        let is_its_own = link.session() == Some(call.session);
        link.encoding().filter(|_| is_its_own).map(|encoding| encoding.format())
    }
}

impl Deciders {
    /// Returns the cache key of a decision about a subscription; `None` if it may depend on more than user and channel.
    fn decision_key(
        &self,
        core: &Core<'_>,
        call: &ProxyCall,
        request: &SubscribeRequest<'_>,
    ) -> Option<DecisionKey> {
        let user = core.hub.session(call.session)?.user;
        (!user.is_empty() && request.data.is_none()).then(|| DecisionKey {
            proxy: Arc::clone(&call.proxy),
            user: user.into(),
            channel: call.channel.clone(),
        })
    }

    /// Caches a backend's decision about a subscription, if the backend has set a lifetime.
    fn keep_decision(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        request: &SubscribeRequest<'_>,
        answer: &BackendResult,
    ) {
        let Ok(ProxyReply::Response(status, body)) = answer else { return };
        let ttl_ms = cache_ttl_ms(*status, body, turn.core.clock.now().unix_ms);
        if ttl_ms > 0
            && let Some(key) = self.decision_key(turn.core, call, request)
            && let Some(backends) = &mut self.backends
        {
            let now_ms = turn.cx.now_ms();
            backends.decisions.insert(key, body, now_ms + ttl_ms, now_ms);
        }
    }
}

/// A backend without an opinion has not permitted the command.
fn decided<T>(decision: BackendDecision<T>) -> Result<BackendDecision<T>, ProxyError> {
    match decision {
        BackendDecision::Nothing => Err(ProxyError::Malformed(
            "there is neither `result` nor `error` nor `disconnect`".into(),
        )),
        decision => Ok(decision),
    }
}

/// What a backend has made of a publication. Without data it is the client's own.
fn publication(result: PublishResult) -> Result<NewPublication, ProxyError> {
    let data = payload(result.data.as_deref(), &result.b64data)?;
    let text = |text: String| (!text.is_empty()).then(|| text.into_boxed_str());
    Ok(NewPublication {
        format: data.as_ref().map_or_else(Default::default, Payload::format),
        data: data.map(Payload::into_bytes).unwrap_or_default(),
        tags: result.tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        idempotency_key: text(result.idempotency_key),
        skip_history: result.skip_history,
        version: result.version,
        version_epoch: result.version_epoch.into(),
        ..NewPublication::default()
    })
}
