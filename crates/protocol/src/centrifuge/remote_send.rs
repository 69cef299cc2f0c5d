//! Messages of clients to users of other servers: what clients say over `rpc`.

use std::borrow::Cow;

use serde::Deserialize;

use super::{Error, ErrorCode, RpcRequest};
use crate::json::{self, Json};

/// The procedure that sends a message to a user of another server.
pub const SEND: &str = "dunlin.send";

/// A message to `user@domain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSend<'a> {
    /// The recipient's address.
    pub to: Cow<'a, str>,
    /// What is sent, JSON.
    pub data: Json<'a>,
    /// A second message with this key is not delivered; empty: each is.
    pub idempotency_key: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow, deserialize_with = "json::text")]
    to: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "json::payload")]
    data: Option<Json<'a>>,
    #[serde(borrow, default, deserialize_with = "json::text")]
    idempotency_key: Cow<'a, str>,
}

impl<'a> RemoteSend<'a> {
    /// Whether a remote procedure call is such a message.
    pub fn is_one(request: &RpcRequest<'_>) -> bool {
        request.method == SEND
    }

    /// Reads the call.
    ///
    /// # Errors
    /// "bad request" with what is wrong.
    pub fn parse(request: &'a RpcRequest<'_>) -> Result<RemoteSend<'a>, Error<'static>> {
        let data = request.data.as_ref().map_or(&b"{}"[..], |data| data.as_bytes());
        let Body { to, data, idempotency_key } = json::from_slice(data).map_err(|error| {
            ErrorCode::BadRequest.with_reason(format_args!("rpc.data of {SEND}: {error}"))
        })?;
        let missing = "rpc.data of dunlin.send: data is missing";
        let data = data.ok_or_else(|| ErrorCode::BadRequest.with_reason(missing))?;
        Ok(RemoteSend { to, data, idempotency_key })
    }
}
