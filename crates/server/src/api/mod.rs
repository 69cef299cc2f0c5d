//! The server API: what a backend asks for over HTTP, and what it is answered. No I/O: bodies in, commands and
//! bodies out.
//!
//! Compatible with Centrifugo's HTTP API (centrifugal.dev, "Server API walkthrough"), so that its libraries work:
//!
//! - `POST /api/METHOD` with the request as JSON object: [`Lenient::request`], answered by [`write_response`].
//! - `POST /api/batch` with `{"commands":[{"METHOD":{…}},…],"parallel":true}`: [`Lenient::batch`], answered by
//!   [`write_batch`].
//! - `POST /api` with `{"method":"…","params":{…}}`, one or more: [`Legacy::parse`], answered by [`write_legacy`].
//!   The way of older libraries (gocent).
//!
//! An error is an answer: `{"error":{"code":107,"message":"…"}}` with status 200, because libraries look at the
//! status first. Only a body that is no request at all is a 400; see [`ApiError::status`].

/// The API as an OpenAPI document, served at `GET /api/openapi.json`.
pub const OPENAPI: &str = include_str!("openapi.json");

mod batch;
mod body;
mod error;
mod forward;
mod key;
mod legacy;
mod lenient;
pub(crate) mod member;
mod method;
mod names;
pub mod request;
pub mod response;
pub mod scope;

pub use batch::Batch;
pub(crate) use body::label_filter;
pub use error::{ApiError, ApiErrorCode};
pub use key::presented_key;
pub use legacy::Legacy;
pub use lenient::Lenient;
pub use method::Method;
pub use request::Request;
pub use response::{CommandResult, NodeFacts, Outcome, write_batch, write_legacy, write_response};

#[cfg(test)]
mod tests;
