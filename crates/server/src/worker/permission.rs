//! Who may do what in a channel, by the rules of its namespace.

use std::sync::Arc;

use dunlin_config::{ChannelOptions as Rules, PRIVATE_PREFIX};
use dunlin_hub::tenant::bare;
use dunlin_hub::{ChannelOptions, SessionId, StreamPosition, SubscribeOptions};
use dunlin_protocol::centrifuge::{Error, ErrorCode};

use super::Worker;
use crate::auth::{Allow, Capabilities};
use crate::settings::Namespace;

/// What a client needs the permission for in a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Subscribe,
    Publish,
    History,
    Presence,
}

impl Permission {
    /// The capability that grants it.
    fn capability(self) -> Allow {
        match self {
            Permission::Subscribe => Allow::SUBSCRIBE,
            Permission::Publish => Allow::PUBLISH,
            Permission::History => Allow::HISTORY,
            Permission::Presence => Allow::PRESENCE,
        }
    }
}

/// Whether the name of a channel lists who may subscribe to it.
fn is_user_limited(rules: &Rules, channel: &str) -> bool {
    rules.allow_user_limited_channels && channel.contains('#')
}

impl Worker<'_> {
    /// The options of the channel, if the session may do this in it.
    pub(super) fn allowed(
        &self,
        session: SessionId,
        channel: &str,
        permission: Permission,
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        let user = self.hub.session(session).map_or("", |view| view.user);
        let subscribed = self.hub.is_subscribed(session, channel);
        let (options, _) = self.allowed_user(user, subscribed, channel, permission, || {
            self.capable(session, channel).union(self.grants.allow(session, channel))
        })?;
        Ok(options)
    }

    /// The options of the channel, if this user may subscribe to it, and whether a capability says so, and no rule.
    pub(super) fn may_subscribe(
        &self,
        user: &str,
        channel: &str,
        granted: impl FnOnce() -> Allow,
    ) -> Result<(Arc<ChannelOptions>, bool), Error<'static>> {
        self.allowed_user(user, false, channel, Permission::Subscribe, granted)
    }

    /// What a session's connection token lets it do in a channel.
    pub(super) fn capable(&self, session: SessionId, channel: &str) -> Allow {
        let capabilities = self.capabilities.get(&session);
        capabilities.map_or(Allow::NONE, |of| self.granted(of, channel))
    }

    /// What these capabilities let a client do in a channel.
    pub(super) fn granted(&self, capabilities: &Capabilities, channel: &str) -> Allow {
        capabilities.in_channel(bare(channel), &mut self.regexes.borrow_mut())
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
        user: &str,
        subscribed: bool,
        channel: &str,
        permission: Permission,
        granted: impl FnOnce() -> Allow,
    ) -> Result<(Arc<ChannelOptions>, bool), Error<'static>> {
        let namespace = self.namespace_of(channel)?;
        if permission == Permission::Subscribe && bare(channel).starts_with(PRIVATE_PREFIX) {
            let why = "a channel that begins with $ takes a subscription token";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        if permits(&namespace.rules, channel, user, subscribed, permission) {
            return Ok((Arc::clone(&namespace.options), false));
        }
        if granted().contains(permission.capability()) {
            return Ok((Arc::clone(&namespace.options), true));
        }
        if permission == Permission::Subscribe && is_user_limited(&namespace.rules, channel) {
            let why = "the channel is for the users behind the # of its name";
            return Err(ErrorCode::PermissionDenied.with_reason(why));
        }
        if proxy(&namespace.rules, channel, permission).is_some() {
            let why = "a backend decides this, and is not asked here";
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

    /// The proxy that decides who may do this in a channel, if one does. Whoever is not asked about is refused or let in
    /// by the name of the channel.
    pub(super) fn proxy_of(&self, channel: &str, permission: Permission) -> Option<Arc<str>> {
        let namespace = self.settings.namespace(channel)?;
        let is_private =
            permission == Permission::Subscribe && bare(channel).starts_with(PRIVATE_PREFIX);
        proxy(&namespace.rules, channel, permission).filter(|_| !is_private).cloned()
    }

    /// What a subscriber who asks for this is given: the one rule of what a subscription brings beside the publications
    /// to come, for every transport and for client-side and server-side subscriptions alike.
    ///
    /// Where the channel recovers, its subscribers recover from the position that they name. Elsewhere only who may
    /// read the history does; anybody else gets nothing older than the subscription and no position to come back with,
    /// and reads in the reply that nothing was recovered if he asked for it. `options` are the channel's, with what a token overrides; `granted` is what tokens
    /// let him do there.
    pub(super) fn entitled(
        &self,
        user: &str,
        channel: &str,
        options: &ChannelOptions,
        granted: Allow,
        mut asked: SubscribeOptions,
    ) -> SubscribeOptions {
        // A subscription that is about to be made counts for `allow_history_for_subscriber`.
        let may = |permission: Permission| {
            let namespace = self.settings.namespace(channel);
            granted.contains(permission.capability())
                || namespace.is_some_and(|of| permits(&of.rules, channel, user, true, permission))
        };
        // Joins and leaves say who is present.
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

fn proxy<'r>(rules: &'r Rules, channel: &str, permission: Permission) -> Option<&'r Arc<str>> {
    match permission {
        Permission::Subscribe if is_user_limited(rules, channel) => None,
        Permission::Subscribe => rules.subscribe_proxy.as_ref(),
        Permission::Publish => rules.publish_proxy.as_ref(),
        Permission::History | Permission::Presence => None,
    }
}

/// Whether a user, who is subscribed to the channel or not, may do this in a channel of these rules. Where a backend
/// decides, nobody may by himself.
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

/// The same without the backend.
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
