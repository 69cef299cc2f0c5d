//! Who may do what in a channel, and with what a subscription comes: the one place where it is assembled.
//!
//! A [`Claim`] has all that is asked: the namespace, who asks, and what the connection's token lets it do. [`Claim::entitle`]
//! assembles a subscription of any [`Source`], on every transport; [`Claim::standing`] says what of it still holds after its
//! source was renewed, or the settings have changed. Neither does I/O.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use dunlin_config::{ChannelOptions as Rules, Inbox, OnFailure, PRIVATE_PREFIX};
use dunlin_hub::tenant::bare;
use dunlin_hub::{
    ChannelOptions, CheckedSubscription, CursorOwner, SessionId, StreamPosition, SubscribeOptions,
    SubscriberRights, SubscriptionBasis,
};
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{Error, ErrorCode};
use dunlin_protocol::device_of;

use super::connect::one_line;
use super::parts::{
    CapabilityTable, ForwardedTable, Grant, GrantSource, GrantToken, Grants, TokenFacts,
};
use super::sessions::Sessions;
use super::turn::Core;
use crate::auth::OptionsOverride;
use crate::auth::{self, Allow, Identity};
use crate::namespace::Namespace;
use crate::namespace::expression::{Expression, ExpressionInput};
use crate::namespace::meta::Meta;
use crate::state::settings::Settings;

/// The operations in a channel that need a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    Subscribe,
    Publish,
    History,
    Presence,
}

impl Permission {
    /// Returns the capability that grants it.
    pub(super) fn capability(self) -> Allow {
        match self {
            Permission::Subscribe => Allow::SUBSCRIBE,
            Permission::Publish => Allow::PUBLISH,
            Permission::History => Allow::HISTORY,
            Permission::Presence => Allow::PRESENCE,
        }
    }

    /// Returns the name of the operation.
    pub(super) fn name(self) -> &'static str {
        match self {
            Permission::Subscribe => "subscribe",
            Permission::Publish => "publish",
            Permission::History => "history",
            Permission::Presence => "presence",
        }
    }

    /// Returns the setting with the expression that grants it.
    pub(super) fn key(self) -> &'static str {
        match self {
            Permission::Subscribe => "subscribe_cel",
            Permission::Publish => "publish_cel",
            Permission::History => "history_cel",
            Permission::Presence => "presence_cel",
        }
    }
}

/// Whether the name of a channel lists the users who may subscribe to it.
pub(super) fn is_user_limited(rules: &Rules, channel: &str) -> bool {
    rules.allow_user_limited_channels && channel.contains('#')
}

/// What grants a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// A rule of the namespace.
    Rules,
    Expression,
    Capability,
}

impl Basis {
    /// Returns its name in the log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Basis::Rules => "rules",
            Basis::Expression => "expression",
            Basis::Capability => "capability of the token",
        }
    }
}

/// The client whose permission is checked.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) user: &'a str,
    /// The `meta` of the connection's token or connect proxy.
    pub(super) meta: Option<&'a Meta>,
    pub(super) device: Device<'a>,
}

/// Where the device of a client is named.
#[derive(Clone, Copy, Default)]
pub(super) struct Device<'a> {
    /// What its token or connect proxy says about the connection, JSON.
    pub(super) info: Option<&'a [u8]>,
    /// By the client.
    pub(super) own: Option<&'a str>,
}

impl<'a> Device<'a> {
    /// The device; empty if none is named. What a backend says goes first.
    fn name(self) -> Cow<'a, str> {
        self.info.and_then(device_of).or(self.own.map(Cow::Borrowed)).unwrap_or_default()
    }
}

/// A client and a channel.
#[derive(Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) channel: &'a str,
    pub(super) subject: Subject<'a>,
    /// What the connection's token lets the client do in the channel (`caps`).
    pub(super) capable: Allow,
}

