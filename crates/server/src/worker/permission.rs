//! What a client may do in a channel, by the rules of its namespace.

use std::sync::Arc;

use dunlin_config::{ChannelOptions as Rules, PRIVATE_PREFIX};
use dunlin_hub::tenant::bare;
use dunlin_hub::{ChannelOptions, SessionId, StreamPosition, SubscribeOptions};
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{Error, ErrorCode};

use super::Worker;
use crate::auth::{Allow, Capabilities};
use crate::namespace::Namespace;
use crate::namespace::expression::{Expression, ExpressionInput};
use crate::namespace::meta::Meta;

/// The operations in a channel that need a permission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Subscribe,
    Publish,
    History,
    Presence,
}

impl Permission {
    /// Returns the capability that grants it.
    fn capability(self) -> Allow {
        match self {
            Permission::Subscribe => Allow::SUBSCRIBE,
            Permission::Publish => Allow::PUBLISH,
            Permission::History => Allow::HISTORY,
            Permission::Presence => Allow::PRESENCE,
        }
    }

    /// Returns the setting with the expression that grants it.
    fn key(self) -> &'static str {
        match self {
            Permission::Subscribe => "subscribe_cel",
            Permission::Publish => "publish_cel",
            Permission::History => "history_cel",
            Permission::Presence => "presence_cel",
        }
    }
}

/// Whether the name of a channel lists the users who may subscribe to it.
fn is_user_limited(rules: &Rules, channel: &str) -> bool {
    rules.allow_user_limited_channels && channel.contains('#')
}

/// What grants a permission.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Basis {
    /// A rule of the namespace, or the decision of a backend or the program.
    Rules,
    Expression,
    Capability,
}

/// The client whose permission is checked.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) user: &'a str,
    /// The `meta` of the connection's token or connect proxy.
    pub(super) meta: Option<&'a Meta>,
}

