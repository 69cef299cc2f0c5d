//! Error responses of the admin port: problem details (RFC 9457).

use std::fmt;

use dunlin_config::{ChangeError, ConfigError, ConfigErrors};
use dunlin_net::{ConnId, http};
use serde_json::{Map, Value, json};

use super::{Cx, respond};

/// An error response: its type and the details of this occurrence.
#[derive(Debug)]
pub(super) struct ProblemDetails(Box<Details>);

#[derive(Debug)]
struct Details {
    kind: &'static ProblemType,
    detail: String,
    errors: Vec<Value>,
    more: Map<String, Value>,
    headers: Vec<(&'static str, String)>,
}

/// A problem type: what the member `type` names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProblemType {
    pub(super) name: &'static str,
    pub(super) status: u16,
    pub(super) title: &'static str,
    /// The text for `GET /problems/{name}`: the meaning and the remedy.
    pub(super) explanation: &'static str,
}

macro_rules! kinds {
    ($($id:ident, $status:literal, $name:literal, $title:literal, $explanation:literal;)*) => {
        $(pub(super) static $id: ProblemType =
            ProblemType { name: $name, status: $status, title: $title, explanation: $explanation };)*
        /// Every problem type, by status.
        pub(super) static PROBLEM_TYPES: &[&ProblemType] = &[$(&$id,)*];
    };
}

kinds! {
    BAD_REQUEST, 400, "bad-request", "The request has a parameter or header that cannot be read",
        "`detail` names it and says what it may be. Nothing was changed.";
    MALFORMED, 400, "malformed", "The body or the pointer cannot be read",
        "It is not JSON, repeats a key, is nested too deep, or is not a patch. `errors` has the place of each fault.";
    UNAUTHORIZED, 401, "unauthorized", "An admin token is missing or wrong",
        "Send one as `Authorization: Bearer TOKEN`: `admin.token`, one of `admin.tokens`, or the one in the file `admin-token` \
         of the state directory. On the machine itself the socket `admin-socket` there needs none.";
    SECRETS_NEED_TOKEN, 403, "secrets-need-token", "Secrets are shown to, and set by, callers with an admin token alone",
        "Show a token of role `change`, or come through the socket in the state directory. A server without either has no \
         secrets to give: start it with `--state DIR`, which makes both, or set `admin.token` in its file.";
    FORBIDDEN, 403, "forbidden", "The admin token has not the role that this takes",
        "`admin.tokens` says which role each token has: see, operate or change.";
    FOREIGN_PAGE, 403, "foreign-page", "The request comes from a page of another site, or is for another machine's name",
        "Pages of other sites may not use the admin port. Call it by its address, or show a token.";
    NOT_FOUND, 404, "not-found", "There is nothing here",
        "The path, or the JSON pointer behind `/config`, leads to nothing.";
    NO_SUCH_REVISION, 404, "no-such-revision", "This revision is not kept",
        "`oldest` and `current` bound those that are.";
    METHOD_NOT_ALLOWED, 405, "method-not-allowed", "The resource does not know this method",
        "`Allow` names those it knows.";
    NOT_APPLIED, 409, "not-applied", "A worker could not switch to the change, which was rolled back",
        "`workers` has the reason of each that did not switch. The last good configuration runs everywhere, as revision `revision`.";
    TEST_FAILED, 409, "test-failed", "The patch does not fit the present document",
        "A `test` of the JSON Patch failed, or it names what is not there. Nothing was changed.";
    CANARY_FAILED, 409, "canary-failed", "The trial on one worker failed, and the change was rolled back",
        "`canary` has what was seen.";
    CANARY_UNDER_WAY, 409, "canary-under-way", "Another change is on trial",
        "Try again when it is over: `Retry-After` says when.";
    NO_STATE, 409, "no-state", "There is no disk to make a change durable on",
        "Start with `dunlin serve --state DIR`, or leave `durable` out.";
    CLUSTER_CHANGE_UNDER_WAY, 409, "cluster-change-under-way", "Another change for all nodes came first",
        "Nothing was changed. `cluster_revision` is the number of the newest of them: see what it has changed, decide again, and \
         send yours again after `Retry-After` seconds.";
    NO_CLUSTER_SECRET, 409, "no-cluster-secret", "This node cannot seal a change for the others",
        "Set `cluster.secret` to the same value on every node: `openssl rand -hex 32`. Nothing was changed.";
    CLUSTER_SECRET_DIFFERS, 409, "cluster-secret-differs", "A node could not read the change",
        "`detail` names a node whose `cluster.secret` is another one. Give every node the same, or stop that node, and send the change again. \
         Nothing was changed.";
    REVISION_MISMATCH, 412, "revision-mismatch", "The configuration has changed since",
        "`current` is the present revision. Read again, decide again, and send the new ETag as `If-Match`.";
    TOO_LARGE, 413, "too-large", "The body is too large",
        "`config.body_bytes_max` bounds it.";
    UNSUPPORTED_MEDIA_TYPE, 415, "unsupported-media-type", "The body is of another type than this method takes",
        "PUT takes application/json, PATCH takes application/merge-patch+json or application/json-patch+json.";
    INVALID, 422, "invalid", "The result would not be a valid configuration",
        "`errors` has every fault with its JSON pointer and how to fix it. Nothing was changed.";
    NODE_SETTING, 422, "node-setting", "Each node has this setting for itself",
        "Listen addresses, name and number of a node, addresses of engines, `cluster.engine` and `cluster.secret` are not changed on \
         all nodes at once, nor is a table that holds one. Name the keys that are meant, or leave `scope` out. Nothing was changed.";
    CLUSTER_UNREACHABLE, 503, "cluster-unreachable", "This node is not in touch with its cluster",
        "Nothing was changed. `GET /cluster` says what is wrong; without `scope` the change holds on this node alone.";
    CLUSTER_UNCERTAIN, 504, "cluster-uncertain", "This node runs the change; whether the others will is not known",
        "Redis or NATS did not confirm that it has kept the change. `dunlin cluster status` shows which nodes have it; send it again, or \
         restore the revision before `revision` on this node.";
    OVERLOADED, 503, "overloaded", "Too many changes wait already",
        "Try again after `Retry-After` seconds.";
    LOG_NOT_WRITTEN, 507, "log-not-written", "The change could not be written to disk",
        "The disk is full or broken; `detail` has the kernel's word. Serving goes on with the configuration before.";
}