/// Who gives a client a subscription.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Nobody: the client asks for it itself, and the rules of the namespace, a capability of its connection's token or an
    /// expression must let it in.
    Client,
    /// The `allow_` keys, in place of a backend that has not decided.
    Fallback,
    /// A subscription token, verified.
    Token(&'a auth::SubscribeOptions, GrantToken),
    /// The token of the connection, or its connect proxy, names the channel; or it is the user's own.
    Connection(&'a auth::SubscribeOptions),
    /// A backend, or the program, has decided. What it decided is good until then.
    Decision(&'a auth::SubscribeOptions, TokenFacts),
    /// The backend subscribes the client by the server API.
    Api(&'a OptionsOverride),
    /// The signature of an app of the Pusher protocol, or the kind of the channel.
    App,
}

/// A subscription that a client may have.
#[derive(Debug)]
pub(super) struct Entitlement {
    pub(super) options: Arc<ChannelOptions>,
    pub(super) subscribe: SubscribeOptions,
    /// What it rests on, to be kept with the subscription: it is compared again when that changes, and ends with it.
    pub(super) grant: Option<Grant>,
    /// Data for the client, raw JSON.
    pub(super) data: Option<Box<[u8]>>,
    /// What lets the client in, for the log.
    pub(super) by: &'static str,
}

impl Claim<'_> {
    /// Assembles a subscription: who lets the client in, with which options, and what it has beside future publications.
    ///
    /// Where the channel forces recovery, its subscribers recover from the position that they name. Elsewhere only clients that
    /// may read the history do. All others get nothing older than the subscription and no position to resume from; if they asked
    /// for recovery, the reply reports that nothing was recovered.
    ///
    /// # Errors
    /// Nobody lets the client in.
    pub(super) fn entitle(
        &self,
        source: Source<'_>,
        asked: SubscribeOptions,
    ) -> Result<Entitlement, Error<'static>> {
        let channel_options = &self.namespace.options;
        let none = auth::SubscribeOptions::default();
        let (given, token) = match source {
            Source::Client => {
                let basis = self.may(Permission::Subscribe, false)?;
                let mut entitlement = self.entitlement(&none, Allow::NONE, asked);
                entitlement.subscribe.granted = basis == Basis::Capability;
                entitlement.by = basis.name();
                let (source, overrides) = (GrantSource::Capability, none.overrides);
                entitlement.grant =
                    (basis != Basis::Rules).then_some(Grant { source, overrides, data: None });
                return Ok(entitlement);
            }
            Source::Fallback => {
                if !self.permits_by_keys(Permission::Subscribe, false) {
                    return Err(self.refusal(Permission::Subscribe));
                }
                let entitlement = self.entitlement(&none, Allow::NONE, asked);
                return Ok(Entitlement { by: "rules in place of a backend", ..entitlement });
            }
            Source::Api(overrides) => {
                let options = overridden(channel_options, overrides);
                let subscribe = SubscribeOptions { granted: true, announce: true, ..asked };
                let by = "server API";
                return Ok(Entitlement { options, subscribe, grant: None, data: None, by });
            }
            Source::App => {
                let join_leave_granted = asked.join_leave;
                let subscribe = SubscribeOptions { granted: true, join_leave_granted, ..asked };
                let options = Arc::clone(channel_options);
                let by = "app";
                return Ok(Entitlement { options, subscribe, grant: None, data: None, by });
            }
            Source::Token(given, token) => (given, Some(token)),
            Source::Decision(given, facts) => {
                (given, Some(GrantToken { facts, key: None, allow: Allow::NONE }))
            }
            Source::Connection(given) => (given, None),
        };
        let allow = token.map_or(Allow::NONE, |token| token.allow);
        let mut entitlement = self.entitlement(given, allow, asked);
        entitlement.subscribe.granted = true;
        entitlement.by = match source {
            Source::Token(..) => "subscription token",
            Source::Decision(..) => "backend",
            _ => "connection token",
        };
        let data = given.data.as_deref().map(one_line);
        match token {
            None => {
                entitlement.subscribe.of_connection = true;
                entitlement.data = data;
                let (source, overrides) = (GrantSource::Connection, given.overrides);
                entitlement.grant =
                    (!overrides.is_empty()).then_some(Grant { source, overrides, data: None });
            }
            Some(token) => {
                // Of a decision for good nothing has to be compared again.
                let is_kept = token.key.is_some()
                    || data.is_some()
                    || token.facts.expires()
                    || entitlement.subscribe.join_leave_granted
                    || !given.overrides.is_empty();
                let (source, overrides) = (GrantSource::Token(token), given.overrides);
                entitlement.grant = is_kept.then_some(Grant { source, overrides, data });
            }
        }
        Ok(entitlement)
    }

    /// With these options of its source; `allow` is what the source lets the client do beside its capabilities.
    fn entitlement(
        &self,
        given: &auth::SubscribeOptions,
        allow: Allow,
        mut asked: SubscribeOptions,
    ) -> Entitlement {
        let options = overridden(&self.namespace.options, &given.overrides);
        let allow = self.capable.union(allow);
        // The subscription counts for `allow_history_for_subscriber` before it is made.
        let may = |permission: Permission| {
            allow.contains(permission.capability()) || self.permits(permission, true)
        };
        // Joins and leaves reveal who is present.
        asked.join_leave = asked.join_leave && may(Permission::Presence);
        asked.join_leave_granted = allow.contains(Permission::Presence.capability());
        if !options.force_recovery && !may(Permission::History) {
            if let Some(position) = &mut asked.recover {
                *position = StreamPosition::BARRED;
            }
            // Recovery was not tried, so it has not failed.
            asked.reject_unrecovered = false;
            asked.recoverable = false;
            asked.positioned = false;
        }
        if options.ack.is_some() {
            // What is not acknowledged comes again, whatever the client has seen.
            asked.cursor = Some(Box::new(self.cursor_owner()));
            (asked.recover, asked.reject_unrecovered) = (None, false);
        }
        asked.chan_info = given.info.as_deref().map(one_line);
        Entitlement { options, subscribe: asked, grant: None, data: None, by: "" }
    }

    /// Whose cursor the client's is: it acknowledges for itself alone.
    fn cursor_owner(&self) -> CursorOwner {
        let Subject { user, device, .. } = self.subject;
        // A client without a user has none, and the hub says so.
        let user = if bare(user).is_empty() { "" } else { user };
        CursorOwner { user: user.into(), device: device.name().into() }
    }

    /// Returns what of a subscription still holds. `grant`: what is kept of its source; `renewed`: what the connection's new token
    /// names, if there is one.
    pub(super) fn standing(
        &self,
        basis: SubscriptionBasis,
        grant: Option<&Grant>,
        renewed: Option<&NamedChannels>,
    ) -> SubscriberRights {
        let named = renewed.filter(|_| basis.of_connection).map(|named| named.get(self.channel));
        if let Some(None) = named {
            // What its token had subscribed the client to was not its own wish, so that no rule keeps it.
            return SubscriberRights::NONE;
        }
        let is_by_capability = grant.is_some_and(|grant| grant.source == GrantSource::Capability);
        let overrides = named.flatten().map(|given| &given.overrides);
        let overrides = overrides.or_else(|| Some(&grant?.overrides));
        let pushes = overrides.is_some_and(|of| of.force_push_join_leave == Some(true));
        let joins = match (named.flatten(), grant.and_then(Grant::token)) {
            (Some(_), _) => pushes,
            (None, Some(token)) => pushes || token.allow.contains(Allow::PRESENCE),
            // The server API, an app, or the connection's token, which is the same as before.
            (None, None) => basis.granted && !is_by_capability,
        };
        let capable = self.capable.contains(Allow::SUBSCRIBE);
        let grant = !is_by_capability || capable;
        SubscriberRights {
            // An expression is not evaluated for what a grant keeps.
            subscription: basis.granted && grant
                || capable
                || self.permits(Permission::Subscribe, false),
            grant,
            join_leave: self.permits(Permission::Presence, true),
            join_leave_grant: joins
                || self.capable.contains(Allow::PRESENCE)
                || self.namespace.options.force_push_join_leave,
        }
    }

    /// Whether a new source of a subscription gives it other options than it was made with, so that it has to be made anew.
    /// Joins and leaves that are not pushed any more end in place.
    pub(super) fn is_overridden_anew(
        &self,
        grant: Option<&Grant>,
        overrides: OptionsOverride,
    ) -> bool {
        let before = grant.map(|grant| grant.overrides).unwrap_or_default();
        let [before, after] = [before, overrides].map(|of| of.apply(&self.namespace.options));
        let of_subscription = |options: &ChannelOptions| {
            let ChannelOptions { presence, join_leave, force_positioning, .. } = *options;
            [presence, join_leave, force_positioning, options.force_recovery]
        };
        of_subscription(&before) != of_subscription(&after)
            || after.force_push_join_leave && !before.force_push_join_leave
    }

    /// Whether the client has a permission, and what grants it.
    ///
    /// # Errors
    /// It has not; the error says why.
    pub(super) fn may(
        &self,
        permission: Permission,
        subscribed: bool,
    ) -> Result<Basis, Error<'static>> {
        let (namespace, channel) = (self.namespace, self.channel);
        // An operation that the channel does not offer fails with that reason, not with a missing permission.
        match permission {
            Permission::History | Permission::Presence if namespace.options.wildcard => {
                let why = dunlin_hub::Error::Wildcard;
                return Err(ErrorCode::NotAvailable.with_reason(why));
            }
            Permission::Publish if namespace.options.wildcard => {
                return Err(dunlin_hub::Error::Wildcard.into());
            }
            Permission::History if !namespace.options.keeps_history() => {
                return Err(dunlin_hub::Error::HistoryOff.into());
            }
            Permission::Presence if !namespace.options.presence => {
                return Err(dunlin_hub::Error::PresenceOff.into());
            }
            _ => {}
        }
        if permission == Permission::Subscribe && bare(channel).starts_with(PRIVATE_PREFIX) {
            let why = "a channel that begins with $ takes a subscription token";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        if self.permits_by_rules(permission, subscribed) {
            return Ok(Basis::Rules);
        }
        if self.capable.contains(permission.capability()) {
            return Ok(Basis::Capability);
        }
        if self.is_expressed(permission, subscribed) {
            return Ok(Basis::Expression);
        }
        Err(self.refusal(permission))
    }

    /// Why nothing grants a permission.
    fn refusal(&self, permission: Permission) -> Error<'static> {
        let (namespace, channel) = (self.namespace, self.channel);
        if namespace.rules.inbox != Inbox::Off {
            let why = "an inbox is for the user whose name follows the `:`";
            return ErrorCode::PermissionDenied.with_reason(why);
        }
        if permission == Permission::Subscribe && is_user_limited(&namespace.rules, channel) {
            let why = "the channel is for the users behind the # of its name";
            return ErrorCode::PermissionDenied.with_reason(why);
        }
        if proxy(&namespace.rules, channel, permission).is_some() {
            let why = "a backend decides this, and is not asked here";
            return ErrorCode::PermissionDenied.with_reason(why);
        }
        if let Some(key) = expression(namespace, channel, permission).map(|_| permission.key()) {
            let why = format_args!("{key} does not let this client in");
            return ErrorCode::PermissionDenied.with_reason(why);
        }
        if namespace.options.wildcard && namespace.rules.subscribe_cel.is_some() {
            let why = "subscribe_cel looks at the channel: it lets nobody subscribe to a wildcard";
            return ErrorCode::PermissionDenied.with_reason(why);
        }
        let key = match permission {
            Permission::Subscribe => "allow_subscribe",
            Permission::Publish => "allow_publish",
            Permission::History => "allow_history",
            Permission::Presence => "allow_presence",
        };
        let whom = if bare(self.subject.user).is_empty() { "anonymous" } else { "client" };
        ErrorCode::PermissionDenied
            .with_reason(format_args!("{key}_for_{whom} is not set for this channel"))
    }

    /// Whether the namespace grants it: its rules or its expression.
    fn permits(&self, permission: Permission, subscribed: bool) -> bool {
        self.permits_by_rules(permission, subscribed) || self.is_expressed(permission, subscribed)
    }

    /// Whether the rules grant it. Where a proxy decides, they grant nothing.
    fn permits_by_rules(&self, permission: Permission, subscribed: bool) -> bool {
        proxy(&self.namespace.rules, self.channel, permission).is_none()
            && self.permits_by_keys(permission, subscribed)
    }

    /// Whether the connection's token grants it.
    pub(super) fn is_capable(&self, permission: Permission) -> bool {
        self.capable.contains(permission.capability())
    }

    /// The same as [`permits_by_rules`](Self::permits_by_rules), regardless of proxies.
    pub(super) fn permits_by_keys(&self, permission: Permission, subscribed: bool) -> bool {
        permits_by_keys(
            &self.namespace.rules,
            self.channel,
            self.subject.user,
            subscribed,
            permission,
        )
    }

    /// Whether the channel's expression grants it.
    pub(super) fn is_expressed(&self, permission: Permission, subscribed: bool) -> bool {
        is_expressed(self.namespace, self.channel, subscribed, permission, || self.subject)
    }
}

