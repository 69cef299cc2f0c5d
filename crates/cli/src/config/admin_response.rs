//! Reads responses of the admin port: a document, or a problem (RFC 9457) formatted for people.

use std::fmt::Write;
use std::io::Read;

use dunlin_config::Pointer;
use serde_json::Value;

use super::client::Response;
use crate::error::CliError;
use crate::style::{GOOD, paint};

const BODY_BYTES_MAX: u64 = 512 << 20;

impl Response {
    /// Reads the document.
    ///
    /// # Errors
    /// The problem that the server reports, with every error and how to fix it.
    pub(super) fn read(self) -> Result<Value, CliError> {
        let Response { status, etag, body } = self;
        let mut text = String::new();
        body.take(BODY_BYTES_MAX).read_to_string(&mut text)?;
        let value = serde_json::from_str::<Value>(&text).unwrap_or(Value::Null);
        if (200..300).contains(&status) {
            return Ok(value);
        }
        Err(problem(status, etag.as_deref(), &value, &text).into())
    }
}

fn problem(status: u16, etag: Option<&str>, value: &Value, text: &str) -> String {
    let member = |name: &str| value[name].as_str();
    let reported = member("detail").or(member("title"));
    let errors = value["errors"].as_array().map_or(&[][..], Vec::as_slice);
    let mut out = match errors {
        // The detail repeats the single error below.
        [_] if status == 404 => "there is no such setting".to_owned(),
        [_] => "the change is refused".to_owned(),
        _ => reported.unwrap_or(text.trim_end()).to_owned(),
    };
    if out.is_empty() {
        out = format!("the server answers {status}");
    }
    for error in errors {
        let pointer = Pointer::parse(error["pointer"].as_str().unwrap_or_default());
        let path = pointer.map(|pointer| pointer.path().to_string()).unwrap_or_default();
        let separator = if path.is_empty() { "" } else { ": " };
        let detail = error["detail"].as_str().unwrap_or_default();
        let _ = write!(out, "\n  {path}{separator}{detail}");
        if let Some(fix) = error["fix"].as_str() {
            let _ = write!(out, "\n    {} {fix}", paint(GOOD, "fix:"));
        }
    }
    for worker in value["workers"].as_array().into_iter().flatten() {
        let reason = worker["reason"].as_str().unwrap_or_default();
        let _ = write!(out, "\n  worker {}: {reason}", worker["worker"]);
    }
    let fix = match status {
        401 => Some(
            "give an admin token with --token or in DUNLIN_ADMIN_TOKEN: admin.token, or what is in the file admin-token \
             of the server's state directory; or be its user"
                .to_owned(),
        ),
        404 if value.is_null() => {
            Some("this server has no settings to change; is it an older one?".to_owned())
        }
        412 => {
            let current = value["current"].as_u64().map(|current| current.to_string());
            let current = current.as_deref().or(etag).unwrap_or("another one");
            Some(format!(
                "the revision is {current} by now: see `dunlin config revisions`, then try with \
                 --if-match {current}"
            ))
        }
        _ => None,
    };
    if let Some(fix) = fix {
        let _ = write!(out, "\n  {} {fix}", paint(GOOD, "fix:"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_problem_is_reported_with_every_fault_and_its_fix() {
        let value = json!({"title": "invalid", "detail": "2 settings are wrong", "errors": [
            {"pointer": "/client/pong_timeout_ms", "detail": "it is too long", "fix": "lower it"},
            {"pointer": "/api/keys/a~1b", "detail": "it is short"},
        ]});
        let reported = anstream::adapter::strip_str(&problem(422, None, &value, "")).to_string();
        assert_eq!(
            reported,
            "2 settings are wrong\n  client.pong_timeout_ms: it is too long\n    fix: lower it\n  \
             api.keys.\"a/b\": it is short"
        );
        let reported = problem(412, Some("7"), &json!({"title": "revision-mismatch"}), "");
        assert!(reported.contains("the revision is 7 by now"), "{reported}");
        assert_eq!(problem(502, None, &Value::Null, "bad gateway\n"), "bad gateway");
    }
}