impl ProblemDetails {
    pub(super) fn new(kind: &'static ProblemType, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let (errors, more, headers) = Default::default();
        Self(Box::new(Details { kind, detail, errors, more, headers }))
    }

    /// Adds an extension member.
    pub(super) fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.0.more.insert(member.into(), value.into());
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: &dyn fmt::Display) -> Self {
        self.0.headers.push((name, value.to_string()));
        self
    }

    pub(super) fn fault(mut self, fault: &ConfigError) -> Self {
        self.0.errors.push(error(fault));
        self
    }

    pub(super) fn faults(kind: &'static ProblemType, faults: &ConfigErrors) -> Self {
        let detail = match faults.len() {
            1 => faults.iter().next().map(ToString::to_string).unwrap_or_default(),
            count => format!("there are {count} errors"),
        };
        let mut problem = ProblemDetails::new(kind, detail);
        problem.0.errors = faults.iter().map(error).collect();
        problem
    }

    pub(super) fn not_found(path: &str) -> Self {
        ProblemDetails::new(
            &NOT_FOUND,
            format!(
                "{path} is not here; the paths are / (a page for people), /health, /whoami, /metrics, /info, /cluster, \
                 /status/overview, /status/series, /status/workers, /status/engines, /status/tenants, /status/upstreams, /status/webhooks, /broadcasts, /revocations, /trace, /explain, /api, /config, /openapi.json"
            ),
        )
    }

    pub(super) fn method(allow: &'static str) -> Self {
        ProblemDetails::new(&METHOD_NOT_ALLOWED, format!("use one of {allow}"))
            .header("Allow", &allow)
    }

    pub(super) fn of_change_error(error: &ChangeError) -> Self {
        match error {
            ChangeError::Revision { current } => {
                let detail = format!("the current revision is {current}");
                ProblemDetails::new(&REVISION_MISMATCH, detail)
                    .with("current", *current)
                    .header("ETag", &format_args!("\"{current}\""))
            }
            ChangeError::Invalid(faults) => ProblemDetails::faults(&INVALID, faults),
            ChangeError::Conflict(fault) => {
                ProblemDetails::new(&TEST_FAILED, fault.to_string()).fault(fault)
            }
            ChangeError::NotFound(fault) => {
                ProblemDetails::new(&NOT_FOUND, fault.to_string()).fault(fault)
            }
        }
    }

    pub(super) fn status(&self) -> u16 {
        self.0.kind.status
    }

    /// Returns each fault as a line.
    pub(super) fn lines(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match &*self.0.errors {
            [] => vec![self.0.detail.clone()],
            errors => errors
                .iter()
                .map(|of| format!("{}: {}", text(&of["pointer"]), text(&of["detail"])))
                .collect(),
        }
    }

    /// Returns what is wrong in this case.
    pub(super) fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let Details { kind, detail, errors, more, .. } = &*self.0;
        let ProblemType { name, title, status, .. } = kind;
        let of = format!("/problems/{name}");
        let mut object = json!({ "type": of, "title": title, "status": status, "detail": detail });
        if !errors.is_empty() {
            object["errors"] = errors.as_slice().into();
        }
        for (member, value) in more {
            object[member] = value.clone();
        }
        let mut body = object.to_string().into_bytes();
        body.push(b'\n');
        body
    }

    /// Answers the outstanding request of a connection with this problem.
    pub(super) fn answer(&self, cx: &mut Cx, conn: ConnId) {
        super::tell_refused(cx, conn, self.0.kind.status, &self.0.detail);
        respond(cx, conn, self.0.kind.status, &self.headers(), &self.body());
    }

    /// Answers a request that violates HTTP, and closes the connection.
    pub(super) fn answer_http_error(&self, cx: &mut Cx, conn: ConnId) {
        let (status, headers, body) = (self.0.kind.status, self.headers(), self.body());
        super::tell_refused(cx, conn, status, &self.0.detail);
        let response = http::Response { status, headers: &headers, body: &body };
        cx.respond_to_http_error(conn, &response);
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![("Content-Type", "application/problem+json")];
        headers.extend(self.0.headers.iter().map(|(name, value)| (*name, value.as_str())));
        headers.push(("Cache-Control", "no-store"));
        headers
    }
}

