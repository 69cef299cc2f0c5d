//! Answers to plain HTTP requests, with the origin's permission where a browser needs it.

use std::fmt;

use dunlin_net::{ConnId, http};

use super::turn::Turn;

/// An answer to an HTTP request.
pub(super) struct PlainResponse<'a> {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) headers: Vec<(&'a str, &'a str)>,
    pub(super) body: std::borrow::Cow<'a, [u8]>,
}

impl<'a> PlainResponse<'a> {
    /// No body.
    pub(super) fn empty(status: u16) -> Self {
        Self { status, content_type: "", headers: Vec::new(), body: (&[][..]).into() }
    }

    /// A JSON body.
    pub(super) fn json(status: u16, body: Vec<u8>) -> Self {
        Self { status, content_type: "application/json", headers: Vec::new(), body: body.into() }
    }

    /// An error, as one sentence for a person in a JSON object for a program.
    pub(super) fn error(status: u16, why: impl fmt::Display) -> Self {
        let body = serde_json::json!({ "error": { "code": status, "message": why.to_string() } });
        Self::json(status, body.to_string().into_bytes())
    }

    /// The same with one more header.
    pub(super) fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }
}

impl Turn<'_, '_> {
    /// Sends an answer now.
    pub(super) fn answer(&mut self, conn: ConnId, answer: &PlainResponse<'_>) {
        self.request_answered(conn, answer);
        let mut headers = Vec::with_capacity(answer.headers.len() + 4);
        if !answer.content_type.is_empty() {
            headers.push(("Content-Type", answer.content_type));
        }
        headers.extend_from_slice(&answer.headers);
        let PlainResponse { status, body, .. } = &answer;
        let response = http::Response { status: *status, headers: &headers, body };
        if self.cx.outstanding(conn).and_then(|id| self.cx.respond(id, &response)).is_err() {
            // The client is gone or does not read: either way the connection is over.
            self.cx.abort(conn);
        }
    }

    /// Sends an answer that a page of `origin`, which has been allowed, is permitted to read.
    pub(super) fn answer_to(
        &mut self,
        conn: ConnId,
        origin: Option<&str>,
        answer: PlainResponse<'_>,
    ) {
        let permission = permission(origin);
        let mut headers = answer.headers;
        headers.extend(permission.iter().map(|(name, value)| (*name, value.as_str())));
        headers.push(("Cache-Control", "no-store"));
        let PlainResponse { status, content_type, body, .. } = answer;
        self.answer(conn, &PlainResponse { status, content_type, headers, body });
    }
}

/// All pages, for [`permission`].
pub(super) const ANYBODY: &str = "*";

/// The headers that let a page of this origin read a response (Fetch standard, CORS). The origin has been checked
/// already: a refused one gets no response to read. A request with credentials is answered only to a page that the settings
/// name; browsers accept `*` without credentials alone.
pub(super) fn permission(origin: Option<&str>) -> Vec<(&'static str, String)> {
    let Some(origin) = origin else { return Vec::new() };
    let mut headers = vec![("Access-Control-Allow-Origin", origin.to_owned())];
    if origin != ANYBODY {
        headers.push(("Access-Control-Allow-Credentials", "true".to_owned()));
    }
    headers.push(("Vary", "Origin".to_owned()));
    headers
}
