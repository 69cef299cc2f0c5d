//! A batch: many commands in one request.

use std::borrow::Cow;

use dunlin_protocol::json::{self, Pairs};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::{ApiError, ApiErrorCode};
use super::method::{Method, unknown};
use super::request::Request;
use super::response::check_commands;

/// The body of `POST /api/batch`.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The texts of the commands in order, each to be read with [`Batch::command`] when it begins, so that a large batch costs a
    /// turn of the loop no more than the commands that begin in it.
    pub texts: Vec<&'a [u8]>,
    /// Whether the commands may run in any order. Otherwise each begins when the one before it has ended.
    pub(crate) parallel: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchParams<'a> {
    #[serde(borrow, default, deserialize_with = "json::nullable")]
    commands: Vec<&'a RawValue>,
    #[serde(default, deserialize_with = "json::nullable")]
    parallel: bool,
}

impl<'a> Batch<'a> {
    /// Reads the body.
    ///
    /// # Errors
    /// "bad request" if the body is not a batch, "limit exceeded" if it has more than `commands_max` commands. What a command says
    /// is not looked at.
    pub fn parse(body: &'a [u8], commands_max: usize) -> Result<Batch<'a>, ApiError> {
        if body.trim_ascii().is_empty() {
            return Err(ApiError::malformed("the body is empty; it should be a JSON object"));
        }
        let body: BatchParams<'a> = json::from_slice(body)?;
        check_commands(body.commands.len(), commands_max)?;
        let texts = body.commands.iter().map(|raw| raw.get().as_bytes()).collect();
        Ok(Batch { texts, parallel: body.parallel })
    }

    /// How many leading commands may begin before the earlier ones are answered. Those of a channel reach its home worker in
    /// order; one about users goes to all workers, and waits.
    pub fn at_once(&self) -> usize {
        match self.parallel {
            true => self.texts.len(),
            false => self.texts.iter().take_while(|text| is_of_channel(text)).count(),
        }
    }

    /// Reads the command at index `at` of a batch.
    ///
    /// # Errors
    /// The error names the command by its index.
    pub fn command(at: usize, text: &[u8]) -> Result<Request<'_>, ApiError> {
        let named = json::from_slice::<Pairs<'_, &RawValue>>(text).unwrap_or_default();
        // As in Go's JSON, a null member counts as absent.
        let mut given = named.0.into_iter().filter(|(_, body)| body.get() != "null");
        let (Some((name, body)), None) = (given.next(), given.next()) else {
            return Err(ApiErrorCode::BadRequest.with_reason(format_args!(
                "commands[{at}] should be an object of one method and its request"
            )));
        };
        let Some(method) = Method::of(&name) else { return Err(unknown(&name)) };
        Request::parse(method, body.get().as_bytes())
            .map_err(|error| located(at, method.name(), error))
    }
}

/// Whether a command is certainly for the home worker of its channel, by the beginning of its text. A null member is none.
fn is_of_channel(text: &[u8]) -> bool {
    let method = || {
        let rest = after(text, b'{')?.strip_prefix(b"\"")?;
        let end = rest.iter().position(|&byte| byte == b'"')?;
        let method = Method::of(std::str::from_utf8(&rest[..end]).ok()?)?;
        (after(&rest[end + 1..], b':')?.first() == Some(&b'{')).then_some(method)
    };
    method().is_some_and(|method| !method.is_of_all_workers())
}

/// Returns what follows a mark and the space around it.
fn after(text: &[u8], mark: u8) -> Option<&[u8]> {
    Some(text.trim_ascii_start().strip_prefix(&[mark])?.trim_ascii_start())
}

/// Adds the index and method of its command to an error.
fn located(at: usize, method: &str, mut error: ApiError) -> ApiError {
    if let Some((standard, why)) = error.message.split_once(": ") {
        error.message = Cow::Owned(format!("{standard}: commands[{at}].{method}: {why}"));
    }
    error
}
