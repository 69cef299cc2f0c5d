//! Combines the responses of several nodes into one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use dunlin_api::server_api::{ApiError, ApiErrorCode, Method, NodesAsked};

/// Whether a response without some nodes is useful: for a method that only reads, or that must not be repeated.
fn may_be_partial(method: Method) -> bool {
    matches!(method, Method::Channels | Method::Connections | Method::Info | Method::Send)
}

/// Combines the responses of nodes into the value of `result`. If nodes did not respond, result or error names them, and those
/// that did ([`NodesAsked`]).
///
/// # Errors
/// The first error of a node. A command that changes something fails if a node is missing: the other nodes have executed it, and
/// repeating it is safe.
pub(super) fn combine(
    method: Method,
    responses: &[Box<[u8]>],
    nodes: &NodesAsked,
    bytes_max: usize,
) -> Result<Box<[u8]>, ApiError> {
    if method == Method::Connections {
        return connections(responses, nodes, bytes_max);
    }
    let missing = &nodes.unreachable;
    let mut results = Vec::with_capacity(responses.len());
    for response in responses {
        let mut response: Value = serde_json::from_slice(response).unwrap_or_default();
        match response.get_mut("result").map(Value::take) {
            Some(result) => results.push(result),
            None => return Err(error_of(&response["error"])),
        }
    }
    if !missing.is_empty() && !may_be_partial(method) {
        let error = ApiErrorCode::Internal.with_reason(format_args!(
            "no answer from {}; it was carried out wherever there was one, and may be repeated",
            missing.join(", ")
        ));
        return Err(error.with_nodes(nodes.clone()));
    }
    let mut result = match method {
        Method::Channels => {
            // The nodes' parts of a page, each of which goes on where it ended.
            let next: Vec<&str> = results.iter().filter_map(|of| of["cursor"].as_str()).collect();
            let next = next.join(",");
            let mut page = json!({ "channels": channels(results) });
            if !next.is_empty() {
                page["cursor"] = next.into();
            }
            page
        }
        Method::Send => {
            let clients = results.iter().filter_map(|result| result["num_clients"].as_u64());
            json!({ "num_clients": clients.sum::<u64>() })
        }
        Method::Info => {
            let pages = results.into_iter().filter_map(|mut result| {
                result.get_mut("nodes").and_then(Value::as_array_mut).map(std::mem::take)
            });
            json!({ "nodes": pages.flatten().collect::<Vec<_>>() })
        }
        _ => json!({}),
    };
    if !missing.is_empty() {
        result["answered"] = json!(nodes.answered);
        result["unreachable"] = json!(missing);
    }
    Ok(serde_json::to_vec(&result).unwrap_or_default().into())
}

/// A node's part of a page of connections.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Part<'a> {
    #[serde(borrow)]
    connections: BTreeMap<Cow<'a, str>, &'a RawValue>,
    begin: &'a str,
    cursor: &'a str,
}

/// Merges the parts of the nodes into one page. A part that does not fit is left for the next page.
fn connections(
    responses: &[Box<[u8]>],
    nodes: &NodesAsked,
    bytes_max: usize,
) -> Result<Box<[u8]>, ApiError> {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        result: Part<'a>,
    }
    #[derive(Default, Serialize)]
    struct Page<'a> {
        connections: BTreeMap<Cow<'a, str>, &'a RawValue>,
        #[serde(skip_serializing_if = "String::is_empty")]
        cursor: String,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        answered: &'a [Arc<str>],
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        unreachable: &'a [Arc<str>],
    }
    let unreachable = &*nodes.unreachable;
    let answered = if unreachable.is_empty() { &[] } else { &*nodes.answered };
    let mut page = Page { answered, unreachable, ..Page::default() };
    let mut bytes = 0;
    for response in responses {
        let Ok(Response { result: part }) = serde_json::from_slice(response) else {
            let response: Value = serde_json::from_slice(response).unwrap_or_default();
            return Err(error_of(&response["error"]));
        };
        let fits = page.connections.is_empty() || bytes + response.len() <= bytes_max;
        let next = if fits { part.cursor } else { part.begin };
        if fits {
            bytes += response.len();
            page.connections.extend(part.connections);
        }
        if !next.is_empty() && !page.cursor.is_empty() {
            page.cursor.push(',');
        }
        page.cursor.push_str(next);
    }
    Ok(serde_json::to_vec(&page).unwrap_or_default().into())
}

/// Channels with their clients on all nodes, sorted by name.
fn channels(results: Vec<Value>) -> Map<String, Value> {
    let mut counts = BTreeMap::<String, u64>::new();
    for mut result in results {
        let Some(channels) = result.get_mut("channels").and_then(Value::as_object_mut) else {
            continue;
        };
        for (name, of) in std::mem::take(channels) {
            *counts.entry(name).or_default() += of["num_clients"].as_u64().unwrap_or(0);
        }
    }
    counts.into_iter().map(|(name, clients)| (name, json!({ "num_clients": clients }))).collect()
}

