//! The server API that a backend calls over HTTP. No I/O: it parses bodies into commands and writes outcomes as bodies.
//!
//! Compatible with Centrifugo's HTTP API (centrifugal.dev, "Server API walkthrough"), so that its libraries work:
//!
//! - `POST /api/METHOD` with the request as JSON object: [`LenientReader::request`], answered by [`write_response`].
//! - `POST /api/batch` with `{"commands":[{"METHOD":{…}},…],"parallel":true}`: [`LenientReader::batch`], answered by
//!   [`write_batch`].
//! - `POST /api` with `{"method":"…","params":{…}}`, one or more: [`LegacyCommand::parse`], answered by [`write_legacy`].
//!   Older libraries (gocent) use it.
//!
//! An error is a response body, `{"error":{"code":107,"message":"…"}}`, with status 200, because libraries look at the
//! status first. The status is 400 only for a body that is not a valid request; see [`ApiError::status`].

/// The API as an OpenAPI document, served at `GET /api/openapi.json`.
pub const OPENAPI: &str = include_str!("openapi.json");

mod batch;
mod body;
pub mod connections;
mod error;
mod forward;
mod key;
mod legacy;
mod lenient;
pub mod member;
mod method;
mod names;
pub mod request;
pub mod response;
pub mod scope;

pub use body::label_filter;
pub use error::{ApiError, ApiErrorCode, NodesAsked};
pub use forward::AboutUser;
pub use key::presented_key;
pub use legacy::LegacyCommand;
pub use lenient::{LenientReader, UnknownFields};
pub use method::Method;
pub use request::Request;
pub use response::{
    CommandOutcome, CommandResult, NodeFacts, check_channels, commands_max, too_long, write_batch,
    write_legacy, write_response,
};

#[cfg(test)]
mod tests;
