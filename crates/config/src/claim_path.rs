use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The path of a claim in a token: names separated by dots, `deployment.region`. `\\` escapes the next character; a
/// number is an index into an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, description = "The way to a claim, as in `deployment.region`.")]
pub struct ClaimPath(Arc<str>);

/// Maximum length of a path.
const BYTES_MAX: usize = 256;
/// Characters with a special meaning in Centrifugo's paths.
const SPECIAL: &str = "@#[]{}*?!|";

impl From<&str> for ClaimPath {
    fn from(path: &str) -> ClaimPath {
        ClaimPath(path.into())
    }
}

impl ClaimPath {
    /// Returns the text of the path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether it consists of plain names only, in 1 to 256 bytes.
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

    /// Returns the claim as text: numbers in decimal notation, arrays and objects as JSON. `None` if it is missing or
    /// `null`.
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
    fn ambiguous_path_is_refused() {
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
