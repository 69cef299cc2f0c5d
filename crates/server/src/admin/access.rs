//! Authentication and authorization of the admin port.
//!
//! | caller | may |
//! |---|---|
//! | shows `admin.token`, or the token in the state directory | everything |
//! | shows one of `admin.tokens` | what its role permits |
//! | comes through the Unix socket in the state directory | everything: the file's permissions exclude others |
//! | comes over TCP without a token, although one is configured | nothing |
//! | comes over TCP, and no token is configured | read, except secrets |
//! | the same, in development mode (`api.without_key`) without a state directory | everything except secrets |
//!
//! A caller without a token is accepted because it is on this machine. So is a web page in a browser on this machine, but
//! its requests are recognised by `Host`, `Origin`, `Sec-Fetch-Site` and the type of the body, which the page cannot
//! choose.

use std::path::PathBuf;
use std::sync::Arc;

use dunlin_config::{AdminRole, Secret};
use dunlin_net::ConnId;
use dunlin_net::http::{self, Method};
use rustix::net::AddressFamily;
use serde_json::json;

use super::problem::{self, ProblemDetails, ProblemType};
use super::{Admin, Cx};
use crate::request::local_host;

/// The access of this machine's operator, created at the first start with a state directory.
pub(crate) struct OperatorAccess {
    /// The token in the state directory.
    pub(crate) token: Secret,
    /// The Unix socket there; `None` if it could not be created.
    pub(crate) socket: Option<PathBuf>,
}

/// The rights of the caller of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Principal {
    pub(super) role: AdminRole,
    /// Whether it may read and set secrets.
    pub(super) secrets: bool,
}

/// Returns what follows `root` in a path below it.
pub(super) fn below<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the role that a request takes, by its head alone.
///
/// # Errors
/// Nothing can be changed at this path.
pub(super) fn role_for(request: &http::RequestHead<'_>) -> Result<AdminRole, ProblemDetails> {
    let path = request.path;
    match request.method {
        // It shows users and their addresses.
        Method::Get | Method::Head if path == "/trace" => Ok(AdminRole::Operate),
        Method::Get | Method::Head => Ok(AdminRole::See),
        // A question whose token does not stand in its path.
        Method::Post if path == "/explain" => Ok(AdminRole::See),
        _ if below(path, "/config").is_some() => Ok(AdminRole::Change),
        _ if below(path, "/broadcasts").is_some()
            || below(path, "/federation").is_some()
            || path == "/revocations" =>
        {
            Ok(AdminRole::Operate)
        }
        _ if path.starts_with("/api/") => {
            let method = path.strip_prefix("/api/").unwrap_or_default();
            super::api_call::role_for(method).ok_or_else(|| ProblemDetails::not_found(path))
        }
        _ => Err(ProblemDetails::method("GET, HEAD")),
    }
}

/// Returns the name of a role in the configuration.
const fn name(role: AdminRole) -> &'static str {
    match role {
        AdminRole::See => "see",
        AdminRole::Operate => "operate",
        AdminRole::Change => "change",
        AdminRole::Program => "program",
    }
}

impl Principal {
    /// # Errors
    /// Returns an error if the caller's role is lower.
    fn demand(self, role: AdminRole) -> Result<(), ProblemDetails> {
        if self.role >= role {
            return Ok(());
        }
        let detail =
            format!("this takes the role `{}`; the token has `{}`", name(role), name(self.role));
        Err(ProblemDetails::new(&problem::FORBIDDEN, detail))
    }
}

impl Admin {
    /// Returns the rights of the caller, if its role suffices for the request. Asks the head alone, so that nobody sends a body
    /// for nothing.
    pub(super) fn caller(
        &self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::RequestHead<'_>,
    ) -> Result<Principal, ProblemDetails> {
        let caller = self.principal(cx, conn, request)?;
        caller.demand(role_for(request)?)?;
        Ok(caller)
    }