fn error(fault: &ConfigError) -> Value {
    let mut error = json!({ "pointer": fault.path.pointer(), "detail": fault.message });
    if let Some(fix) = &fault.fix {
        error["fix"] = fix.as_str().into();
    }
    error
}

/// Returns the text for `GET /problems/{name}`.
pub(super) fn explanation(name: &str) -> Option<String> {
    let kind = PROBLEM_TYPES.iter().find(|kind| kind.name == name)?;
    Some(format!("{} {}\n\n{}\n", kind.status, kind.title, kind.explanation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_what_where_and_what_mends_it() {
        let faults =
            dunlin_config::Config::from_toml("[client]\nping_interval = 10\n").unwrap_err();
        let body = ProblemDetails::faults(&INVALID, &faults).with("revision", 7).body();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["type"], "/problems/invalid");
        assert_eq!((&body["status"], &body["revision"]), (&422.into(), &7.into()));
        assert_eq!(body["errors"][0]["pointer"], "/client/ping_interval");
        assert!(body["errors"][0]["fix"].as_str().unwrap().contains("ping_interval_ms"));
    }

    #[test]
    fn every_kind_is_explained_under_its_own_name() {
        for kind in PROBLEM_TYPES {
            assert!(explanation(kind.name).unwrap().contains(kind.title));
            assert_eq!(PROBLEM_TYPES.iter().filter(|other| other.name == kind.name).count(), 1);
        }
        assert_eq!(explanation("elsewhere"), None);
    }
}
