//! Who may do what in a channel, by the rules of its namespace.

use std::sync::Arc;

use dunlin_hub::{ChannelOptions, SessionId};
use dunlin_protocol::centrifuge::{Error, ErrorCode};

use super::Worker;

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

    fn allowed_user(
        &self,
        user: &str,
        subscribed: bool,
        channel: &str,
        permission: Permission,
    ) -> Result<Arc<ChannelOptions>, Error<'static>> {
        let limit = self.settings.config.limits.channel_bytes_max;
        if channel.len() > limit {
            return Err(ErrorCode::BadRequest
                .with_reason(format_args!("a channel name has at most {limit} bytes")));
        }
        let Some(namespace) = self.settings.namespace(channel) else {
            return Err(ErrorCode::UnknownChannel.into());
        };
        let rules = &namespace.rules;
        let (client, anonymous, subscriber, key) = match permission {
            Permission::Subscribe => (
                rules.allow_subscribe_for_client,
                rules.allow_subscribe_for_anonymous,
                false,
                "allow_subscribe",
            ),
            Permission::Publish => (
                rules.allow_publish_for_client,
                rules.allow_publish_for_anonymous,
                rules.allow_publish_for_subscriber,
                "allow_publish",
            ),
            Permission::History => (
                rules.allow_history_for_client,
                rules.allow_history_for_anonymous,
                rules.allow_history_for_subscriber,
                "allow_history",
            ),
            Permission::Presence => (
                rules.allow_presence_for_client,
                rules.allow_presence_for_anonymous,
                rules.allow_presence_for_subscriber,
                "allow_presence",
            ),
        };
        if (if user.is_empty() { anonymous } else { client }) || subscriber && subscribed {
            return Ok(Arc::clone(&namespace.options));
        }
        let whom = if user.is_empty() { "anonymous" } else { "client" };
        Err(ErrorCode::PermissionDenied
            .with_reason(format_args!("{key}_for_{whom} is not set for this channel")))
    }
}
