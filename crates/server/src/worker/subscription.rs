//! Subscription tokens: a valid token subscribes its client to the channel, until it expires or is revoked.

use dunlin_hub::SessionId;
use dunlin_hub::tenant::{MARK, bare};
use dunlin_protocol::centrifuge::{
    CommandError, DisconnectCode, ErrorCode, Reply, SubRefreshRequest, SubscribeRequest,
    UnsubscribeCode,
};

use super::clients::Clients;
use super::connect::one_line;
use super::key_wait::Unverified;
use super::parts::{Grant, GrantKey, GrantSource, GrantToken, TokenFacts};
use super::permission::Source;
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use crate::auth::Subscription;

/// The most expired subscriptions ended in one turn.
const EXPIRE_PER_TURN: usize = 1_024;
/// The unsubscribe code for a client whose subscription token is no longer valid: it gets a new token, and subscribes again.
const STATE_INVALIDATED: u32 = UnsubscribeCode::StateInvalidated.code();

impl Clients {
    /// Subscribes a client by its token, which alone decides.
    ///
    /// # Errors
    /// What the client is answered, or disconnected with.
    pub(super) fn subscribe_by_token(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        id: u32,
        request: &SubscribeRequest<'_>,
    ) -> Result<(), Unverified> {
        let channel = &*request.channel;
        turn.core.namespace_of(channel).map_err(CommandError::Reply)?;
        if turn.core.hub.has_subscription(session, channel) {
            return Err(CommandError::Reply(ErrorCode::AlreadySubscribed.into()).into());
        }
        let user =
            turn.core.hub.session(session).map(|view| view.user.to_owned()).unwrap_or_default();
        let (subscription, token) = self.sessions.verify_subscription(
            turn.core,
            Some(session),
            &user,
            channel,
            &request.token,
        )?;
        let source = Source::Token(&subscription.options, token);
        let entitlement = self
            .sessions
            .client_side(turn.core, request)
            .and_then(|asked| {
                self.sessions.claim(turn.core, session, channel)?.entitle(source, asked)
            })
            .map_err(CommandError::Reply)?;
        self.begin_subscription(turn, (session, id), channel, entitlement);
        Ok(())
    }

    /// Renews a subscription with a new token.
    ///
    /// # Errors
    /// The error reply or disconnect for the client.
    pub(super) fn sub_refresh(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        id: u32,
        request: &SubRefreshRequest<'_>,
    ) -> Result<(), Unverified> {
        let channel = &*request.channel;
        if !turn.core.hub.is_subscribed(session, channel) {
            let why = "not subscribed to this channel";
            return Err(CommandError::Reply(ErrorCode::PermissionDenied.with_reason(why)).into());
        }
        if request.token.is_empty() {
            let why = "sub_refresh.token is missing";
            return Err(CommandError::Reply(ErrorCode::BadRequest.with_reason(why)).into());
        }
        let user =
            turn.core.hub.session(session).map(|view| view.user.to_owned()).unwrap_or_default();
        let (subscription, token) = self
            .sessions
            .verify_subscription(turn.core, Some(session), &user, channel, &request.token)
            .map_err(|error| match error {
                // Who shows a wrong one for what he has already is no client that may try another.
                Unverified::Refused(CommandError::Reply(error))
                    if error.code == ErrorCode::PermissionDenied.code() =>
                {
                    let why = DisconnectCode::InvalidToken.with_reason(error.message);
                    CommandError::Disconnect(why).into()
                }
                error => error,
            })?;
        let overrides = subscription.options.overrides;
        let is_made_anew = self.sessions.claim(turn.core, session, channel).is_ok_and(|claim| {
            claim.is_overridden_anew(self.sessions.grants.get(session, channel), overrides)
        });
        let source = GrantSource::Token(token);
        self.sessions.grants.insert(session, channel, Grant { source, overrides, data: None });
        self.compare_grants(turn, session, None);
        if let Some(info) = subscription.options.info.as_deref() {
            let now = turn.now();
            turn.core.hub.set_chan_info(now, session, channel, one_line(info));
        }
        let ttl_s = self.sessions.grants.ttl_s(session, channel, turn.core.clock.now());
        turn.core.reply(session, id, &Reply::SubRefresh { ttl_s });
        if is_made_anew && turn.core.hub.is_subscribed(session, channel) {
            let code = UnsubscribeCode::Insufficient;
            self.end_subscriptions(turn, vec![(session, channel.into())], code.code(), code.text());
        }
        Ok(())
    }

