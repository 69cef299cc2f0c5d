//! Requests of libraries newer than this server: unknown members are removed and listed in a warning. It is no `serde_ignored`:
//! that wants types that skip what they do not know, and here some members must be refused, and a known body is parsed once.

use std::cell::OnceCell;
use std::fmt::Write;

use dunlin_protocol::json::{self, Pairs};
use serde_json::value::RawValue;

use super::batch::Batch;
use super::error::{ApiError, ApiErrorCode};
use super::member::{Members, members, members_within};
use super::method::Method;
use super::request::Request;

/// Most names in a warning, and most bytes of each; the warning is a response header.
const NAMES_MAX: usize = 8;
const NAME_BYTES_MAX: usize = 64;
/// Members that restrict or select the sessions of a command. They are never removed: without them the command would
/// affect other sessions.
const OF_WHOM: [&str; 2] = ["label_filter", "all_users"];

/// The members of a batch.
const BATCH: Members = &["commands", "parallel"];

/// Reads one request, batch, or command of a batch.
///
/// A text whose members are all known is parsed once. Only a rejected one is searched for unknown members, and parsed again
/// without them.
#[derive(Debug, Default)]
pub struct LenientReader {
    strict: bool,
    without: OnceCell<KnownFields>,
}

/// The paths of members that a call ignored: the first of them, and how many they are.
#[derive(Clone, Debug, Default)]
pub struct UnknownFields {
    paths: Vec<String>,
    count: usize,
}

/// A text without unknown members, and those that it had.
#[derive(Debug, Default)]
struct KnownFields {
    body: Vec<u8>,
    unknown: UnknownFields,
}

impl LenientReader {
    /// With `strict` (`api.strict`), unknown members are errors instead of being removed.
    pub fn new(strict: bool) -> LenientReader {
        LenientReader { strict, without: OnceCell::new() }
    }

    /// Reads the body of `POST /api/METHOD`.
    ///
    /// # Errors
    /// As [`Request::parse`]; the message lists unknown members, because one of them may be a typo.
    pub fn request<'a>(&'a self, method: Method, body: &'a [u8]) -> Result<Request<'a>, ApiError> {
        let refused = match Request::parse(method, body) {
            Err(error) if !self.strict => error,
            request => return request,
        };
        let Some(known) = self.without(|known| known.object(members(method), "", body)) else {
            return Err(refused);
        };
        Request::parse(method, &known.body).map_err(|error| known.unknown.named_in(error))
    }

    /// Reads the body of `POST /api/batch`, whose commands are then read one by one with [`LenientReader::command`].
    ///
    /// # Errors
    /// "bad request" if it is none, "limit exceeded" if it has more than `commands_max` commands.
    pub fn batch<'a>(&'a self, body: &'a [u8], commands_max: usize) -> Result<Batch<'a>, ApiError> {
        let refused = match Batch::parse(body, commands_max) {
            // One that is too long is not read again.
            Err(error) if !self.strict && error.code == ApiErrorCode::BadRequest as u32 => error,
            batch => return batch,
        };
        let Some(known) = self.without(|known| known.object(BATCH, "", body)) else {
            return Err(refused);
        };
        Batch::parse(&known.body, commands_max).map_err(|error| known.unknown.named_in(error))
    }

    /// Reads the command at index `at` of a batch.
    ///
    /// # Errors
    /// The error names the command by its index.
    pub fn command<'a>(&'a self, at: usize, text: &'a [u8]) -> Result<Request<'a>, ApiError> {
        let refused = match Batch::command(at, text) {
            Err(error) if !self.strict => error,
            command => return command,
        };
        match self.without(|known| known.command(at, text)) {
            Some(known) => Batch::command(at, &known.body),
            None => Err(refused),
        }
    }

    /// Returns the members that were removed from what was read.
    pub fn into_unknown(self) -> UnknownFields {
        self.without.into_inner().unwrap_or_default().unknown
    }

    /// Returns the text without its unknown members. `None` if it has none, or if `take_out` fails.
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
        (known.unknown.count > 0).then_some(known)
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

    /// Writes the command at index `at` of a batch.
    fn command(&mut self, at: usize, text: &[u8]) -> Option<()> {
        let named: Pairs<'_, &RawValue> = json::from_slice(text).ok()?;
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
}

impl UnknownFields {
    fn push(&mut self, path: String) {
        self.count += 1;
        if self.paths.len() < NAMES_MAX {
            self.paths.push(path);
        }
    }

    /// Adds those of a further command.
    pub fn append(&mut self, more: UnknownFields) {
        self.count += more.count;
        self.paths.extend(more.paths);
        self.paths.truncate(NAMES_MAX);
    }

    /// Returns the `Warning` header of the response (RFC 9111 §5.5 made it obsolete without a replacement).
    pub fn warning(&self) -> Option<String> {
        (self.count > 0).then(|| format!("299 - \"ignored unknown fields: {}\"", self.names()))
    }

    fn names(&self) -> String {
        let mut names = String::new();
        for (at, path) in self.paths.iter().enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            let path = &path[..path.floor_char_boundary(NAME_BYTES_MAX)];
            // Replaces characters that a quoted string of a header cannot contain; libraries do not send such names.
            let is_plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
            names.push_str(separator);
            names.extend(path.chars().map(|c| if is_plain(c) { c } else { '?' }));
        }
        let more = self.count - self.paths.len();
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