/// The channels that a connection is subscribed to from its beginning, with their options.
pub(super) type NamedChannels = BTreeMap<String, auth::SubscribeOptions>;

/// What the subscriptions of a worker rest on.
pub(super) struct Standings<'w> {
    pub(super) settings: &'w Settings,
    pub(super) forwarded: &'w ForwardedTable,
    pub(super) grants: &'w Grants,
    pub(super) capabilities: &'w CapabilityTable,
    /// What the session's new token names, if the subscriptions are compared for that.
    pub(super) renewed: Option<&'w NamedChannels>,
}

impl Standings<'_> {
    /// Returns what of a subscription still holds.
    pub(super) fn rights(&self, of: &CheckedSubscription<'_>) -> SubscriberRights {
        let &CheckedSubscription { channel, user, session, tag, basis } = of;
        let Some(namespace) = self.settings.namespace(channel) else {
            let named = self.renewed.filter(|_| basis.of_connection);
            let grant = named.is_none_or(|named| named.contains_key(channel));
            return SubscriberRights { grant, ..SubscriberRights::NONE };
        };
        let meta = self.forwarded.meta(ConnId::from_u64(tag));
        let claim = Claim {
            namespace,
            channel,
            subject: Subject { user, meta, device: Device::default() },
            capable: self.capabilities.of_session(self.settings, session, channel),
        };
        let rights = claim.standing(basis, self.grants.get(session, channel), self.renewed);
        // Where the rules decided in place of a backend they go on deciding.
        let config = &self.settings.config;
        let falls_back = namespace.rules.subscribe_proxy.as_ref().is_some_and(|name| {
            let backend = config.proxies.get(name);
            backend.is_some_and(|of| of.on_failure == OnFailure::Rules)
                || config.programs.contains_key(name)
        });
        let falls_back =
            falls_back && !basis.granted && claim.permits_by_keys(Permission::Subscribe, false);
        SubscriberRights { subscription: rights.subscription || falls_back, ..rights }
    }
}

