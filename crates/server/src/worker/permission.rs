//! Who may do what in a channel, by the rules of its namespace.

use std::sync::Arc;

use dunlin_config::ChannelOptions as Rules;
use dunlin_hub::{ChannelOptions, Epoch, SessionId, SubscribeOptions};
use dunlin_protocol::centrifuge::{Error, ErrorCode};

use super::Worker;
use crate::settings::Namespace;

/// What a client needs the permission for in a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Subscribe,
    Publish,
    History,
    Presence,
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
        self.allowed_user(user, subscribed, channel, permission)
    }

    /// The options of the channel, if this user may subscribe to it.
    pub(super) fn may_subscribe(
        &self,
        user: &str,
        channel: &str,
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        self.allowed_user(user, false, channel, Permission::Subscribe)
    }

    /// The namespace of a channel.
    ///
    /// # Errors
    /// The name is too long, or no namespace admits it.
    pub(super) fn namespace_of(&self, channel: &str) -> Result<&Namespace, Error<'static>> {
        let limit = self.settings.config.limits.channel_bytes_max;
        if channel.len() > limit {
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
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        let namespace = self.namespace_of(channel)?;
        if permits(&namespace.rules, user, subscribed, permission) {
            return Ok(Arc::clone(&namespace.options));
        }
        let key = match permission {
            Permission::Subscribe => "allow_subscribe",
            Permission::Publish => "allow_publish",
            Permission::History => "allow_history",
            Permission::Presence => "allow_presence",
        };
        let whom = if user.is_empty() { "anonymous" } else { "client" };
        Err(ErrorCode::PermissionDenied
            .with_reason(format_args!("{key}_for_{whom} is not set for this channel")))
    }

    /// What a subscriber who asks for this is given: the one rule of what a subscription brings beside the publications
    /// to come, for every transport and for client-side and server-side subscriptions alike.
    ///
    /// Where the channel recovers, its subscribers recover from the position that they name. Elsewhere only who may
    /// read the history does; anybody else gets nothing older than the subscription and no position to come back with,
    /// and reads in the reply that nothing was recovered if he asked for it. `options` are the channel's, with what a token overrides.
    pub(super) fn entitled(
        &self,
        user: &str,
        channel: &str,
        options: &ChannelOptions,
        mut asked: SubscribeOptions,
    ) -> SubscribeOptions {
        // A subscription that is about to be made counts for `allow_history_for_subscriber`.
        let may = |permission| {
            let namespace = self.settings.namespace(channel);
            namespace.is_some_and(|of| permits(&of.rules, user, true, permission))
        };
        // Joins and leaves say who is present.
        asked.join_leave = asked.join_leave && may(Permission::Presence);
        if options.force_recovery || may(Permission::History) {
            return asked;
        }
        if let Some(position) = &mut asked.recover {
            position.epoch = Epoch::FOREIGN;
        }
        // Recovery was not tried, so it has not failed.
        asked.reject_unrecovered = false;
        asked.recoverable = false;
        asked.positioned = false;
        asked
    }
}

/// Whether a user, who is subscribed to the channel or not, may do this in a channel of these rules.
pub(super) fn permits(rules: &Rules, user: &str, subscribed: bool, permission: Permission) -> bool {
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
