//! Parses requests to the config API: target, options and change.

use std::sync::Arc;

use dunlin_config::{Change, Pointer};
use dunlin_net::http::{self, Method, query};

use super::access::{FORM, JSON_PATCH, MERGE_PATCH, media_type};
use super::problem::{self, ProblemDetails};

/// Bounds on the author (`From`) and the `comment` of a change, which the history shows.
const WHO_BYTES_MAX: usize = 128;
const COMMENT_BYTES_MAX: usize = 256;
pub(super) const CANARY_SECONDS_MAX: u64 = 300;
const CANARY_SECONDS: u64 = 10;
pub(super) const REVISIONS_A_PAGE_MAX: usize = 1_000;
const REVISIONS_A_PAGE: usize = 50;

/// A resource below `/config`.
#[derive(Debug, PartialEq)]
pub(super) enum ConfigResource {
    Value(Pointer),
    Schema,
    Watch,
    Revisions,
    Revision(u64),
    RevisionConfig(u64),
    Restore(u64),
}

impl ConfigResource {
    /// Parses what follows `/config` in a path.
    pub(super) fn parse(rest: &str) -> Result<ConfigResource, ProblemDetails> {
        let decoded = query::decode_path(rest);
        let number = |text: &str| {
            text.parse::<u64>().map_err(|_| {
                ProblemDetails::new(
                    &problem::NOT_FOUND,
                    format!("{text:?} is no revision's number"),
                )
            })
        };
        let mut steps = decoded.split('/').skip(1);
        let (first, second, third) = (steps.next(), steps.next(), steps.next());
        Ok(match (first, second, third, steps.next()) {
            (Some("schema"), None, ..) => ConfigResource::Schema,
            (Some("watch"), None, ..) => ConfigResource::Watch,
            (Some("revisions"), None, ..) => ConfigResource::Revisions,
            (Some("revisions"), Some(n), None, _) => ConfigResource::Revision(number(n)?),
            (Some("revisions"), Some(n), Some("config"), None) => {
                ConfigResource::RevisionConfig(number(n)?)
            }
            (Some("revisions"), Some(n), Some("restore"), None) => {
                ConfigResource::Restore(number(n)?)
            }
            (Some("revisions"), ..) => {
                return Err(ProblemDetails::not_found(&format!("/config{rest}")));
            }
            (Some(""), None, ..) => ConfigResource::Value(Pointer::root()),
            _ => ConfigResource::Value(Pointer::parse(&decoded).map_err(|fault| {
                ProblemDetails::new(&problem::MALFORMED, fault.to_string()).fault(&fault)
            })?),
        })
    }
}

/// The query of a config request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ConfigQuery {
    pub(super) dry_run: bool,
    /// Applies to all nodes, not only to this one.
    pub(super) cluster: bool,
    pub(super) durable: bool,
    pub(super) secrets: bool,
    pub(super) comment: Option<String>,
    pub(super) canary: Option<CanaryOptions>,
    pub(super) from: Option<u64>,
    pub(super) before: Option<u64>,
    pub(super) limit: usize,
}

/// The worker that tries a change first, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CanaryOptions {
    pub(super) worker: usize,
    pub(super) seconds: u64,
}

impl ConfigQuery {
    /// Parses a query. An unknown parameter is an error: a misspelt `dry_run` must not become a change.
    pub(super) fn parse(
        query: Option<&str>,
        workers: usize,
    ) -> Result<ConfigQuery, ProblemDetails> {
        let mut options = ConfigQuery { limit: REVISIONS_A_PAGE, ..ConfigQuery::default() };
        let (mut canary, mut worker, mut seconds) = (false, None, None);
        for (name, value) in query::pairs(query.unwrap_or("")) {
            match &*name {
                "dry_run" => options.dry_run = flag(&name, &value)?,
                "scope" => options.cluster = scope(&value)?,
                "durable" => options.durable = flag(&name, &value)?,
                "secrets" => options.secrets = flag(&name, &value)?,
                "comment" => {
                    bounded("comment", &value, COMMENT_BYTES_MAX)?;
                    options.comment = Some(value.into_owned());
                }
                "canary" if value == "worker" => canary = true,
                "canary" => return Err(bad("`canary` is `worker`, or left out")),
                "worker" => worker = Some(number(&name, &value)?),
                "seconds" => seconds = Some(number(&name, &value)?),
                "from" => options.from = Some(number(&name, &value)?),
                "before" => options.before = Some(number(&name, &value)?),
                "limit" => {
                    options.limit = (number(&name, &value)? as usize).min(REVISIONS_A_PAGE_MAX);
                }
                _ => {
                    return Err(bad(format!(
                        "there is no parameter `{name}`; there are dry_run, scope, durable, secrets, \
                         comment, canary, worker, seconds, from, before, limit"
                    )));
                }
            }
        }
        if !canary && (worker.is_some() || seconds.is_some()) {
            return Err(bad("`worker` and `seconds` belong to `canary=worker`"));
        }
        if canary {
            let worker = worker.unwrap_or(0) as usize;
            let seconds = seconds.unwrap_or(CANARY_SECONDS);
            if worker >= workers {
                return Err(bad(format!("`worker` is below {workers}, the number of workers")));
            }
            if !(1..=CANARY_SECONDS_MAX).contains(&seconds) {
                return Err(bad(format!("`seconds` is from 1 to {CANARY_SECONDS_MAX}")));
            }
            options.canary = Some(CanaryOptions { worker, seconds });
        }
        Ok(options)
    }
}