impl Sessions {
    /// Returns the user of a session and, if an expression reads it, the connection's `meta`.
    fn subject<'w>(&'w self, core: &'w Core<'_>, session: SessionId) -> Subject<'w> {
        let Some(view) = core.hub.session(session) else {
            return Subject { user: "", meta: None, device: Device::default() };
        };
        let device = Device { info: core.hub.conn_info(session), own: self.device(session) };
        let looks_at_meta = core.settings.looks_at_meta;
        let meta = looks_at_meta.then(|| self.forwarded.meta(ConnId::from_u64(view.tag)));
        Subject { user: view.user, meta: meta.flatten(), device }
    }

    /// Returns the claim of a client with a session.
    ///
    /// # Errors
    /// As [`namespace_of`](Self::namespace_of).
    pub(super) fn claim<'w>(
        &'w self,
        core: &'w Core<'_>,
        session: SessionId,
        channel: &'w str,
    ) -> Result<Claim<'w>, Error<'static>> {
        let namespace = core.namespace_of(channel)?;
        let capable = self.capabilities.of_session(&core.settings, session, channel);
        Ok(Claim { namespace, channel, subject: self.subject(core, session), capable })
    }

    /// Returns the claim of a client that is coming in.
    ///
    /// # Errors
    /// As [`namespace_of`](Self::namespace_of).
    pub(super) fn claim_of<'w>(
        &'w self,
        core: &'w Core<'_>,
        identity: &'w Identity,
        channel: &'w str,
    ) -> Result<Claim<'w>, Error<'static>> {
        let namespace = core.namespace_of(channel)?;
        let capable = self.capabilities.granted(&core.settings, &identity.capabilities, channel);
        let meta = identity.meta.as_deref();
        let meta = meta.map(|meta| identity.parsed_meta.get_or_init(|| Meta::from(meta)));
        let info = identity.info.as_deref().map(|info| info.get().as_bytes());
        let device = Device { info, own: identity.device.as_deref() };
        let subject = Subject { user: &identity.user, meta, device };
        Ok(Claim { namespace, channel, subject, capable })
    }

    /// Returns the options of the channel, if the session has this permission in it.
    pub(super) fn allowed(
        &self,
        core: &Core<'_>,
        session: SessionId,
        channel: &str,
        permission: Permission,
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        let subscribed = core.hub.is_subscribed(session, channel);
        let claim = self.claim(core, session, channel)?;
        let capable = claim.capable.union(self.grants.allow(session, channel));
        let basis = Claim { capable, ..claim }.may(permission, subscribed)?;
        core.permitted(session, channel, permission.name(), basis.name());
        Ok(Arc::clone(&claim.namespace.options))
    }

    /// Returns the client's own cursor in a channel. Whoever is subscribed acknowledges, for itself.
    ///
    /// # Errors
    /// It is not subscribed.
    pub(super) fn own_cursor(
        &self,
        core: &Core<'_>,
        session: SessionId,
        channel: &str,
    ) -> Result<(Arc<ChannelOptions>, CursorOwner), Error<'static>> {
        let claim = self.claim(core, session, channel)?;
        if !core.hub.is_subscribed(session, channel) {
            let why =
                "only subscribers acknowledge, for themselves: subscribe to the channel first";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        Ok((Arc::clone(&claim.namespace.options), claim.cursor_owner()))
    }

    /// Whether a session would have this permission if the channel had no proxy: by its token, or by the rules.
    pub(super) fn permits_without_proxy(
        &self,
        core: &Core<'_>,
        session: SessionId,
        channel: &str,
        permission: Permission,
    ) -> bool {
        let subscribed = core.hub.is_subscribed(session, channel);
        self.claim(core, session, channel).is_ok_and(|claim| {
            let allow = self.grants.allow(session, channel);
            claim.is_capable(permission)
                || allow.contains(permission.capability())
                || claim.permits_by_keys(permission, subscribed)
        })
    }

    /// Returns the proxy that decides about this permission in a channel. `None` also where it is not asked: for private and
    /// user-limited channels, and for clients that an expression admits.
    pub(super) fn proxy_of(
        &self,
        core: &Core<'_>,
        session: SessionId,
        channel: &str,
        permission: Permission,
    ) -> Option<Arc<str>> {
        let namespace = core.settings.namespace(channel)?;
        let is_private =
            permission == Permission::Subscribe && bare(channel).starts_with(PRIVATE_PREFIX);
        let proxy = proxy(&namespace.rules, channel, permission).filter(|_| !is_private)?;
        let subscribed = || core.hub.is_subscribed(session, channel);
        let is_expressed = namespace.expressions.is_some()
            && is_expressed(namespace, channel, subscribed(), permission, || {
                self.subject(core, session)
            });
        (!is_expressed).then(|| Arc::clone(proxy))
    }
}

