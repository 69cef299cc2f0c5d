//! Requests of libraries newer than this server: unknown members are removed and listed in a warning.

use std::cell::OnceCell;
use std::fmt::Write;

use dunlin_protocol::json::{self, Pairs};
use serde_json::value::RawValue;

use super::batch::Batch;
use super::error::ApiError;
use super::member::{Members, members, members_within};
use super::method::Method;
use super::request::Request;

/// Most names in a warning, and most bytes of each; the warning is a response header.
const NAMES_MAX: usize = 8;
const NAME_BYTES_MAX: usize = 64;
/// Members that restrict or select the sessions of a command. They are never removed: without them the command would
/// affect other sessions.
const OF_WHOM: [&str; 2] = ["label_filter", "all_users"];

/// Reads the request of one call.
///
/// A body whose members are all known is parsed once. Only a rejected body is searched for unknown members, and parsed
/// again without them.
#[derive(Debug, Default)]
pub(crate) struct LenientReader {
    strict: bool,
    without: OnceCell<KnownFields>,
}

/// A body without unknown members, and the paths of the removed ones.
#[derive(Debug, Default)]
struct KnownFields {
    body: Vec<u8>,
    unknown: Vec<String>,
}

impl LenientReader {
    /// With `strict` (`api.strict`), unknown members are errors instead of being removed.
    pub(crate) fn new(strict: bool) -> LenientReader {
        LenientReader { strict, without: OnceCell::new() }
    }

    /// Reads the body of `POST /api/METHOD`.
    ///
    /// # Errors
    /// As [`Request::parse`]; the message lists unknown members, because one of them may be a typo.
    pub(crate) fn request<'a>(
        &'a self,
        method: Method,
        body: &'a [u8],
    ) -> Result<Request<'a>, ApiError> {
        let refused = match Request::parse(method, body) {
            Err(error) if !self.strict => error,
            request => return request,
        };
        let Some(known) = self.without(|known| known.object(members(method), "", body)) else {
            return Err(refused);
        };
        Request::parse(method, &known.body).map_err(|error| known.named_in(error))
    }

    /// Reads the body of `POST /api/batch`.
    ///
    /// # Errors
    /// As [`Batch::parse`].
    pub(crate) fn batch<'a>(
        &'a self,
        body: &'a [u8],
        commands_max: usize,
    ) -> Result<Batch<'a>, ApiError> {
        let batch = Batch::parse(body, commands_max);
        let is_right = batch.as_ref().is_ok_and(|batch| batch.commands.iter().all(Result::is_ok));
        if self.strict || is_right {
            return batch;
        }
        match self.without(|known| known.batch(body)) {
            Some(known) => {
                Batch::parse(&known.body, commands_max).map_err(|error| known.named_in(error))
            }
            None => batch,
        }
    }

    /// Returns the `Warning` header of the response (RFC 9111 §5.5 made it obsolete without a replacement).
    pub(crate) fn warning(&self) -> Option<Box<str>> {
        let known = self.without.get().filter(|known| !known.unknown.is_empty())?;
        Some(format!("299 - \"ignored unknown fields: {}\"", known.names()).into())
    }

    /// Returns the body without its unknown members. `None` if it has none, or if `take_out` fails.
    fn without(
        &self,
        take_out: impl FnOnce(&mut KnownFields) -> Option<()>,
    ) -> Option<&KnownFields> {
        let known = self.without.get_or_init(|| {
            let mut known = KnownFields::default();
            match take_out(&mut known) {
                Some(()) => known,
                None => KnownFields::default(),
            }
        });
        (!known.unknown.is_empty()).then_some(known)
    }
}

impl KnownFields {
    /// Writes the object at `path` without members that are not in `members`.
    fn object(&mut self, members: Members, path: &str, text: &[u8]) -> Option<()> {
        let given: Pairs<'_, &RawValue> = json::from_slice(text).ok()?;
        self.body.push(b'{');
        for (name, value) in given.iter() {
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            if !members.contains(&name) && OF_WHOM.contains(&name) {
                return None;
            }
            if !members.contains(&name) {
                self.unknown.push(path);
                continue;
            }
            self.key(name);
            match members_within(name) {
                Some(members) if value.get().starts_with('{') => {
                    self.object(members, &path, value.get().as_bytes())?;
                }
                _ => self.body.extend_from_slice(value.get().as_bytes()),
            }
        }
        self.body.push(b'}');
        Some(())
    }

    /// Writes a batch. An element that is not a valid command is copied unchanged, so that parsing reports its error.
    fn batch(&mut self, text: &[u8]) -> Option<()> {
        let given: Pairs<'_, &RawValue> = json::from_slice(text).ok()?;
        self.body.push(b'{');
        for (name, value) in given.iter() {
            match name {
                "commands" => {
                    let commands: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
                    self.key(name);
                    self.body.push(b'[');
                    for (at, command) in commands.iter().enumerate() {
                        if at > 0 {
                            self.body.push(b',');
                        }
                        self.command(at, command.get());
                    }
                    self.body.push(b']');
                }
                "parallel" => {
                    self.key(name);
                    self.body.extend_from_slice(value.get().as_bytes());
                }
                name => self.unknown.push(name.to_owned()),
            }
        }
        self.body.push(b'}');
        Some(())
    }

    fn command(&mut self, at: usize, text: &str) {
        let (from, unknown) = (self.body.len(), self.unknown.len());
        if self.known_command(at, text).is_none() {
            self.body.truncate(from);
            self.unknown.truncate(unknown);
            self.body.extend_from_slice(text.as_bytes());
        }
    }

    fn known_command(&mut self, at: usize, text: &str) -> Option<()> {
        let named: Pairs<'_, &RawValue> = json::from_slice(text.as_bytes()).ok()?;
        self.body.push(b'{');
        for (name, request) in named.iter() {
            self.key(name);
            let path = format!("commands[{at}].{name}");
            match Method::of(name) {
                Some(method) if request.get().starts_with('{') => {
                    self.object(members(method), &path, request.get().as_bytes())?;
                }
                _ => self.body.extend_from_slice(request.get().as_bytes()),
            }
        }
        self.body.push(b'}');
        Some(())
    }

    fn key(&mut self, name: &str) {
        if self.body.last() != Some(&b'{') {
            self.body.push(b',');
        }
        json::write_string(&mut self.body, name);
        self.body.push(b':');
    }

    fn names(&self) -> String {
        let mut names = String::new();
        for (at, path) in self.unknown.iter().take(NAMES_MAX).enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            let path = &path[..path.floor_char_boundary(NAME_BYTES_MAX)];
            // Replaces characters that a quoted string of a header cannot contain; libraries do not send such names.
            let is_plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
            names.push_str(separator);
            names.extend(path.chars().map(|c| if is_plain(c) { c } else { '?' }));
        }
        let more = self.unknown.len().saturating_sub(NAMES_MAX);
        if more > 0 {
            let _ = write!(names, " and {more} more");
        }
        names
    }

    fn named_in(&self, mut error: ApiError) -> ApiError {
        let message = error.message.to_mut();
        let _ = write!(message, "; there are unknown fields: {}", self.names());
        error
    }
}