impl Worker<'_> {
    /// Returns the user of a session and, if an expression reads it, the connection's `meta`.
    pub(super) fn subject(&self, session: SessionId) -> Subject<'_> {
        let Some(view) = self.hub.session(session) else { return Subject { user: "", meta: None } };
        let looks_at_meta = self.settings.looks_at_meta;
        let meta = looks_at_meta.then(|| self.forwarded.meta(ConnId::from_u64(view.tag)));
        Subject { user: view.user, meta: meta.flatten() }
    }

    /// Whether a capability or an expression still grants a subscription.
    pub(super) fn still_granted(&self, session: SessionId, channel: &str) -> bool {
        self.capable(session, channel).contains(Allow::SUBSCRIBE)
            || self.settings.namespace(channel).is_some_and(|of| {
                is_expressed(of, channel, false, Permission::Subscribe, || self.subject(session))
            })
    }

    /// Returns the options of the channel, if the session has this permission in it.
    pub(super) fn allowed(
        &self,
        session: SessionId,
        channel: &str,
        permission: Permission,
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        let subject = self.subject(session);
        let subscribed = self.hub.is_subscribed(session, channel);
        let (options, _) = self.allowed_user(subject, subscribed, channel, permission, || {
            self.capable(session, channel).union(self.grants.allow(session, channel))
        })?;
        Ok(options)
    }

    /// Returns the options of the channel, if the client may subscribe to it, and what grants that.
    pub(super) fn may_subscribe(
        &self,
        subject: Subject<'_>,
        channel: &str,
        granted: impl FnOnce() -> Allow,
    ) -> Result<(Arc<ChannelOptions>, Basis), Error<'static>> {
        self.allowed_user(subject, false, channel, Permission::Subscribe, granted)
    }

    /// Returns what a session's connection token lets it do in a channel.
    pub(super) fn capable(&self, session: SessionId, channel: &str) -> Allow {
        self.capabilities.of_session(&self.settings, session, channel)
    }

    /// Returns what these capabilities let a client do in a channel.
    pub(super) fn granted(&self, capabilities: &Capabilities, channel: &str) -> Allow {
        self.capabilities.granted(&self.settings, capabilities, channel)
    }

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

    fn allowed_user(
        &self,
        subject: Subject<'_>,
        subscribed: bool,
        channel: &str,
        permission: Permission,
        granted: impl FnOnce() -> Allow,
    ) -> Result<(Arc<ChannelOptions>, Basis), Error<'static>> {
        let namespace = self.namespace_of(channel)?;
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
        let user = subject.user;
        if permission == Permission::Subscribe && bare(channel).starts_with(PRIVATE_PREFIX) {
            let why = "a channel that begins with $ takes a subscription token";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        if permits(&namespace.rules, channel, user, subscribed, permission) {
            return Ok((Arc::clone(&namespace.options), Basis::Rules));
        }
        if granted().contains(permission.capability()) {
            return Ok((Arc::clone(&namespace.options), Basis::Capability));
        }
        if is_expressed(namespace, channel, subscribed, permission, || subject) {
            return Ok((Arc::clone(&namespace.options), Basis::Expression));
        }
        if permission == Permission::Subscribe && is_user_limited(&namespace.rules, channel) {
            let why = "the channel is for the users behind the # of its name";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        if proxy(&namespace.rules, channel, permission).is_some() {
            let why = "a backend decides this, and is not asked here";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        if let Some(key) = expression(namespace, channel, permission).map(|_| permission.key()) {
            let why = format_args!("{key} does not let this client in");
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        if namespace.options.wildcard && namespace.rules.subscribe_cel.is_some() {
            let why = "subscribe_cel looks at the channel: it lets nobody subscribe to a wildcard";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        let key = match permission {
            Permission::Subscribe => "allow_subscribe",
            Permission::Publish => "allow_publish",
            Permission::History => "allow_history",
            Permission::Presence => "allow_presence",
        };
        let whom = if bare(user).is_empty() { "anonymous" } else { "client" };
        Err(ErrorCode::PermissionDenied
            .with_reason(format_args!("{key}_for_{whom} is not set for this channel")))
    }

    /// Returns the proxy that decides about this permission in a channel. `None` also where it is not asked: for private and
    /// user-limited channels, and for clients that an expression admits.
    pub(super) fn proxy_of(
        &self,
        session: SessionId,
        channel: &str,
        permission: Permission,
    ) -> Option<Arc<str>> {
        let namespace = self.settings.namespace(channel)?;
        let is_private =
            permission == Permission::Subscribe && bare(channel).starts_with(PRIVATE_PREFIX);
        let proxy = proxy(&namespace.rules, channel, permission).filter(|_| !is_private)?;
        let subscribed = || self.hub.is_subscribed(session, channel);
        let is_expressed = namespace.expressions.is_some()
            && is_expressed(namespace, channel, subscribed(), permission, || self.subject(session));
        (!is_expressed).then(|| Arc::clone(proxy))
    }

    /// Reduces a subscriber's options to what it may have. This is the one rule of what a subscription brings beside future
    /// publications, for every transport and for client-side and server-side subscriptions alike.
    ///
    /// Where the channel forces recovery, its subscribers recover from the position that they name. Elsewhere only clients that
    /// may read the history do. All others get nothing older than the subscription and no position to resume from; if they asked
    /// for recovery, the reply reports that nothing was recovered. `options` are the channel's, with what a token overrides;
    /// `granted` is what tokens let the client do there.
    pub(super) fn entitled(
        &self,
        subject: Subject<'_>,
        channel: &str,
        options: &ChannelOptions,
        granted: Allow,
        mut asked: SubscribeOptions,
    ) -> SubscribeOptions {
        // The subscription counts for `allow_history_for_subscriber` before it is made.
        let may = |permission: Permission| {
            granted.contains(permission.capability())
                || self.settings.namespace(channel).is_some_and(|of| {
                    permits(&of.rules, channel, subject.user, true, permission)
                        || is_expressed(of, channel, true, permission, || subject)
                })
        };
        // Joins and leaves reveal who is present.
        asked.join_leave = asked.join_leave && may(Permission::Presence);
        asked.join_leave_granted = granted.contains(Permission::Presence.capability());
        if options.force_recovery || may(Permission::History) {
            return asked;
        }
        if let Some(position) = &mut asked.recover {
            *position = StreamPosition::BARRED;
        }
        // Recovery was not tried, so it has not failed.
        asked.reject_unrecovered = false;
        asked.recoverable = false;
        asked.positioned = false;
        asked
    }
}

/// Returns the expression that grants a permission beside the rules. User-limited channels have none for subscriptions.
fn expression<'n>(
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
pub(super) fn is_expressed<'s>(
    namespace: &Namespace,
    channel: &str,
    subscribed: bool,
    permission: Permission,
    subject: impl FnOnce() -> Subject<'s>,
) -> bool {
    expression(namespace, channel, permission).is_some_and(|expression| {
        let Subject { user, meta } = subject();
        expression.admits(&ExpressionInput {
            user: bare(user),
            channel: bare(channel),
            subscribed,
            meta,
        })
    })
}

fn proxy<'r>(rules: &'r Rules, channel: &str, permission: Permission) -> Option<&'r Arc<str>> {
    match permission {
        Permission::Subscribe if is_user_limited(rules, channel) => None,
        Permission::Subscribe => rules.subscribe_proxy.as_ref(),
        Permission::Publish => rules.publish_proxy.as_ref(),
        Permission::History | Permission::Presence => None,
    }
}

/// Whether the rules grant a user this permission in a channel. Where a proxy decides, the rules grant nothing.
pub(super) fn permits(
    rules: &Rules,
    channel: &str,
    user: &str,
    subscribed: bool,
    permission: Permission,
) -> bool {
    proxy(rules, channel, permission).is_none()
        && permits_by_keys(rules, channel, user, subscribed, permission)
}

/// The same, regardless of proxies.
pub(super) fn permits_by_keys(
    rules: &Rules,
    channel: &str,
    user: &str,
    subscribed: bool,
    permission: Permission,
) -> bool {
    let (channel, user) = (bare(channel), bare(user));
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