impl Core<'_> {
    /// The namespace of a channel.
    ///
    /// # Errors
    /// The name is too long, or no namespace admits it.
    pub(super) fn namespace_of(&self, channel: &str) -> Result<&Namespace, Error<'static>> {
        let limit = self.settings.config.limits.channel_bytes_max;
        if bare(channel).len() > limit {
            return Err(ErrorCode::BadRequest
                .with_reason(format_args!("a channel name has at most {limit} bytes")));
        }
        self.settings.namespace(channel).ok_or_else(|| ErrorCode::UnknownChannel.into())
    }
}

/// Returns the options of a channel, with what its source overrides.
fn overridden(options: &Arc<ChannelOptions>, overrides: &OptionsOverride) -> Arc<ChannelOptions> {
    match overrides.is_empty() {
        true => Arc::clone(options),
        false => Arc::new(overrides.apply(options)),
    }
}

/// Returns the expression that grants a permission beside the rules. User-limited channels have none for subscriptions.
pub(super) fn expression<'n>(
    namespace: &'n Namespace,
    channel: &str,
    permission: Permission,
) -> Option<&'n Expression> {
    let expressions = namespace.expressions.as_ref()?;
    match permission {
        Permission::Subscribe if is_user_limited(&namespace.rules, channel) => None,
        // The result for one channel name does not hold for all channels that a wildcard matches.
        Permission::Subscribe => {
            let is_wildcard = namespace.options.wildcard;
            expressions.subscribe.as_ref().filter(|of| !(is_wildcard && of.looks_at_channel))
        }
        Permission::Publish => expressions.publish.as_ref(),
        Permission::History => expressions.history.as_ref(),
        Permission::Presence => expressions.presence.as_ref(),
    }
}

