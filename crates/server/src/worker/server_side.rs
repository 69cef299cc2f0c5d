//! The subscriptions that a connection begins with.

use std::borrow::Cow;

use dunlin_hub::tenant::bare;
use dunlin_net::Context;
use dunlin_protocol::centrifuge::{ConnectRequest, SubscribeRequest};

use super::Worker;
use super::command::subscribe;
use super::connect::{NewClient, SubscriptionTokens};
use super::link::Link;
use super::parts::{GrantToken, TokenFacts};
use super::permission::{Entitlement, NamedChannels, Source};
use super::program::ImmediateDecision;
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

impl Worker<'_> {
    /// The subscriptions a connection begins with: those its token names, and on a unidirectional transport
    /// those it asks for and may have.
    pub(super) fn server_side(
        &mut self,
        cx: &mut Context<Link>,
        client: NewClient,
        identity: &Identity,
        request: &ConnectRequest<'_>,
        mut tokens: SubscriptionTokens,
    ) -> Vec<ServerSide> {
        let mut subscriptions = self.named_sides(cx, identity, request);
        if !client.encoding.is_bidirectional() {
            for (channel, request) in request.subs.iter() {
                let mut channel = Cow::Borrowed(channel);
                if self.qualify(&identity.user, &mut channel).is_err()
                    || subscriptions.iter().any(|of: &ServerSide| *of.channel == *channel)
                {
                    continue;
                }
                let token = tokens.remove(&*channel);
                let side = self.requested_side(cx, client, identity, (&channel, request), token);
                subscriptions.extend(side);
            }
        }
        subscriptions
    }

    /// The channels that a connection is subscribed to by its token or connect proxy, and the user's own, where there is one.
    pub(super) fn named_channels(&self, identity: &Identity) -> NamedChannels {
        let mut named = identity.subscriptions.clone();
        let personal = &self.settings.config.client.subscribe_to_user_personal_channel;
        if let Some(channel) = personal.of(bare(&identity.user)) {
            let tenant = self.tenant_of(&identity.user);
            named.entry(tenant.map(|of| of.qualify(&channel)).unwrap_or(channel)).or_default();
        }
        named
    }

    fn named_sides(
        &mut self,
        cx: &Context<Link>,
        identity: &Identity,
        request: &ConnectRequest<'_>,
    ) -> Vec<ServerSide> {
        let mut subscriptions = Vec::new();
        for (channel, options) in self.named_channels(identity) {
            let asked = subscribe(request.subs.get(bare(channel.as_str())));
            let claim = self.claim_of(identity, &channel);
            match claim.and_then(|claim| claim.entitle(Source::Connection(&options), asked)) {
                Ok(entitlement) => subscriptions.push(ServerSide { channel, entitlement }),
                Err(error) => {
                    if let Some(before) = self.connects.handle_unknown_namespace(cx.now_ms()) {
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
        cx: &mut Context<Link>,
        client: NewClient,
        identity: &Identity,
        (channel, request): (&str, &SubscribeRequest<'_>),
        token: Option<(Subscription, GrantToken)>,
    ) -> Option<ServerSide> {
        let asked = subscribe(Some(request));
        let entitlement = match token {
            Some((subscription, token)) => {
                let source = Source::Token(&subscription.options, token);
                self.claim_of(identity, channel).ok()?.entitle(source, asked)
            }
            None => {
                // There its channel is the key it stands under.
                let (name, data) = (channel.into(), request.data.clone());
                let question = SubscribeRequest { channel: name, data, ..Default::default() };
                let caller = (client.conn, client.session, &*identity.user);
                match self.consult_at_once(cx, caller, &question) {
                    ImmediateDecision::Denied => return None,
                    ImmediateDecision::Rules => {
                        self.claim_of(identity, channel).ok()?.entitle(Source::Client, asked)
                    }
                    ImmediateDecision::Granted(result) => {
                        let expire_at_s = (result.expire_at > 0).then_some(result.expire_at);
                        let decided = self.granted_options(cx, result)?;
                        let facts = self.decision_facts(cx, channel, expire_at_s);
                        let source = Source::Decision(&decided, facts);
                        self.claim_of(identity, channel).ok()?.entitle(source, asked)
                    }
                }
            }
        };
        Some(ServerSide { channel: channel.to_owned(), entitlement: entitlement.ok()? })
    }

    /// What is kept of a decision of a backend or the program about a subscription.
    pub(super) fn decision_facts(
        &mut self,
        cx: &Context<Link>,
        channel: &str,
        expire_at_s: Option<u64>,
    ) -> TokenFacts {
        let now_s = self.now(cx).unix_ms / 1000;
        TokenFacts::of_proxy(now_s, self.asked_at_s(channel, expire_at_s))
    }
}
