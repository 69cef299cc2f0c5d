//! The order of commands: connect first and once, an id on every command that has a reply, a pong only after a ping.

use super::code::{Disconnect, DisconnectCode, Error, ErrorCode};
use super::command::{Command, Request};

/// State of the protocol on one bidirectional connection. Plain data, part of the connection's record.
///
/// Pass every command to [`ProtocolState::admit`] in order. After a connect, call [`ProtocolState::connected`] or
/// [`ProtocolState::rejected`] as soon as it is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolState {
    phase: ConnectPhase,
    awaits_pong: bool,
}

const _: () = assert!(size_of::<ProtocolState>() == 2);

/// Progress of the connect command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectPhase {
    /// No command yet.
    #[default]
    Opened,
    /// A connect is pending.
    Connecting,
    /// The session is open.
    Connected,
    /// The connect failed: the client must close, and any further command is a violation.
    Rejected,
}

/// When to execute an admitted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Now.
    Now,
    /// After the pending connect: clients send their subscriptions in the same frame.
    AfterConnect,
}

/// Response to a command that is not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// A reply with this error; the connection continues.
    Reply(Error<'static>),
    /// The connection ends.
    Disconnect(Disconnect<'static>),
}

impl ProtocolState {
    /// Returns the progress of the connect command.
    pub const fn phase(self) -> ConnectPhase {
        self.phase
    }

    /// Returns whether a ping is unanswered.
    pub const fn awaits_pong(self) -> bool {
        self.awaits_pong
    }

    /// Records that a ping was sent which expects a pong.
    pub fn ping_sent(&mut self) {
        self.awaits_pong = true;
    }

    /// Records that the client has sent something, which counts as a pong if the protocol has no explicit one. Returns
    /// whether a ping was unanswered.
    pub fn heard(&mut self) -> bool {
        std::mem::take(&mut self.awaits_pong)
    }

    /// Records that the connect has opened a session.
    pub fn connected(&mut self) {
        self.phase = ConnectPhase::Connected;
    }

    /// Records that the connect was not decided; it is passed again later.
    pub fn postponed(&mut self) {
        self.phase = ConnectPhase::Opened;
    }

    /// Records that the connect failed.
    pub fn rejected(&mut self) {
        self.phase = ConnectPhase::Rejected;
    }

    /// Checks a command by itself and against the state.
    ///
    /// # Errors
    /// The response if the command is not executed: a disconnect for a violation of the protocol, an error for an
    /// unsupported request.
    pub fn admit(&mut self, command: &Command<'_>) -> Result<Admission, CommandError> {
        let bad = |why: std::fmt::Arguments<'_>| {
            Err(CommandError::Disconnect(DisconnectCode::BadRequest.with_reason(why)))
        };
        let method = command.request.method();
        match (self.phase, &command.request) {
            (ConnectPhase::Opened, Request::Connect(_)) => {}
            (ConnectPhase::Opened, _) => {
                return bad(format_args!("the first command is connect, not {method}"));
            }
            (_, Request::Connect(_)) => {
                return bad(format_args!("a connection connects once"));
            }
            (ConnectPhase::Rejected, _) => {
                return bad(format_args!("the connect was refused; close and connect again"));
            }
            (ConnectPhase::Connecting | ConnectPhase::Connected, _) => {}
        }
        match &command.request {
            // An unknown member in a command without id may be the pong of a later version of the protocol.
            Request::Pong | Request::Unknown(_) if command.id == 0 => {
                if !std::mem::take(&mut self.awaits_pong) {
                    return bad(format_args!("a pong without a ping"));
                }
                return Ok(Admission::Now);
            }
            Request::Pong => {
                return bad(format_args!("command {} carries no request", command.id));
            }
            Request::Send(_) => {}
            _ if command.id == 0 => {
                return bad(format_args!("{method} needs an id above 0"));
            }
            _ => {}
        }
        valid(&command.request)?;
        if self.phase == ConnectPhase::Opened {
            self.phase = ConnectPhase::Connecting;
            return Ok(Admission::Now);
        }
        Ok(if self.phase == ConnectPhase::Connecting {
            Admission::AfterConnect
        } else {
            Admission::Now
        })
    }
}

/// Rejects requests that this server does not support.
fn valid(request: &Request<'_>) -> Result<(), CommandError> {
    let refuse = |error| Err(CommandError::Reply(error));
    let method = request.method();
    if request.channel().is_some_and(str::is_empty) {
        return refuse(
            ErrorCode::BadRequest.with_reason(format_args!("{method}.channel is empty")),
        );
    }
    match request {
        Request::Subscribe(subscribe) if subscribe.kind != 0 => refuse(
            ErrorCode::NotAvailable
                .with_reason("subscribe.type: this server has stream subscriptions (type 0) only"),
        ),
        Request::Publish(publish) if publish.kind != 0 => refuse(
            ErrorCode::NotAvailable
                .with_reason("publish.type: this server has stream publications (type 0) only"),
        ),
        Request::Publish(publish) if publish.data.is_none() => {
            refuse(ErrorCode::BadRequest.with_reason("publish.data is missing"))
        }
        Request::SubRefresh(refresh) if refresh.kind != 0 => refuse(
            ErrorCode::NotAvailable
                .with_reason("sub_refresh.type: this server refreshes tokens (type 0) only"),
        ),
        // A send has no reply, so the error ends the connection, as the protocol requires.
        Request::Send(_) => Err(CommandError::Disconnect(
            DisconnectCode::NotAvailable.with_reason("this server takes no messages by send"),
        )),
        Request::Unknown(name) => refuse(
            ErrorCode::MethodNotFound
                .with_reason(format_args!("{:?} is no method of the client protocol", brief(name))),
        ),
        _ => Ok(()),
    }
}