/// Whether the channel's expression grants a client this permission.
fn is_expressed<'s>(
    namespace: &Namespace,
    channel: &str,
    subscribed: bool,
    permission: Permission,
    subject: impl FnOnce() -> Subject<'s>,
) -> bool {
    expression(namespace, channel, permission).is_some_and(|expression| {
        let Subject { user, meta, .. } = subject();
        expression.admits(&ExpressionInput {
            user: bare(user),
            channel: bare(channel),
            subscribed,
            meta,
        })
    })
}

pub(super) fn proxy<'r>(
    rules: &'r Rules,
    channel: &str,
    permission: Permission,
) -> Option<&'r Arc<str>> {
    match permission {
        Permission::Subscribe if is_user_limited(rules, channel) => None,
        Permission::Subscribe => rules.subscribe_proxy.as_ref(),
        Permission::Publish => rules.publish_proxy.as_ref(),
        Permission::History | Permission::Presence => None,
    }
}

/// Whether the `allow_` keys and the users in the name grant a user this permission in a channel, regardless of proxies.
fn permits_by_keys(
    rules: &Rules,
    channel: &str,
    user: &str,
    subscribed: bool,
    permission: Permission,
) -> bool {
    let (channel, user) = (bare(channel), bare(user));
    if rules.inbox != Inbox::Off
        && matches!(permission, Permission::Subscribe | Permission::History)
    {
        let owner = channel.split_once(':').map(|(_, owner)| owner);
        return !user.is_empty() && owner == Some(user) && !channel.starts_with(PRIVATE_PREFIX);
    }
    if permission == Permission::Subscribe && is_user_limited(rules, channel) {
        let users = channel.rsplit('#').next().unwrap_or_default();
        return !user.is_empty() && users.split(',').any(|listed| listed == user);
    }
    let (client, anonymous, subscriber) = match permission {
        Permission::Subscribe => {
            (rules.allow_subscribe_for_client, rules.allow_subscribe_for_anonymous, false)
        }
        Permission::Publish => (
            rules.allow_publish_for_client,
            rules.allow_publish_for_anonymous,
            rules.allow_publish_for_subscriber,
        ),
        Permission::History => (
            rules.allow_history_for_client,
            rules.allow_history_for_anonymous,
            rules.allow_history_for_subscriber,
        ),
        Permission::Presence => (
            rules.allow_presence_for_client,
            rules.allow_presence_for_anonymous,
            rules.allow_presence_for_subscriber,
        ),
    };
    (if user.is_empty() { anonymous } else { client }) || subscriber && subscribed
}

#[cfg(test)]
mod tests;