fn error_of(error: &Value) -> ApiError {
    let code = error["code"].as_u64().and_then(|code| u32::try_from(code).ok());
    match (code, error["message"].as_str()) {
        (Some(code), Some(message)) => ApiError::of_node(code, message.to_owned()),
        _ => ApiErrorCode::Internal.with_reason("a node's response is malformed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined(method: Method, responses: &[&str], missing: &[&str]) -> Result<String, ApiError> {
        let responses: Vec<Box<[u8]>> = responses.iter().map(|r| r.as_bytes().into()).collect();
        let unreachable: Vec<Arc<str>> = missing.iter().map(|name| (*name).into()).collect();
        let nodes = NodesAsked { answered: vec!["n1".into()], unreachable };
        let combined = combine(method, &responses, &nodes, 150);
        combined.map(|bytes| String::from_utf8_lossy(&bytes).into())
    }

    #[test]
    fn pages_of_connections_stand_side_by_side_as_far_as_they_fit() {
        let one = r#"{"result":{"connections":{"1":{"n":18446744073709551617}},"begin":"7:0.0","cursor":"7:0.9"}}"#;
        let two = r#"{"result":{"connections":{"2":{}},"begin":"8:0.0"}}"#;
        let both = r#"{"connections":{"1":{"n":18446744073709551617},"2":{}}"#;
        let page = combined(Method::Connections, &[one, two], &["n3"]).unwrap();
        assert_eq!(
            page,
            format!(r#"{both},"cursor":"7:0.9","answered":["n1"],"unreachable":["n3"]}}"#)
        );
        let last = combined(Method::Connections, &[two], &[]).unwrap();
        assert_eq!(last, r#"{"connections":{"2":{}}}"#);
        let full = combined(Method::Connections, &[one, two, two], &[]).unwrap();
        assert_eq!(full, format!(r#"{both},"cursor":"7:0.9,8:0.0"}}"#));
        let refused = r#"{"error":{"code":107,"message":"address: is no IP address"}}"#;
        assert_eq!(combined(Method::Connections, &[two, refused], &[]).unwrap_err().code, 107);
    }

    #[test]
    fn channels_are_summed_up_and_nodes_stand_side_by_side() {
        let one = r#"{"result":{"channels":{"a":{"num_clients":2},"b":{"num_clients":1}}}}"#;
        let two = r#"{"result":{"channels":{"a":{"num_clients":3}}}}"#;
        let both = r#"{"channels":{"a":{"num_clients":5},"b":{"num_clients":1}}}"#;
        assert_eq!(combined(Method::Channels, &[one, two], &[]).unwrap(), both);
        let pages = [
            r#"{"result":{"channels":{"a":{"num_clients":2}},"cursor":"7:0.9"}}"#,
            r#"{"result":{"channels":{"a":{"num_clients":1}},"cursor":"8:1.0"}}"#,
            two,
        ];
        let page = combined(Method::Channels, &pages, &[]).unwrap();
        assert_eq!(page, r#"{"channels":{"a":{"num_clients":6}},"cursor":"7:0.9,8:1.0"}"#);
        let partial = combined(Method::Channels, &[two], &["n2"]).unwrap();
        assert!(partial.contains(r#""answered":["n1"],"#), "{partial}");
        assert!(partial.contains(r#""unreachable":["n2"]"#), "{partial}");
        let nodes =
            [r#"{"result":{"nodes":[{"uid":"1"}]}}"#, r#"{"result":{"nodes":[{"uid":"2"}]}}"#];
        let all = r#"{"nodes":[{"uid":"1"},{"uid":"2"}]}"#;
        assert_eq!(combined(Method::Info, &nodes, &[]).unwrap(), all);
    }

    #[test]
    fn a_change_that_a_node_has_not_confirmed_is_an_error_with_its_name() {
        let done = r#"{"result":{}}"#;
        assert_eq!(combined(Method::Disconnect, &[done, done], &[]).unwrap(), "{}");
        let error = combined(Method::Disconnect, &[done], &["n2"]).unwrap_err();
        assert!(error.code == 100 && error.message.contains("no answer from n2"), "{error}");
        // Regression test: only the sentence said which nodes had carried it out.
        let (_, body) = error.response(false);
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["answered"], json!(["n1"]));
        assert_eq!(body["error"]["unreachable"], json!(["n2"]));
        let refused = r#"{"error":{"code":102,"message":"unknown channel"}}"#;
        let error = combined(Method::Subscribe, &[done, refused], &[]).unwrap_err();
        assert_eq!((error.code, &*error.message), (102, "unknown channel"));
    }
}
