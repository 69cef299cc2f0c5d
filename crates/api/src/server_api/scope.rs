//! Permissions of API keys.

use std::fmt;

use dunlin_config::ApiScope;

use super::error::{ApiError, ApiErrorCode};
use super::method::Method;
use super::request::Request;

/// The method name in a scope that permits everything below `/api/push`.
pub const PUSH: &str = "push";

/// Checks whether a key with this scope permits the command.
///
/// # Errors
/// Returns "permission denied" with the missing permission.
pub fn permits(scope: &ApiScope, request: &Request<'_>) -> Result<(), ApiError> {
    permits_method(scope, request.method())?;
    if scope.namespaces.is_empty() {
        return Ok(());
    }
    let foreign = |channel: &&str| channel.is_empty() || !scope.admits_channel(channel);
    match channels(request) {
        Some(channels) => match channels.into_iter().find(foreign) {
            None => Ok(()),
            Some("") => Err(denied(format_args!("name a channel of its namespaces"))),
            Some(channel) => Err(denied(format_args!("{channel:?} is of none of its namespaces"))),
        },
        None => Err(denied(format_args!(
            "`{}` is not about channels, and it has namespaces",
            request.method().name()
        ))),
    }
}

/// Checks whether a key with this scope permits methods below `/api/push`.
///
/// # Errors
/// As [`permits`].
pub fn permits_push(scope: &ApiScope) -> Result<(), ApiError> {
    permits_name(scope, PUSH, false)?;
    if scope.namespaces.is_empty() {
        return Ok(());
    }
    Err(denied(format_args!("`{PUSH}` is not about channels, and it has namespaces")))
}

/// Checks whether a key with this scope permits a method, whatever its command is about.
///
/// # Errors
/// As [`permits`].
pub fn permits_method(scope: &ApiScope, method: Method) -> Result<(), ApiError> {
    permits_name(scope, method.name(), method.is_read_only())
}

fn permits_name(scope: &ApiScope, name: &str, is_read_only: bool) -> Result<(), ApiError> {
    if scope.read_only && !is_read_only {
        return Err(denied(format_args!("`{name}` changes something, and it may only read")));
    }
    if !scope.methods.is_empty() && !scope.methods.iter().any(|method| method == name) {
        return Err(denied(format_args!("`{name}` is not among its methods")));
    }
    Ok(())
}

fn denied(why: fmt::Arguments<'_>) -> ApiError {
    ApiErrorCode::PermissionDenied
        .with_reason(format_args!("the API key's scope (api.scopes) does not reach: {why}"))
}

/// Returns the channels of a command; `None` for a command that is not about channels.
fn channels<'a>(request: &'a Request<'_>) -> Option<Vec<&'a str>> {
    Some(match request {
        Request::Publish(of) => vec![&*of.channel],
        Request::Broadcast(of) => of.channels.iter().map(|channel| &*channel.0).collect(),
        Request::Subscribe(of) => vec![&*of.channel],
        Request::Unsubscribe(of) => vec![&*of.channel],
        Request::Presence(of) | Request::PresenceStats(of) | Request::HistoryRemove(of) => {
            vec![&*of.channel]
        }
        Request::History(of) => vec![&*of.channel],
        Request::Ack(of) => vec![&*of.channel],
        Request::Unread(of) => vec![&*of.channel],
        Request::Disconnect(_)
        | Request::Refresh(_)
        | Request::Send(_)
        | Request::RevokeToken(_)
        | Request::InvalidateUserTokens(_)
        | Request::BlockUser(_)
        | Request::UnblockUser(_)
        | Request::Connections(_)
        | Request::Channels(_)
        | Request::Info => return None,
    })
}

impl Method {
    /// Whether the method only reads.
    pub(crate) const fn is_read_only(self) -> bool {
        matches!(
            self,
            Method::Presence
                | Method::PresenceStats
                | Method::History
                | Method::Unread
                | Method::Connections
                | Method::Channels
                | Method::Info
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> std::sync::Arc<[String]> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn tries(scope: &ApiScope, method: Method, body: &str) -> Result<(), String> {
        let request = Request::parse(method, body.as_bytes()).unwrap();
        permits(scope, &request).map_err(|error| {
            assert_eq!(error.code, 103);
            error.message.into_owned()
        })
    }

    #[test]
    fn a_key_reaches_as_far_as_its_scope() {
        let everything = ApiScope::default();
        assert_eq!(tries(&everything, Method::Disconnect, r#"{"user":"ada"}"#), Ok(()));
        assert!(permits_push(&everything).is_ok());

        let reader = ApiScope { read_only: true, ..ApiScope::default() };
        assert_eq!(tries(&reader, Method::History, r#"{"channel":"news"}"#), Ok(()));
        assert_eq!(tries(&reader, Method::Info, ""), Ok(()));
        for method in Method::ALL.iter().filter(|method| !method.is_read_only()) {
            let refused = permits_method(&reader, *method);
            assert!(refused.is_err(), "{method:?}");
        }
        assert!(permits_push(&reader).is_err());

        let methods = ApiScope { methods: list(&["publish", PUSH]), ..ApiScope::default() };
        assert_eq!(tries(&methods, Method::Publish, r#"{"channel":"a","data":1}"#), Ok(()));
        let refused = tries(&methods, Method::Broadcast, r#"{"channels":["a"],"data":1}"#);
        assert!(refused.unwrap_err().contains("`broadcast`"));
        assert!(permits_push(&methods).is_ok());

        let chat = ApiScope { namespaces: list(&["chat", ""]), ..ApiScope::default() };
        let publish = |channel: &str| {
            let body = format!(r#"{{"channel":"{channel}","data":1}}"#);
            tries(&chat, Method::Publish, &body)
        };
        assert_eq!((publish("chat:a"), publish("news")), (Ok(()), Ok(())));
        assert!(publish("private:a").unwrap_err().contains("private:a"));
        let both = r#"{"channels":["chat:a","private:a"],"data":1}"#;
        assert!(tries(&chat, Method::Broadcast, both).is_err());
        assert!(tries(&chat, Method::Channels, "").is_err(), "it names those of others");
        assert!(tries(&chat, Method::Disconnect, r#"{"user":"ada"}"#).is_err());
        assert!(permits_push(&chat).is_err());
    }
}