/// Returns the revision that a change requires (`If-Match`, RFC 9110 §13.1.1); `None` for any.
pub(super) fn expected(request: &http::Request<'_>) -> Result<Option<u64>, ProblemDetails> {
    let mut values = request.headers.list("If-Match");
    let Some(value) = values.next() else { return Ok(None) };
    let value = str::from_utf8(value).ok().filter(|_| values.next().is_none()).unwrap_or("");
    if value == "*" {
        return Ok(None);
    }
    let tag = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    tag.and_then(|tag| tag.parse().ok()).map(Some).ok_or_else(|| {
        bad("`If-Match` is one ETag as a GET of /config gave it, quotes included, or `*`")
    })
}

/// Returns the author of the change: the `From` header.
pub(super) fn who(request: &http::Request<'_>) -> Result<Arc<str>, ProblemDetails> {
    let who = request.headers.get_str("From").unwrap_or("");
    bounded("From", who, WHO_BYTES_MAX)?;
    Ok(who.into())
}

/// Parses the change in the body of a request.
pub(super) fn change(
    target: Pointer,
    request: &http::Request<'_>,
) -> Result<Change, ProblemDetails> {
    let media = media_type(request);
    let is = |kind: &str| media.eq_ignore_ascii_case(kind);
    let parsed = match request.method {
        Method::Put if media.is_empty() || is("application/json") || is(FORM) => {
            Change::put(target, request.body)
        }
        Method::Delete => return Ok(Change::Delete { pointer: target }),
        Method::Patch if target != Pointer::root() => {
            return Err(bad("PATCH is for /config as a whole; a patch names its places itself"));
        }
        Method::Patch if is(MERGE_PATCH) => Change::merge(request.body),
        Method::Patch if is(JSON_PATCH) => Change::patch(request.body),
        _ => {
            let types = match request.method {
                Method::Patch => format!("{MERGE_PATCH} or {JSON_PATCH}"),
                _ => "application/json".to_owned(),
            };
            let detail = format!("the body is {media:?}; send it as `Content-Type`: {types}");
            return Err(ProblemDetails::new(&problem::UNSUPPORTED_MEDIA_TYPE, detail)
                .header("Accept-Patch", &format_args!("{MERGE_PATCH}, {JSON_PATCH}"))
                .header("Accept", &"application/json"));
        }
    };
    parsed.map_err(|faults| ProblemDetails::faults(&problem::MALFORMED, &faults))
}

/// Parses `scope`. Returns whether it is all nodes.
pub(super) fn scope(value: &str) -> Result<bool, ProblemDetails> {
    match value {
        "node" => Ok(false),
        "cluster" => Ok(true),
        _ => Err(bad("`scope` is `node` or `cluster`")),
    }
}

fn flag(name: &str, value: &str) -> Result<bool, ProblemDetails> {
    match value {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(bad(format!("`{name}` is 1 or 0"))),
    }
}

fn number(name: &str, value: &str) -> Result<u64, ProblemDetails> {
    value.parse().map_err(|_| bad(format!("`{name}` is a whole number, not {value:?}")))
}

fn bounded(name: &str, value: &str, bytes_max: usize) -> Result<(), ProblemDetails> {
    if value.len() > bytes_max {
        return Err(bad(format!("`{name}` is longer than {bytes_max} bytes")));
    }
    if value.chars().any(char::is_control) {
        return Err(bad(format!("`{name}` has control characters")));
    }
    Ok(())
}

fn bad(detail: impl Into<String>) -> ProblemDetails {
    ProblemDetails::new(&problem::BAD_REQUEST, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_a_key_or_to_what_is_about_the_whole() {
        let target = |rest: &str| ConfigResource::parse(rest).unwrap();
        assert_eq!(target(""), ConfigResource::Value(Pointer::root()));
        let pointer = Pointer::parse("/channel/namespaces/a~1b c").unwrap();
        assert_eq!(target("/channel/namespaces/a~1b%20c"), ConfigResource::Value(pointer));
        assert_eq!(target("/revisions"), ConfigResource::Revisions);
        assert_eq!(target("/revisions/7"), ConfigResource::Revision(7));
        assert_eq!(target("/revisions/7/config"), ConfigResource::RevisionConfig(7));
        assert_eq!(target("/revisions/7/restore"), ConfigResource::Restore(7));
        assert_eq!(
            (target("/watch"), target("/schema")),
            (ConfigResource::Watch, ConfigResource::Schema)
        );
        for nowhere in ["/revisions/x", "/revisions/7/else", "/revisions/7/config/deep"] {
            assert_eq!(ConfigResource::parse(nowhere).unwrap_err().status(), 404, "{nowhere}");
        }
    }

    #[test]
    fn a_parameter_misspelt_is_no_change() {
        assert_eq!(ConfigQuery::parse(Some("dryrun=1"), 2).unwrap_err().status(), 400);
        assert_eq!(ConfigQuery::parse(Some("dry_run=yes"), 2).unwrap_err().status(), 400);
        assert!(ConfigQuery::parse(Some("dry_run=1&durable=0"), 2).unwrap().dry_run);
        assert_eq!(ConfigQuery::parse(None, 2).unwrap().limit, REVISIONS_A_PAGE);
    }

    #[test]
    fn a_canary_is_on_a_worker_there_is_for_a_bounded_time() {
        let canary = |query| ConfigQuery::parse(Some(query), 2).map(|options| options.canary);
        assert_eq!(
            canary("canary=worker").unwrap(),
            Some(CanaryOptions { worker: 0, seconds: 10 })
        );
        let one = canary("canary=worker&worker=1&seconds=3").unwrap();
        assert_eq!(one, Some(CanaryOptions { worker: 1, seconds: 3 }));
        for wrong in ["canary=1", "worker=1", "canary=worker&worker=2", "canary=worker&seconds=0"] {
            assert_eq!(canary(wrong).unwrap_err().status(), 400, "{wrong}");
        }
    }
}
