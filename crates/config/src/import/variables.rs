//! References to variables in values: `${NAME}`.
//!
//! Centrifugo replaces `${CENTRIFUGO_VAR_NAME}` in headers for backends and in replacements of channels, and does not start
//! without the variable. In all other places such a text is what a tool in front of Centrifugo was to replace (`envsubst`,
//! Compose, Helm). So a reference is replaced wherever its variable is known, and what has another one left is not taken.

use serde_json::Value;

/// Replaces references to variables that `find` knows. Returns the text, and whether a reference is left.
pub(super) fn expand(text: &str, find: impl Fn(&str) -> Option<String>) -> (String, bool) {
    let (mut out, mut is_left) = (String::new(), false);
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find('}').map(|end| (end, &rest[2..end]));
        let Some((end, reference)) = end else { break };
        // A default after the name, as in Compose, is not used: it may be there to be overridden.
        let name = reference.split(":-").next().unwrap_or_default();
        let value = find(name).filter(|value| is_name(name) && !value.is_empty());
        match value {
            Some(value) => out.push_str(&value),
            None => {
                is_left |= is_name(name);
                out.push_str(&rest[..=end]);
            }
        }
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    (out, is_left)
}

/// Returns whether a reference is in the text.
pub(super) fn has_reference(text: &str) -> bool {
    expand(text, |_| None).1 || text.contains("{{")
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Replaces references in all texts of a document.
pub(super) fn expand_all(document: &mut Value, find: &impl Fn(&str) -> Option<String>) {
    match document {
        Value::String(text) if text.contains("${") => *text = expand(text, find).0,
        Value::Array(list) => list.iter_mut().for_each(|value| expand_all(value, find)),
        Value::Object(object) => object.values_mut().for_each(|value| expand_all(value, find)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_known_variables_are_replaced_and_others_reported() {
        let find = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected, is_left) in [
            ("${A}", "1", false),
            ("x${A}y${B}", "x1y${B}", true),
            ("${B:-2}", "${B:-2}", true),
            ("${A:-2}", "1", false),
            ("$A ${ ${a-b} $", "$A ${ ${a-b} $", false),
            ("^[a-z]{2}$", "^[a-z]{2}$", false),
        ] {
            assert_eq!(expand(text, find), (expected.to_owned(), is_left), "{text}");
        }
        assert!(
            has_reference("${B}") && has_reference("{{ .Values.key }}") && !has_reference("$B{1}")
        );
    }
}
