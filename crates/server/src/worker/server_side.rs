//! The subscriptions that a connection begins with.

use std::borrow::Cow;
use std::sync::Arc;

use dunlin_hub::tenant::bare;
use dunlin_hub::{ChannelOptions, SubscribeOptions};
use dunlin_net::Context;
use dunlin_protocol::centrifuge::{ConnectRequest, SubscribeRequest};

use super::Worker;
use super::command::subscribe;
use super::connect::{NewClient, SubscriptionTokens, one_line, subject_of};
use super::link::Link;
use super::parts::{Grant, GrantToken, TokenFacts};
use super::permission::{Basis, Subject};
use super::program::ImmediateDecision;
use super::subscription::overridden;
use crate::auth::{Allow, Identity, Subscription};
use crate::proxy::SubscribeResult;

/// A server-side subscription to be made.
pub(super) struct ServerSide {
    pub(super) channel: String,
    pub(super) options: Arc<ChannelOptions>,
    pub(super) subscribe: SubscribeOptions,
    pub(super) data: Option<Box<[u8]>>,
    /// The token it rests on, where it has one of its own.
    pub(super) grant: Option<Grant>,
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
        let mut subscriptions = self.token_sides(cx, identity, request);
        let personal = self.personal_side(identity, request);
        subscriptions.extend(personal);
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

    /// The subscriptions that a connection's token names.
    fn token_sides(
        &mut self,
        cx: &Context<Link>,
        identity: &Identity,
        request: &ConnectRequest<'_>,
    ) -> Vec<ServerSide> {
        let mut subscriptions = Vec::new();
        let subject = subject_of(identity);
        for (channel, options) in &identity.subscriptions {
            let Some(namespace) = self.settings.namespace(channel) else {
                if let Some(before) = self.connects.handle_unknown_namespace(cx.now_ms()) {
                    tracing::warn!(
                        channel,
                        before,
                        "a token subscribes to a channel of an unknown namespace"
                    );
                }
                continue;
            };
            let hub_options = overridden(&namespace.options, &options.overrides);
            let asked = subscribe(request.subs.get(bare(channel.as_str())));
            let granted = self.granted(&identity.capabilities, channel);
            let mut subscribe = self.entitled(subject, channel, &hub_options, granted, asked);
            subscribe.chan_info = options.info.as_deref().map(one_line);
            subscribe.granted = true;
            subscriptions.push(ServerSide {
                channel: channel.clone(),
                options: hub_options,
                subscribe,
                data: options.data.as_deref().map(one_line),
                grant: None,
            });
        }
        subscriptions
    }

    /// The subscription to the user's personal channel, where there is one that the token does not name.
    fn personal_side(
        &self,
        identity: &Identity,
        request: &ConnectRequest<'_>,
    ) -> Option<ServerSide> {
        let personal = &self.settings.config.client.subscribe_to_user_personal_channel;
        let channel = personal.of(bare(&identity.user))?;
        let tenant = self.tenant_of(&identity.user);
        let channel = tenant.map(|of| of.qualify(&channel)).unwrap_or(channel);
        if identity.subscriptions.contains_key(&channel) {
            return None;
        }
        let options = Arc::clone(&self.namespace_of(&channel).ok()?.options);
        let asked = subscribe(request.subs.get(bare(channel.as_str())));
        let granted = self.granted(&identity.capabilities, &channel);
        let subject = subject_of(identity);
        let mut subscribe = self.entitled(subject, &channel, &options, granted, asked);
        subscribe.granted = true;
        Some(ServerSide { channel, options, subscribe, data: None, grant: None })
    }

    /// A subscription that a unidirectional connection asks for, if it may have it.
    fn requested_side(
        &mut self,
        cx: &mut Context<Link>,
        client: NewClient,
        identity: &Identity,
        (channel, request): (&str, &SubscribeRequest<'_>),
        token: Option<(Subscription, Grant)>,
    ) -> Option<ServerSide> {
        let subject = subject_of(identity);
        let decided = match &token {
            Some(_) => ImmediateDecision::Rules,
            None => {
                // There its channel is the key it stands under.
                let (channel, data) = (channel.into(), request.data.clone());
                let asked = SubscribeRequest { channel, data, ..Default::default() };
                self.consult_at_once(cx, (client.conn, client.session, &identity.user), &asked)
            }
        };
        match decided {
            ImmediateDecision::Rules => {}
            ImmediateDecision::Denied => return None,
            ImmediateDecision::Granted(result) => {
                let granted = self.granted(&identity.capabilities, channel);
                return self.decided_side(cx, subject, (channel, request), granted, result);
            }
        }
        let allowed = match &token {
            Some((token, _)) => self
                .namespace_of(channel)
                .map(|of| (overridden(&of.options, &token.options.overrides), Basis::Rules)),
            None => self
                .may_subscribe(subject, channel, || self.granted(&identity.capabilities, channel)),
        };
        let (options, basis) = allowed.ok()?;
        let asked = subscribe(Some(request));
        let (token, mut grant) = token.unzip();
        let own = token.as_ref().map_or(Allow::NONE, |token| token.allow);
        let granted = self.granted(&identity.capabilities, channel).union(own);
        let mut subscribe = self.entitled(subject, channel, &options, granted, asked);
        if basis != Basis::Rules {
            grant = Some(Grant { token: None, data: None });
            subscribe.granted = basis == Basis::Capability;
        }
        if let Some(token) = token {
            subscribe.chan_info = token.options.info.as_deref().map(one_line);
            subscribe.granted = true;
        }
        Some(ServerSide {
            channel: channel.to_owned(),
            options,
            subscribe,
            data: grant.as_mut().and_then(|grant| grant.data.take()),
            grant,
        })
    }

    /// A subscription that the program has granted.
    fn decided_side(
        &mut self,
        cx: &Context<Link>,
        subject: Subject<'_>,
        (channel, request): (&str, &SubscribeRequest<'_>),
        granted: Allow,
        result: SubscribeResult,
    ) -> Option<ServerSide> {
        let expire_at_s = (result.expire_at > 0).then_some(result.expire_at);
        let decided = self.granted_options(cx, result)?;
        let options = overridden(&self.namespace_of(channel).ok()?.options, &decided.overrides);
        let mut subscribe =
            self.entitled(subject, channel, &options, granted, subscribe(Some(request)));
        subscribe.chan_info = decided.info.as_deref().map(one_line);
        subscribe.granted = true;
        let now_s = self.now(cx).unix_ms / 1000;
        let grant = expire_at_s.map(|_| {
            let facts = TokenFacts::of_proxy(now_s, self.asked_at_s(channel, expire_at_s));
            let token = GrantToken { facts, key: None, allow: Allow::NONE };
            Grant { token: Some(token), data: None }
        });
        let data = decided.data.as_deref().map(one_line);
        Some(ServerSide { channel: channel.to_owned(), options, subscribe, data, grant })
    }
}
