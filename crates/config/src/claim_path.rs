use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The way to a claim of a token: names with dots between them, `deployment.region`. `\\` takes the next character as it is; a number
/// is a place of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, description = "The way to a claim, as in `deployment.region`.")]
pub struct ClaimPath(Arc<str>);

/// Longest way to a claim.
const BYTES_MAX: usize = 256;
/// What stands for more than a name in Centrifugo's paths.
const SPECIAL: &str = "@#[]{}*?!|";

impl From<&str> for ClaimPath {
    fn from(path: &str) -> ClaimPath {
        ClaimPath(path.into())
    }
}

impl ClaimPath {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is of names alone, 1 to 256 bytes of them.
    pub(crate) fn is_legal(&self) -> bool {
        let mut chars = self.0.chars();
        while let Some(next) = chars.next() {
            if next == '\\' {
                chars.next();
            } else if SPECIAL.contains(next) {
                return false;
            }
        }
        (1..=BYTES_MAX).contains(&self.0.len())
    }

    fn names(&self) -> Vec<String> {
        let (mut names, mut name) = (Vec::new(), String::new());
        let mut chars = self.0.chars();
        while let Some(next) = chars.next() {
            match next {
                '.' => names.push(std::mem::take(&mut name)),
                '\\' => name.extend(chars.next()),
                next => name.push(next),
            }
        }
        names.push(name);
        names
    }

    /// The value there as text: numbers in plain decimals, lists and objects as JSON. `None` where there is none, or `null`.
    pub fn text(&self, claims: &Value) -> Option<String> {
        let found = self.names().iter().try_fold(claims, |at, name| match at {
            Value::Object(members) => members.get(name),
            Value::Array(list) => list.get(name.parse::<usize>().ok()?),
            _ => None,
        })?;
        match found {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            Value::Number(number) if number.is_f64() => number.as_f64().map(|n| n.to_string()),
            other => Some(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_another_language_of_paths_would_read_otherwise_is_no_path() {
        for path in ["tier", "org.id", r"org.https://x\.y/region", r"roles.\#", "a-b_c.0"] {
            assert!(ClaimPath::from(path).is_legal(), "{path}");
        }
        for path in ["", "roles.#", "roles.*", "a|b", r"a\\#", "@this", &"a".repeat(257)] {
            assert!(!ClaimPath::from(path).is_legal(), "{path}");
        }
    }

    #[test]
    fn a_claim_is_found_along_its_path_and_is_a_text() {
        let claims = json!({
            "tier": "pro", "org": {"id": 42, "https://x.y/region": "eu", "roles": ["a", {"b": null}]},
            "beta": false, "big": 1e21, "share": 0.5,
        });
        for (path, text) in [
            ("tier", Some("pro")),
            ("org.id", Some("42")),
            (r"org.https://x\.y/region", Some("eu")),
            ("org.roles", Some(r#"["a",{"b":null}]"#)),
            ("org.roles.0", Some("a")),
            ("beta", Some("false")),
            ("big", Some("1000000000000000000000")),
            ("share", Some("0.5")),
            ("org.roles.1.b", None),
            ("org.roles.7", None),
            ("org.none", None),
            ("tier.pro", None),
            ("", None),
            ("\\", None),
        ] {
            assert_eq!(ClaimPath::from(path).text(&claims).as_deref(), text, "{path}");
        }
    }
}
