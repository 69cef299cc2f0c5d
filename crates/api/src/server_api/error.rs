//! Errors of the API and their codes, which are Centrifugo's.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use dunlin_protocol::ProtocolError;
use dunlin_protocol::centrifuge;
use dunlin_protocol::json::Object;

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ApiErrorCode {
    /// An internal error or overload; the command may be repeated.
    Internal = 100,
    /// The channel belongs to a namespace that is not configured.
    UnknownChannel = 102,
    /// The API key's scope does not include the command.
    PermissionDenied = 103,
    /// There is no such method.
    NotFound = 104,
    /// A limit would be exceeded.
    LimitExceeded = 106,
    /// The request is invalid; repeating it does not help.
    BadRequest = 107,
    /// The feature is switched off for this channel, or not part of this server.
    NotAvailable = 108,
    /// The stream no longer holds what follows the given position, or belongs to another epoch.
    UnrecoverablePosition = 112,
}

impl ApiErrorCode {
    /// Returns the number in the response.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Returns the standard text.
    pub const fn text(self) -> &'static str {
        match self {
            ApiErrorCode::Internal => "internal server error",
            ApiErrorCode::UnknownChannel => "unknown channel",
            ApiErrorCode::PermissionDenied => "permission denied",
            ApiErrorCode::NotFound => "not found",
            ApiErrorCode::LimitExceeded => "limit exceeded",
            ApiErrorCode::BadRequest => "bad request",
            ApiErrorCode::NotAvailable => "not available",
            ApiErrorCode::UnrecoverablePosition => "unrecoverable position",
        }
    }

    /// Returns the error with a message: the standard text, a colon, and the reason.
    pub fn with_reason(self, why: impl fmt::Display) -> ApiError {
        ApiError {
            code: self.code(),
            message: Cow::Owned(format!("{}: {why}", self.text())),
            malformed: false,
            nodes: None,
        }
    }
}

/// The error in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// See [`ApiErrorCode`].
    pub code: u32,
    /// For people; programs use the code.
    pub message: Cow<'static, str>,
    malformed: bool,
    /// Of a call in a cluster that some nodes did not answer.
    pub nodes: Option<Box<NodesAsked>>,
}

/// The nodes that a call concerned, by name: in an error or a result that lacks some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesAsked {
    /// They have carried it out.
    pub answered: Vec<Arc<str>>,
    /// They have not answered.
    pub unreachable: Vec<Arc<str>>,
}

impl ApiError {
    /// Returns the error of a body that is not a valid request.
    pub fn malformed(why: impl fmt::Display) -> ApiError {
        ApiError { malformed: true, ..ApiErrorCode::BadRequest.with_reason(why) }
    }

    /// Returns an error that another node responded with.
    pub fn of_node(code: u32, message: String) -> ApiError {
        ApiError { code, message: Cow::Owned(message), malformed: false, nodes: None }
    }

    /// Names the nodes that the call concerned.
    pub fn with_nodes(self, nodes: NodesAsked) -> ApiError {
        ApiError { nodes: Some(Box::new(nodes)), ..self }
    }

    /// Returns the same error without its message, for a response without room for it.
    pub(crate) const fn without_message(&self) -> ApiError {
        ApiError { code: self.code, message: Cow::Borrowed(""), malformed: false, nodes: None }
    }

    /// Returns the HTTP status of a response with this error: 400 if the body is not a valid request, else 200.
    pub const fn status(&self) -> u16 {
        if self.malformed { 400 } else { 200 }
    }

    /// Returns the HTTP status for a caller that wants errors as statuses (`X-Centrifugo-Error-Mode: transport`).
    pub const fn transport_status(&self) -> u16 {
        match self.code {
            102 | 104 => 404,
            106 => 429,
            107 | 108 => 400,
            112 => 416,
            _ => 500,
        }
    }

    /// Returns status and body of a response that consists of this error.
    pub fn response(&self, as_status: bool) -> (u16, Vec<u8>) {
        let mut body = b"{\"error\":".to_vec();
        self.write(&mut body);
        body.push(b'}');
        (if as_status { self.transport_status() } else { self.status() }, body)
    }

    /// Writes `{"code":…,"message":"…"}`: the value of `error`, or the whole body for a caller that wants errors as
    /// statuses. An error of a call that nodes did not answer has their names.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut error = Object::begin(out);
        error.integer("code", self.code).string("message", &self.message);
        if let Some(nodes) = &self.nodes {
            for (name, list) in [("answered", &nodes.answered), ("unreachable", &nodes.unreachable)]
            {
                let list = serde_json::to_vec(list).unwrap_or_default();
                error.raw(name, &list);
            }
        }
        error.end();
    }
}

impl From<ApiErrorCode> for ApiError {
    fn from(code: ApiErrorCode) -> Self {
        ApiError {
            code: code.code(),
            message: Cow::Borrowed(code.text()),
            malformed: false,
            nodes: None,
        }
    }
}

impl From<ProtocolError> for ApiError {
    fn from(malformed: ProtocolError) -> Self {
        if malformed.field.is_empty() && malformed.reason.contains(" at line ") {
            return ApiError::malformed(format_args!(
                "the body is not the JSON object it should be: {malformed}"
            ));
        }
        ApiError::malformed(malformed)
    }
}

impl From<dunlin_hub::Error> for ApiError {
    fn from(error: dunlin_hub::Error) -> Self {
        use dunlin_hub::Error as Hub;
        match error {
            Hub::ChannelName
            | Hub::PublicationTooLarge
            | Hub::NoSession
            | Hub::Wildcard
            | Hub::PayloadAlone
            | Hub::NotDurable
            | Hub::AckWithoutUser
            | Hub::DeviceName
            | Hub::AckOffset { .. } => ApiErrorCode::BadRequest.with_reason(error),
            Hub::BadRequest => ApiErrorCode::BadRequest.into(),
            Hub::HistoryOff | Hub::PresenceOff | Hub::AckOff => {
                ApiErrorCode::NotAvailable.with_reason(error)
            }
            Hub::LimitExceeded => ApiErrorCode::LimitExceeded.into(),
            Hub::TooManyDevices | Hub::CursorsFull => {
                ApiErrorCode::LimitExceeded.with_reason(error)
            }
            Hub::UnrecoverablePosition(_) => ApiErrorCode::UnrecoverablePosition.into(),
            _ => ApiErrorCode::Internal.with_reason(error),
        }
    }
}

impl From<centrifuge::Error<'static>> for ApiError {
    /// Both protocols use the same codes.
    fn from(error: centrifuge::Error<'static>) -> Self {
        ApiError { code: error.code, message: error.message, malformed: false, nodes: None }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for ApiError {}