    /// Ends expired subscriptions, a limited number in each turn.
    pub(super) fn expire_subscriptions(&mut self, turn: &mut Turn<'_, '_>) {
        let grace_ms = turn.core.settings.config.client.subscription_token.refresh_grace_ms;
        let expired =
            self.sessions.grants.expire(turn.core.clock.now().unix_ms, grace_ms, EXPIRE_PER_TURN);
        let mut ended = Vec::new();
        for (place, by_backend) in expired {
            if !by_backend || !self.ask_sub_refresh(turn, &place) {
                ended.push(place);
            }
        }
        let code = UnsubscribeCode::Expired;
        self.end_subscriptions(turn, ended, code.code(), code.text());
    }

    /// Ends subscriptions whose token is no longer valid; their clients may subscribe with another one.
    pub(super) fn invalidate_subscriptions(
        &mut self,
        turn: &mut Turn<'_, '_>,
        places: Vec<GrantKey>,
        reason: &str,
    ) {
        self.end_subscriptions(turn, places, STATE_INVALIDATED, reason);
    }

    pub(super) fn end_subscriptions(
        &mut self,
        turn: &mut Turn<'_, '_>,
        places: Vec<GrantKey>,
        code: u32,
        reason: &str,
    ) {
        if places.is_empty() {
            return;
        }
        let now = turn.now();
        for (session, channel) in places {
            self.sessions.grants.remove(session, &channel);
            turn.core.hub.handle_unsubscribe(now, session, &channel, Some((code, reason)));
        }
        self.drain_events(turn);
    }
}

impl Sessions {
    /// What a subscription token says, if it is this client's for this channel. `session` is `None` while there is none.
    ///
    /// # Errors
    /// An expired one is answered with 109 (with 110 where the subscription itself would have ended), any other that is
    /// not valid with 103. A valid one of another channel, user or session disconnects with 3500, as it does in
    /// Centrifugo.
    pub(super) fn verify_subscription(
        &self,
        core: &Core<'_>,
        session: Option<SessionId>,
        user: &str,
        channel: &str,
        token: &str,
    ) -> Result<(Subscription, GrantToken), Unverified> {
        let denied = |why: &dyn std::fmt::Display| {
            CommandError::Reply(ErrorCode::PermissionDenied.with_reason(why))
        };
        let now_ms = core.clock.now().unix_ms;
        let tenant = core.tenant_of(user);
        if tenant.is_none() && user.starts_with(MARK) {
            return Err(denied(&"the tenant was taken away").into());
        }
        let verifier = tenant.map_or(&core.settings.subscription_verifier, |of| &of.verifier);
        let mut subscription = verifier.verify_subscription(token, now_ms).map_err(|error| {
            Unverified::of(&error, |error| denied(&format_args!("subscription token: {error}")))
        })?;
        if let (Some(tenant), Some(jti)) = (tenant, &mut subscription.token.jti) {
            *jti = tenant.qualify(jti);
        }
        let other = |what| {
            let why = format_args!("the subscription token is of another {what}");
            let why = DisconnectCode::InvalidToken.with_reason(why);
            Err(CommandError::Disconnect(why).into())
        };
        if subscription.channel != bare(channel) {
            return other("channel");
        }
        if subscription.user != bare(user) {
            return other("user");
        }
        if let Some(client) = &subscription.client
            && session.is_none_or(|session| session.to_string() != *client)
        {
            return other("client");
        }
        let token = &subscription.token;
        let id = core.state.revocations.id_of(token);
        if core.state.revocations.refuses(id, user, token.issued_at_s, now_ms).is_some() {
            return Err(denied(&"the subscription token was revoked").into());
        }
        if subscription.expire_at_s.is_some_and(|at_s| at_s.saturating_mul(1000) <= now_ms) {
            return Err(CommandError::Reply(ErrorCode::Expired.into()).into());
        }
        let facts = TokenFacts::new(id, token.issued_at_s, subscription.expire_at_s);
        let (key, allow) = (Some(subscription.key), subscription.allow);
        Ok((subscription, GrantToken { facts, key, allow }))
    }

    /// Whether subscriptions have expired, so that the worker must not sleep.
    pub(super) fn subscriptions_have_expired(&self, core: &Core<'_>) -> bool {
        let grace_ms = core.settings.config.client.subscription_token.refresh_grace_ms;
        self.grants.has_expired(core.clock.now().unix_ms, grace_ms)
    }
}
