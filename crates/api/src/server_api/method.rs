//! The methods of the API.

use super::error::{ApiError, ApiErrorCode};

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $legacy:literal;)+) => {
        /// A method of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Method { $($(#[$doc])* $variant,)+ }

        impl Method {
            /// Every method.
            pub const ALL: &[Method] = &[$(Method::$variant),+];

            /// Returns the name: the last part of the path, the key in a batch, the label in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Method::$variant => $name,)+ }
            }

            /// Returns the method with this name.
            pub fn of(name: &str) -> Option<Method> {
                match name { $($name => Some(Method::$variant),)+ _ => None }
            }

            /// Returns the method that older libraries denote by a number.
            pub(super) fn of_number(number: u64) -> Option<Method> {
                match number { $($legacy => Some(Method::$variant),)+ _ => None }
            }
        }
    };
}

methods! {
    /// Publishes into a channel.
    Publish = "publish", 0;
    /// Publishes one message into many channels.
    Broadcast = "broadcast", 1;
    /// Subscribes a user's sessions to a channel.
    Subscribe = "subscribe", 11;
    /// Unsubscribes a user's sessions from a channel.
    Unsubscribe = "unsubscribe", 2;
    /// Disconnects a user's sessions.
    Disconnect = "disconnect", 3;
    /// Prolongs or ends a user's connections.
    Refresh = "refresh", 12;
    /// Lists who is in a channel.
    Presence = "presence", 4;
    /// Counts who is in a channel.
    PresenceStats = "presence_stats", 5;
    /// Reads publications from a channel's history.
    History = "history", 6;
    /// Removes the publications of a channel, not its position.
    HistoryRemove = "history_remove", 7;
    /// Acknowledges publications for a user.
    Ack = "ack", 106;
    /// Reads how much a user has not acknowledged.
    Unread = "unread", 107;
    /// Puts a message into the inboxes of users.
    InboxPublish = "inbox_publish", 108;
    /// Takes a message out of the inboxes of users.
    InboxCancel = "inbox_cancel", 109;
    /// Sends a message to a user's sessions, outside any channel.
    Send = "send", 104;
    /// Revokes a token by its id.
    RevokeToken = "revoke_token", 100;
    /// Revokes the tokens of a user that were issued before a time.
    InvalidateUserTokens = "invalidate_user_tokens", 101;
    /// Disconnects a user and rejects all tokens of the user.
    BlockUser = "block_user", 102;
    /// Unblocks a user.
    UnblockUser = "unblock_user", 103;
    /// Lists connections with their details.
    Connections = "connections", 105;
    /// Lists channels with subscribers.
    Channels = "channels", 8;
    /// Lists the servers with their counts.
    Info = "info", 9;
}

/// Returns the error for an unknown name.
pub(super) fn unknown(name: &str) -> ApiError {
    let names: Vec<_> = Method::ALL.iter().map(|method| method.name()).collect();
    let name = &name[..name.floor_char_boundary(64)];
    ApiErrorCode::NotFound
        .with_reason(format_args!("there is no method {name:?}; there are {}", names.join(", ")))
}

impl Method {
    /// Whether a command goes to all workers rather than to the home worker of its channel, so that its effect may be seen before
    /// that of a command of a channel which came first.
    pub(super) fn is_of_all_workers(self) -> bool {
        match self {
            Method::Publish
            | Method::Broadcast
            | Method::InboxPublish
            | Method::InboxCancel
            | Method::Send
            | Method::Presence
            | Method::PresenceStats
            | Method::History
            | Method::HistoryRemove
            | Method::Ack
            | Method::Unread => false,
            Method::Subscribe
            | Method::Unsubscribe
            | Method::Disconnect
            | Method::Refresh
            | Method::RevokeToken
            | Method::InvalidateUserTokens
            | Method::BlockUser
            | Method::UnblockUser
            | Method::Connections
            | Method::Channels
            | Method::Info => true,
        }
    }

    /// Returns the method with this name.
    ///
    /// # Errors
    /// "not found", listing the known names. As the response to an unknown path it has status 404.
    pub fn find(name: &str) -> Result<Method, ApiError> {
        Method::of(name).ok_or_else(|| unknown(name))
    }
}
