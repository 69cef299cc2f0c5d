//! Patterns of names that are matched in one pass.

use std::borrow::Cow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Maximum length of a pattern; channel names are not longer.
const PATTERN_BYTES_MAX: usize = 255;

/// A pattern of names: `room-*`, `[0-9]*`, `user-??`. `dunlin_hub::glob` matches it.
///
/// `?` matches any one character, `[a-z0-9]` one of these, `[!a-z]` any other than these, `*` any text. At most one `*`
/// is allowed, so that matching never backtracks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, description = "What a name must look like.", extend("format" = "name-pattern"))]
pub struct Pattern(#[serde(deserialize_with = "parsed")] Arc<str>);

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub fn parse(text: &str) -> Result<Pattern, (String, String)> {
        let wrong = |what: String, fix: &str| Err((what, fix.to_owned()));
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            let fix = "write what a name looks like, as in \"room-*\", in at most 255 bytes";
            return wrong(format!("a pattern of {} bytes", text.len()), fix);
        }
        let mut has_star = false;
        let mut rest = text.chars();
        while let Some(character) = rest.next() {
            match character {
                '*' if has_star => {
                    let what = "with a second `*` a name would have to be tried again and again \
                                (backtracking)";
                    let fix = "use one `*`, and `?` or `[...]` for single characters";
                    return wrong(what.into(), fix);
                }
                '*' => has_star = true,
                '[' => {
                    let Some((class, after)) = rest.as_str().split_once(']') else {
                        return wrong("a `[` without its `]`".into(), "close it, as in `[a-z]`");
                    };
                    if !is_class(class) {
                        let fix = "name characters or ranges in their order, as in `[a-z0-9_]`";
                        return wrong(format!("`[{class}]` names no characters"), fix);
                    }
                    rest = after.chars();
                }
                '(' | ')' | '{' | '}' | '|' | '+' | '^' | '$' | '\\' | ']' => {
                    let what = format!(
                        "`{character}`: this is no regular expression, as those may backtrack"
                    );
                    return wrong(what, "use `?`, `[a-z]` and one `*`");
                }
                _ => {}
            }
        }
        Ok(Pattern(text.into()))
    }

    /// Returns the text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether a class has characters and its ranges are ascending.
fn is_class(class: &str) -> bool {
    let mut rest: &[char] = &class.strip_prefix('!').unwrap_or(class).chars().collect::<Vec<_>>();
    let is_empty = rest.is_empty();
    loop {
        rest = match rest {
            [] => return !is_empty,
            [first, '-', last, ..] if last < first => return false,
            [_, '-', _, rest @ ..] | [_, rest @ ..] => rest,
        };
    }
}

fn parsed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
    let text = Cow::<'_, str>::deserialize(deserializer)?;
    let parsed = Pattern::parse(&text).map(|pattern| pattern.0);
    parsed.map_err(|(wrong, fix)| D::Error::custom(format!("{wrong}; {fix}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_that_backtracks_is_refused_with_the_form_to_write() {
        for pattern in
            ["*a*", "**", "(a+)+$", "(.*a){20}", "a|b", "[", "[]", "[!]", "[z-a]", "", "a]"]
        {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
        for pattern in ["*", "room-*", "user-*-inbox", "[0-9]*", "??", "[!a-z]x", "[a-]"] {
            assert!(Pattern::parse(pattern).is_ok(), "{pattern}");
        }
        let (wrong, fix) = Pattern::parse("*a*b").unwrap_err();
        assert!(wrong.contains("backtracking") && fix.contains("one `*`"));
    }
}
