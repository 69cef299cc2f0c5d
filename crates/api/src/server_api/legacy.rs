//! The single endpoint of older libraries: `POST /api` with one or more `{"method":"…","params":{…}}`.
//!
//! These libraries were written for servers that ignore unknown members and the case of names, and they rely on it. This
//! endpoint does the same, without a warning.

use dunlin_protocol::json::{self, Object, Pairs};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::{ApiError, ApiErrorCode};
use super::member::members;
use super::method::{Method, unknown};
use super::request::Request;
use super::response::check_commands;

/// One command of the single endpoint.
#[derive(Debug)]
pub struct LegacyCommand {
    /// Copied to the reply; 0: none.
    pub id: u32,
    method: Result<Method, ApiError>,
    /// The request in the form of `POST /api/METHOD`.
    params: Vec<u8>,
}

#[derive(Deserialize)]
struct LegacyBody<'a> {
    #[serde(default, deserialize_with = "json::nullable")]
    id: u32,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

impl LegacyCommand {
    /// Reads the body: a sequence of JSON objects, with or without line ends between them.
    ///
    /// # Errors
    /// "bad request" if the body is anything else, "limit exceeded" if it has more than `commands_max` of them.
    pub fn parse(body: &[u8], commands_max: usize) -> Result<Vec<LegacyCommand>, ApiError> {
        let mut commands = Vec::new();
        for raw in serde_json::Deserializer::from_slice(body).into_iter::<&RawValue>() {
            let raw = raw.map_err(|error| {
                ApiError::malformed(format_args!(
                    "the body is not a sequence of JSON objects: {error}"
                ))
            })?;
            let command: LegacyBody<'_> = json::from_slice(raw.get().as_bytes())?;
            let method = method(command.method.map_or("", RawValue::get));
            let params = match (&method, command.params) {
                (Ok(method), Some(params)) => known(*method, params)?,
                _ => b"{}".to_vec(),
            };
            commands.push(LegacyCommand { id: command.id, method, params });
            check_commands(commands.len(), commands_max)?;
        }
        if commands.is_empty() {
            return Err(ApiError::malformed("the body is empty; it should be a JSON object"));
        }
        Ok(commands)
    }

    /// Returns the method; `None` if it is unknown.
    pub fn method(&self) -> Option<Method> {
        self.method.as_ref().ok().copied()
    }

    /// Returns the memory that the command occupies, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.params.len()
    }

    /// Parses the request.
    ///
    /// # Errors
    /// As [`Request::parse`], and "not found" for an unknown method.
    pub fn request(&self) -> Result<Request<'_>, ApiError> {
        Request::parse(self.method.clone()?, &self.params)
    }
}

/// Parses a method: a name in any case, or a number. A missing method is publish, because its number is 0.
fn method(raw: &str) -> Result<Method, ApiError> {
    if raw.is_empty() {
        return Ok(Method::Publish);
    }
    if let Ok(name) = serde_json::from_str::<String>(raw) {
        return Method::of(&name.to_ascii_lowercase()).ok_or_else(|| unknown(&name));
    }
    match serde_json::from_str(raw) {
        Ok(number) => Method::of_number(number).ok_or_else(|| unknown(raw)),
        Err(_) => Err(ApiErrorCode::BadRequest.with_reason("method: should be a string")),
    }
}

/// Keeps the parameters that the method has, renamed to their current names.
fn known(method: Method, params: &RawValue) -> Result<Vec<u8>, ApiError> {
    let given: Pairs<'_, &RawValue> = json::from_slice(params.get().as_bytes())?;
    let mut out = Vec::with_capacity(params.get().len());
    let mut object = Object::begin(&mut out);
    for (name, value) in given.iter() {
        let name = name.to_ascii_lowercase();
        let name = if name == "clientwhitelist" { "whitelist" } else { name.as_str() };
        if members(method).contains(&name) {
            object.raw(name, value.get().as_bytes());
        }
    }
    object.end();
    Ok(out)
}
