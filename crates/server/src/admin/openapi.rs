//! `GET /openapi.json`: the OpenAPI 3.1 document of the admin port.

use std::sync::OnceLock;

const TEMPLATE: &str = include_str!("openapi.json");

/// Returns the document, with the version of this program.
pub(super) fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| TEMPLATE.replacen("VERSION", env!("CARGO_PKG_VERSION"), 1))
}

/// Returns the first part of a path as the document has it, for a label; `other` if it has no such path.
pub(super) fn endpoint(path: &str) -> &'static str {
    static ENDPOINTS: OnceLock<Vec<String>> = OnceLock::new();
    let endpoints = ENDPOINTS.get_or_init(|| {
        let document: serde_json::Value = serde_json::from_str(document()).unwrap_or_default();
        let paths = document["paths"].as_object().into_iter().flat_map(|paths| paths.keys());
        let mut first: Vec<_> = paths.map(|path| first_part(path).to_owned()).collect();
        first.sort();
        first.dedup();
        first
    });
    let path = first_part(path);
    endpoints.iter().find(|of| *of == path).map_or("other", |of| of)
}

fn first_part(path: &str) -> &str {
    let end = path.bytes().skip(1).position(|byte| matches!(byte, b'/' | b'{'));
    &path[..end.map_or(path.len(), |at| at + 1)]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::admin::problem::PROBLEM_TYPES;

    #[test]
    fn endpoint_is_the_first_part_of_a_path_that_there_is() {
        for (path, of) in [
            ("/config", "/config"),
            ("/config/limits/connections_max", "/config"),
            ("/metrics", "/metrics"),
            ("/nothing/of/it", "other"),
            ("/", "/"),
            ("", "other"),
            ("/configuration", "other"),
        ] {
            assert_eq!(endpoint(path), of, "{path}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_status_of_a_problem_is_described() {
        let document: Value = serde_json::from_str(document()).unwrap();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let listed: Vec<_> =
            document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
        let mut statuses = Vec::new();
        let mut left = vec![&document];
        while let Some(value) = left.pop() {
            match value {
                Value::Object(object) => {
                    if let Some(at) = object.get("$ref").and_then(Value::as_str) {
                        let pointer = at.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{at}");
                    }
                    let tags = object.get("tags").and_then(Value::as_array).into_iter().flatten();
                    let mut names = tags.filter(|tag| tag.is_string());
                    assert!(names.all(|tag| listed.contains(&tag)), "{:?}", object.get("tags"));
                    if let Some(responses) = object.get("responses").and_then(Value::as_object) {
                        statuses.extend(responses.keys().filter_map(|key| key.parse::<u16>().ok()));
                    }
                    left.extend(object.values());
                }
                Value::Array(array) => left.extend(array),
                _ => {}
            }
        }
        // 405 is the response to methods that are not described.
        for kind in PROBLEM_TYPES.iter().filter(|kind| kind.status != 405) {
            assert!(statuses.contains(&kind.status), "{}", kind.name);
        }
    }
}