/// Truncates a client's text to a length that can be quoted in an error.
fn brief(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

#[cfg(test)]
mod tests {
    use super::super::Commands;
    use super::*;
    use crate::encoding::Format;

    /// Admits the commands of a frame and returns the results.
    fn admit_all(state: &mut ProtocolState, frame: &str) -> Vec<String> {
        Commands::of(Format::Json, frame.as_bytes())
            .map(|command| {
                let command = command.expect("well-formed");
                match state.admit(&command) {
                    Ok(admitted) => format!("{} {admitted:?}", command.request.method()),
                    Err(CommandError::Reply(error)) => format!("error {error}"),
                    Err(CommandError::Disconnect(disconnect)) => format!("disconnect {disconnect}"),
                }
            })
            .collect()
    }

    #[test]
    fn a_javascript_client_connects_and_subscribes_in_one_frame() {
        let mut state = ProtocolState::default();
        let frame = "{\"connect\":{\"name\":\"js\"},\"id\":1}\n{\"subscribe\":{\"channel\":\"a\"},\"id\":2}";
        assert_eq!(admit_all(&mut state, frame), ["connect Now", "subscribe AfterConnect"]);
        state.connected();
        assert_eq!(
            admit_all(&mut state, r#"{"publish":{"channel":"a","data":1},"id":3}"#),
            ["publish Now"]
        );
    }

    #[test]
    fn command_before_connect_disconnects() {
        let mut state = ProtocolState::default();
        assert_eq!(
            admit_all(&mut state, r#"{"subscribe":{"channel":"a"},"id":1}"#),
            ["disconnect 3501: bad request: the first command is connect, not subscribe"]
        );
        assert_eq!(
            admit_all(&mut state, "{}"),
            ["disconnect 3501: bad request: the first command is connect, not pong"]
        );
        assert_eq!(
            admit_all(&mut state, r#"{"connect":{}}"#),
            ["disconnect 3501: bad request: connect needs an id above 0"]
        );
    }

    #[test]
    fn a_second_connect_and_anything_after_a_refused_one_end_the_connection() {
        let mut state = ProtocolState::default();
        admit_all(&mut state, r#"{"connect":{},"id":1}"#);
        assert_eq!(
            admit_all(&mut state, r#"{"connect":{},"id":2}"#),
            ["disconnect 3501: bad request: a connection connects once"]
        );
        state.rejected();
        assert_eq!(
            admit_all(&mut state, r#"{"subscribe":{"channel":"a"},"id":3}"#),
            ["disconnect 3501: bad request: the connect was refused; close and connect again"]
        );
    }

    #[test]
    fn one_pong_a_ping() {
        let mut state = ProtocolState::default();
        admit_all(&mut state, r#"{"connect":{},"id":1}"#);
        state.connected();
        assert_eq!(
            admit_all(&mut state, "{}"),
            ["disconnect 3501: bad request: a pong without a ping"]
        );
        state.ping_sent();
        assert!(state.awaits_pong());
        assert_eq!(admit_all(&mut state, "{}"), ["pong Now"]);
        assert!(!state.awaits_pong());
    }

    #[test]
    fn an_unsupported_request_gets_an_error_and_the_connection_stays() {
        let mut state = ProtocolState { phase: ConnectPhase::Connected, awaits_pong: false };
        let frame = r#"
{"id":1,"rpc":{"method":"getUser","data":{}}}
{"id":2,"teleport":{}}
{"id":3,"subscribe":{"channel":""}}
{"id":4,"subscribe":{"channel":"a","type":1}}
{"id":5,"subscribe":{"channel":"a","tf":{"key":"x","cmp":"eq","val":"y"}}}
{"id":6,"publish":{"channel":"a"}}
{"id":7,"subscribe":{"channel":"a","delta":"fossil","flag":1,"later":[1]}}
{"id":8}
{"send":{"data":1}}
{"unsubscribe":{"channel":"a"}}"#;
        assert_eq!(
            admit_all(&mut state, frame),
            [
                "rpc Now",
                "error 104: method not found: \"teleport\" is no method of the client protocol",
                "error 107: bad request: subscribe.channel is empty",
                "error 108: not available: subscribe.type: this server has stream subscriptions (type 0) only",
                "subscribe Now",
                "error 107: bad request: publish.data is missing",
                "subscribe Now",
                "disconnect 3501: bad request: command 8 carries no request",
                "disconnect 3508: not available: this server takes no messages by send",
                "disconnect 3501: bad request: unsubscribe needs an id above 0",
            ]
        );
    }
}
