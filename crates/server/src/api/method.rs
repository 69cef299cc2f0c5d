//! The methods of the API.

use super::error::{ApiError, ApiErrorCode};

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $legacy:literal;)+) => {
        /// A method of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Method { $($(#[$doc])* $variant,)+ }

        impl Method {
            /// Every method.
            pub(crate) const ALL: &[Method] = &[$(Method::$variant),+];

            /// Its name: the last part of the path, the key in a batch, the label in metrics.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Method::$variant => $name,)+ }
            }

            /// The method with this name.
            pub(crate) fn of(name: &str) -> Option<Method> {
                match name { $($name => Some(Method::$variant),)+ _ => None }
            }

            /// The method older libraries mean by a number.
            pub(super) fn of_number(number: u64) -> Option<Method> {
                match number { $($legacy => Some(Method::$variant),)+ _ => None }
            }
        }
    };
}

methods! {
    /// Publishes into a channel.
    Publish = "publish", 0;
    /// Publishes the same into many channels.
    Broadcast = "broadcast", 1;
    /// Subscribes a user's sessions to a channel.
    Subscribe = "subscribe", 11;
    /// Unsubscribes a user's sessions from a channel.
    Unsubscribe = "unsubscribe", 2;
    /// Disconnects a user's sessions.
    Disconnect = "disconnect", 3;
    /// Prolongs or ends a user's connections.
    Refresh = "refresh", 12;
    /// Who is in a channel.
    Presence = "presence", 4;
    /// How many are in a channel.
    PresenceStats = "presence_stats", 5;
    /// Publications of the past.
    History = "history", 6;
    /// Forgets the publications of a channel, not its position.
    HistoryRemove = "history_remove", 7;
    /// Sends a user's sessions a message of no channel.
    Send = "send", 104;
    /// Revokes a token by its id.
    RevokeToken = "revoke_token", 100;
    /// Revokes the tokens of a user that were issued before a time.
    InvalidateUserTokens = "invalidate_user_tokens", 101;
    /// Disconnects a user, and lets no token of his in.
    BlockUser = "block_user", 102;
    /// Lets a blocked user in again.
    UnblockUser = "unblock_user", 103;
    /// Connections, and what is known of each.
    Connections = "connections", 105;
    /// Channels with subscribers.
    Channels = "channels", 8;
    /// The servers and what they hold.
    Info = "info", 9;
}

/// The error for an unknown name.
pub(super) fn unknown(name: &str) -> ApiError {
    let names: Vec<_> = Method::ALL.iter().map(|method| method.name()).collect();
    let name = &name[..name.floor_char_boundary(64)];
    ApiErrorCode::NotFound
        .with_reason(format_args!("there is no method {name:?}; there are {}", names.join(", ")))
}

impl Method {
    /// The method with this name.
    ///
    /// # Errors
    /// "not found" with the names there are. As the answer to a path it goes with status 404.
    pub(crate) fn find(name: &str) -> Result<Method, ApiError> {
        Method::of(name).ok_or_else(|| unknown(name))
    }
}