    fn principal(
        &self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::RequestHead<'_>,
    ) -> Result<Principal, ProblemDetails> {
        let everything = |role| Principal { role, secrets: role >= AdminRole::Change };
        let changes = !matches!(request.method, Method::Get | Method::Head);
        if changes {
            refuse_foreign_page(request)?;
        }
        if let Some(shown) = bearer(request) {
            // An unknown token is rejected even if no token is configured: its caller believes that tokens protect the
            // port.
            let role = self.role_of(shown);
            return role
                .map(everything)
                .ok_or_else(|| self.unauthorized(cx, conn, "the token is unknown"));
        }
        if is_local_socket(cx, conn) {
            return Ok(everything(AdminRole::Program));
        }
        let config = &self.store.head().config;
        if config.admin.demands_token() {
            return Err(self.unauthorized(cx, conn, "the request has no token"));
        }
        if !local_host::is_local(request.host) {
            let detail = format!(
                "the request is for {:?}, which is no name of this machine; call it by its address, or show a token",
                request.host.unwrap_or_default()
            );
            return Err(ProblemDetails::new(&problem::FOREIGN_PAGE, detail));
        }
        if !changes {
            return Ok(Principal { role: AdminRole::See, secrets: false });
        }
        // In development mode without a state directory, every caller on the machine may make changes.
        if self.operator.is_some() || !config.api.without_key {
            return Err(self.unauthorized(cx, conn, "changes take one"));
        }
        let media = media_type(request);
        let is = |kind: &str| media.eq_ignore_ascii_case(kind);
        // A browser sends a preflight request before any of these, and before a PUT of any type.
        let asked = ["application/json", MERGE_PATCH, JSON_PATCH].into_iter().any(is)
            || request.method == Method::Put && is(FORM);
        if !asked {
            let detail = "without a token, whatever changes something says `Content-Type: application/json` \
                          (or application/merge-patch+json, application/json-patch+json), which no page can say \
                          without having asked";
            return Err(ProblemDetails::new(&problem::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        Ok(Principal { role: AdminRole::Change, secrets: false })
    }

    /// Answers `GET /whoami`: what the caller may do here.
    pub(super) fn whoami(
        &self,
        cx: &mut Cx,
        conn: ConnId,
        request: &http::Request<'_>,
        caller: Principal,
    ) -> Result<(), ProblemDetails> {
        if !super::reads(request.method) {
            return Err(ProblemDetails::method("GET, HEAD"));
        }
        let shows_token = bearer(request).is_some();
        let changes_without =
            !shows_token && self.operator.is_none() && self.store.head().config.api.without_key;
        let role = if changes_without { AdminRole::Change } else { caller.role };
        let body = json!({
            "role": name(role),
            "secrets": caller.secrets,
            "token": &*self.token_name(request),
            "through": if is_local_socket(cx, conn) { "socket" } else { "tcp" },
        });
        super::answer_json(cx, conn, 200, &body);
        Ok(())
    }

    /// Returns the role of a token; `None` if it is unknown. Compares all tokens, for constant time.
    fn role_of(&self, shown: &str) -> Option<AdminRole> {
        let admin = &self.store.head().config.admin;
        let operator = self.operator.as_ref().map(|operator| &operator.token);
        let named = admin.tokens.values().filter_map(|of| Some((of.token.as_ref()?, of.role)));
        let whole = admin.token.iter().chain(operator).map(|token| (token, AdminRole::Program));
        let matching = whole.chain(named).filter(|(token, _)| token.matches(shown));
        matching.map(|(_, role)| role).max()
    }

    /// Returns the name of the caller's token, never its value; empty without a token.
    pub(super) fn token_name(&self, request: &http::RequestHead<'_>) -> Arc<str> {
        let Some(shown) = bearer(request) else { return "".into() };
        let admin = &self.store.head().config.admin;
        let matches = |token: &Secret| token.matches(shown);
        if admin.token.as_ref().is_some_and(matches) {
            return "admin.token".into();
        }
        let mut named = admin.tokens.iter();
        match named.find(|(_, of)| of.token.as_ref().is_some_and(matches)) {
            Some((name, _)) => format!("admin.tokens.{name}").into(),
            None => "admin-token".into(),
        }
    }

    fn unauthorized(&self, cx: &Cx, conn: ConnId, why: &str) -> ProblemDetails {
        let detail = format!("{why}; send an admin token as `Authorization: Bearer TOKEN`");
        self.refused(cx, conn, &problem::UNAUTHORIZED, detail).header("WWW-Authenticate", &"Bearer")
    }

    /// Returns the error for a caller without a token that would read or set a secret.
    pub(super) fn secrets_need_token(&self, cx: &Cx, conn: ConnId) -> ProblemDetails {
        let detail = "showing secrets, setting them, reading them from files and changing where they are sent needs an admin token of role `change`"
            .to_owned();
        self.refused(cx, conn, &problem::SECRETS_NEED_TOKEN, detail)
    }

    /// Returns an error that names the Unix socket to a caller on this machine, since the socket needs no token.
    fn refused(
        &self,
        cx: &Cx,
        conn: ConnId,
        kind: &'static ProblemType,
        mut detail: String,
    ) -> ProblemDetails {
        let local = cx.peer_addr(conn).is_some_and(|peer| peer.ip().is_loopback());
        let socket = self.operator.as_ref().and_then(|operator| operator.socket.as_ref());
        let Some(socket) = socket.filter(|_| local) else {
            return ProblemDetails::new(kind, detail);
        };
        detail += &format!(", or comes through the socket {}", socket.display());
        ProblemDetails::new(kind, detail).with("socket", socket.to_string_lossy())
    }
}

/// Rejects requests from pages of other sites. No such page has a CORS permission, but browsers send some requests
/// without one.
fn refuse_foreign_page(request: &http::RequestHead<'_>) -> Result<(), ProblemDetails> {
    let site = request.headers.get_str("Sec-Fetch-Site");
    let from_elsewhere = site.is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let origin = request.headers.get("Origin").map(|of| str::from_utf8(of).unwrap_or("null"));
    let is_own = origin.is_none_or(|origin| {
        let of_page = origin.split_once("://").map(|(_, host)| host);
        of_page.zip(request.host).is_some_and(|(page, host)| page.eq_ignore_ascii_case(host))
    });
    if from_elsewhere || !is_own {
        let detail = "a page of another site may change nothing here";
        return Err(ProblemDetails::new(&problem::FOREIGN_PAGE, detail));
    }
    Ok(())
}

/// The type of a merge patch (RFC 7396).
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";
/// The type of a JSON Patch (RFC 6902).
pub(super) const JSON_PATCH: &str = "application/json-patch+json";
/// The media type that `curl -d` sends for any body.
pub(super) const FORM: &str = "application/x-www-form-urlencoded";

/// Returns the media type of the body without parameters; empty if there is none.
pub(super) fn media_type<'a>(request: &http::RequestHead<'a>) -> &'a str {
    let media = request.headers.get_str("Content-Type").unwrap_or("");
    media.split(';').next().unwrap_or("").trim()
}

/// Returns the token of `Authorization: Bearer ...` (RFC 6750 §2.1).
fn bearer<'a>(request: &http::RequestHead<'a>) -> Option<&'a str> {
    let (scheme, token) = request.headers.get_str("Authorization")?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim())
}

/// Whether the connection came through the Unix socket. Checks the local address: the peer's is unknown after the peer
/// has disconnected, and an unknown address must not grant access.
pub(super) fn is_local_socket(cx: &mut Cx, conn: ConnId) -> bool {
    if let Some(known) = cx.data(conn).and_then(|caller| caller.through_socket) {
        return known;
    }
    let through_socket = cx
        .descriptor(conn)
        .and_then(|descriptor| rustix::net::getsockname(descriptor).ok())
        .is_some_and(|own| own.address_family() == AddressFamily::UNIX);
    if let Some(caller) = cx.data(conn) {
        caller.through_socket = Some(through_socket);
    }
    through_socket
}
