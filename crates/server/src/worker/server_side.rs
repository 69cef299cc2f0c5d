//! The subscriptions that a connection begins with.

use std::borrow::Cow;

use dunlin_hub::tenant::bare;
use dunlin_protocol::centrifuge::{ConnectRequest, SubscribeRequest};

use super::clients::Clients;
use super::command::subscribe;
use super::connect::{NewClient, SubscriptionTokens};
use super::parts::{GrantToken, TokenFacts};
use super::permission::{Entitlement, NamedChannels, Source};
use super::program::ImmediateDecision;
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use crate::auth::{Identity, Subscription};

/// A server-side subscription to be made.
pub(super) struct ServerSide {
    pub(super) channel: String,
    pub(super) entitlement: Entitlement,
}

impl ServerSide {
    /// Takes the data for the client.
    pub(super) fn take_data(&mut self) -> Option<Box<[u8]>> {
        let Entitlement { data, grant, .. } = &mut self.entitlement;
        data.take().or_else(|| grant.as_mut()?.data.take())
    }
}

impl Clients {
    /// The subscriptions a connection begins with: those its token names, and on a unidirectional transport
    /// those it asks for and may have.
    pub(super) fn server_side(
        &mut self,
        turn: &mut Turn<'_, '_>,
        client: NewClient,
        identity: &Identity,
        request: &ConnectRequest<'_>,
        mut tokens: SubscriptionTokens,
    ) -> Vec<ServerSide> {
        let mut subscriptions = self.named_sides(turn, identity, request);
        if !client.encoding.is_bidirectional() {
            for (channel, request) in request.subs.iter() {
                let mut channel = Cow::Borrowed(channel);
                if turn.core.qualify(&identity.user, &mut channel).is_err()
                    || subscriptions.iter().any(|of: &ServerSide| *of.channel == *channel)
                {
                    continue;
                }
                let token = tokens.remove(&*channel);
                let side = self.requested_side(turn, client, identity, (&channel, request), token);
                subscriptions.extend(side);
            }
        }
        subscriptions
    }

    fn named_sides(
        &mut self,
        turn: &mut Turn<'_, '_>,
        identity: &Identity,
        request: &ConnectRequest<'_>,
    ) -> Vec<ServerSide> {
        let mut subscriptions = Vec::new();
        for (channel, options) in self.sessions.named_channels(turn.core, identity) {
            let asked = subscribe(request.subs.get(bare(channel.as_str())));
            let claim = self.sessions.claim_of(turn.core, identity, &channel);
            match claim.and_then(|claim| claim.entitle(Source::Connection(&options), asked)) {
                Ok(entitlement) => subscriptions.push(ServerSide { channel, entitlement }),
                Err(error) => {
                    if let Some(before) = self.connects.handle_unknown_namespace(turn.cx.now_ms()) {
                        let why = &*error.message;
                        tracing::warn!(channel, before, why, "a token names a channel in vain");
                    }
                }
            }
        }
        subscriptions
    }

    /// A subscription that a unidirectional connection asks for, if it may have it.
    fn requested_side(
        &mut self,
        turn: &mut Turn<'_, '_>,
        client: NewClient,
        identity: &Identity,
        (channel, request): (&str, &SubscribeRequest<'_>),
        token: Option<(Subscription, GrantToken)>,
    ) -> Option<ServerSide> {
        let asked = subscribe(Some(request));
        let entitlement = match token {
            Some((subscription, token)) => {
                let source = Source::Token(&subscription.options, token);
                self.sessions.claim_of(turn.core, identity, channel).ok()?.entitle(source, asked)
            }
            None => {
                // There its channel is the key it stands under.
                let (name, data) = (channel.into(), request.data.clone());
                let question = SubscribeRequest { channel: name, data, ..Default::default() };
                let caller = (client.conn, client.session, &*identity.user);
                match self.deciders.consult_at_once(
                    turn,
                    &self.sessions.forwarded,
                    caller,
                    &question,
                ) {
                    ImmediateDecision::Denied => return None,
                    ImmediateDecision::Rules => self
                        .sessions
                        .claim_of(turn.core, identity, channel)
                        .ok()?
                        .entitle(Source::Client, asked),
                    ImmediateDecision::Granted(result) => {
                        let expire_at_s = (result.expire_at > 0).then_some(result.expire_at);
                        let decided = self.deciders.granted_options(turn, result)?;
                        let facts = self.sessions.decision_facts(turn, channel, expire_at_s);
                        let source = Source::Decision(&decided, facts);
                        self.sessions
                            .claim_of(turn.core, identity, channel)
                            .ok()?
                            .entitle(source, asked)
                    }
                }
            }
        };
        Some(ServerSide { channel: channel.to_owned(), entitlement: entitlement.ok()? })
    }
}

impl Sessions {
    /// The channels that a connection is subscribed to by its token or connect proxy, and the user's own, where there is one.
    pub(super) fn named_channels(&self, core: &Core<'_>, identity: &Identity) -> NamedChannels {
        let mut named = identity.subscriptions.clone();
        let personal = &core.settings.config.client.subscribe_to_user_personal_channel;
        if let Some(channel) = personal.of(bare(&identity.user)) {
            let tenant = core.tenant_of(&identity.user);
            named.entry(tenant.map(|of| of.qualify(&channel)).unwrap_or(channel)).or_default();
        }
        for channel in core.settings.inboxes_of(&identity.user) {
            named.entry(channel).or_default();
        }
        named
    }
}

impl Sessions {
    /// What is kept of a decision of a backend or the program about a subscription.
    pub(super) fn decision_facts(
        &mut self,
        turn: &mut Turn<'_, '_>,
        channel: &str,
        expire_at_s: Option<u64>,
    ) -> TokenFacts {
        let now_s = turn.now().unix_ms / 1000;
        TokenFacts::of_proxy(now_s, self.asked_at_s(turn.core, channel, expire_at_s))
    }
}
