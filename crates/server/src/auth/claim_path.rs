//! Ways to claims inside others: `deployment.region`.

use serde_json::Value;

/// The way to a claim. Names stand between dots; `\\` takes the next character as it is; a number is a place of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimPath(Vec<String>);

impl ClaimPath {
    pub(super) fn of(text: &str) -> ClaimPath {
        let mut names = vec![String::new()];
        let mut chars = text.chars();
        while let Some(next) = chars.next() {
            match (next, names.last_mut()) {
                ('.', _) => names.push(String::new()),
                ('\\', Some(name)) => name.extend(chars.next()),
                (next, Some(name)) => name.push(next),
                (_, None) => {}
            }
        }
        ClaimPath(names)
    }

    /// The value there as text: numbers in plain decimals, lists and objects as JSON. `None` where there is none, or `null`.
    pub(super) fn text(&self, claims: &Value) -> Option<String> {
        let step = |at: &'_ Value, name: &String| match at {
            Value::Object(members) => members.get(name).cloned(),
            Value::Array(list) => list.get(name.parse::<usize>().ok()?).cloned(),
            _ => None,
        };
        let mut found = step(claims, self.0.first()?)?;
        for name in &self.0[1..] {
            found = step(&found, name)?;
        }
        match found {
            Value::Null => None,
            Value::String(text) => Some(text),
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
            assert_eq!(ClaimPath::of(path).text(&claims).as_deref(), text, "{path}");
        }
    }
}
