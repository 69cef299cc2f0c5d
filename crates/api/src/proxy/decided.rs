//! The content of a decision, from a backend's HTTP response or from the program.

use serde::de::DeserializeOwned;

use dunlin_protocol::centrifuge::{Error, ErrorCode};

use super::response::{self, BackendDecision};
use super::{ConnectResult, ProxyError, PublishResult, RefreshResult, RpcResult, SubscribeResult};

/// The refusal of a client's command, as it is sent to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The command fails with this error; the connection stays open.
    Error {
        /// 100 to 1999; those of applications begin at 400.
        code: u32,
        /// For humans; truncated to 1024 bytes.
        message: String,
        /// The client may try again.
        temporary: bool,
    },
    /// The connection ends. Clients reconnect after codes 3000 to 3499 and 4000 to 4499.
    Disconnect {
        /// 3000 to 4999; those of applications begin at 4000.
        code: u16,
        /// For humans; truncated to 123 bytes.
        reason: String,
    },
}

impl Denial {
    /// Creates a final error: the client does not retry.
    pub fn error(code: u32, message: impl Into<String>) -> Denial {
        Denial::Error { code, message: message.into(), temporary: false }
    }

    /// Creates a disconnect.
    pub fn disconnect(code: u16, reason: impl Into<String>) -> Denial {
        Denial::Disconnect { code, reason: reason.into() }
    }
}

impl From<ErrorCode> for Denial {
    fn from(code: ErrorCode) -> Denial {
        let Error { code, message, temporary } = code.into();
        Denial::Error { code, message: message.into_owned(), temporary }
    }
}

/// What a decision yields: the results of `Authorizer`'s methods.
pub trait DecisionResult: Sized + Send + DeserializeOwned + 'static {
    #[doc(hidden)]
    fn decided(result: Result<Self, Denial>) -> AnyDecision;
    #[doc(hidden)]
    fn of(decided: AnyDecision) -> Option<Result<Self, Denial>>;
}

macro_rules! decision_results {
    ($($variant:ident($result:ident)),*) => {
        /// A decision about any of them.
        #[doc(hidden)]
        #[derive(Debug)]
        #[allow(clippy::large_enum_variant, reason = "there is one of a command, for a moment")]
        pub enum AnyDecision { $($variant(Result<$result, Denial>)),* }

        $(impl DecisionResult for $result {
            fn decided(result: Result<Self, Denial>) -> AnyDecision {
                AnyDecision::$variant(result)
            }

            fn of(decided: AnyDecision) -> Option<Result<Self, Denial>> {
                match decided {
                    AnyDecision::$variant(result) => Some(result),
                    _ => None,
                }
            }
        })*
    };
}

decision_results!(
    Connect(ConnectResult),
    Subscribe(SubscribeResult),
    Publish(PublishResult),
    Rpc(RpcResult),
    Refresh(RefreshResult)
);

/// The answer to a request.
#[derive(Debug)]
pub enum ProxyReply {
    /// Status and body of a backend's response.
    Response(u16, Box<[u8]>),
    /// The embedding program's decision.
    Decided(AnyDecision),
    /// The results of a program, as a JSON object.
    Result(Box<[u8]>),
    /// A program has no opinion.
    Nothing,
    /// A program has refused.
    Denied(Denial),
    /// A program has refused with an error of the protocol.
    Refused(ErrorCode),
}

impl ProxyReply {
    /// # Errors
    /// It is no decision about this.
    pub fn read<T: DecisionResult>(self) -> Result<BackendDecision<T>, ProxyError> {
        match self {
            ProxyReply::Response(status, body) => response::read(status, &body),
            ProxyReply::Result(result) => response::result(&result),
            ProxyReply::Nothing => Ok(BackendDecision::Nothing),
            ProxyReply::Denied(denial) => response::denied(denial),
            ProxyReply::Refused(code) => Ok(BackendDecision::Error(code.into())),
            ProxyReply::Decided(decided) => match T::of(decided) {
                Some(Ok(granted)) => Ok(BackendDecision::Granted(granted)),
                Some(Err(denial)) => response::denied(denial),
                None => Err(ProxyError::Malformed("it is a decision about something else".into())),
            },
        }
    }
}
