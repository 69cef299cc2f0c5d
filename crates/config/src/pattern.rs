//! Patterns of names that are judged in one pass.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest pattern; a channel's name is not longer.
const PATTERN_BYTES_MAX: usize = 255;

/// What a name must look like: `room-*`, `[0-9]*`, `user-??`.
///
/// `?` is any one character, `[a-z0-9]` one of these, `[!a-z]` one of none of these, `*` any text.
/// With one `*` at most, what stands before it is compared with the head of a name and what stands
/// behind it with the tail: no name makes it backtrack.
#[derive(Clone)]
pub struct Pattern {
    text: Arc<str>,
    parts: Arc<Parts>,
}

struct Parts {
    head: Vec<Element>,
    /// What follows the `*`; `None` without one.
    tail: Option<Vec<Element>>,
}

enum Element {
    Character(char),
    Any,
    Class { ranges: Vec<(char, char)>, negated: bool },
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong with it and what to write instead.
    pub fn parse(text: &str) -> Result<Pattern, (String, String)> {
        let wrong = |what: String, fix: &str| Err((what, fix.to_owned()));
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            let fix = "write what a name looks like, as in \"room-*\", in at most 255 bytes";
            return wrong(format!("a pattern of {} bytes", text.len()), fix);
        }
        let mut head = Vec::new();
        let mut tail: Option<Vec<Element>> = None;
        let mut rest = text.chars();
        while let Some(character) = rest.next() {
            let element = match character {
                '*' if tail.is_some() => {
                    return wrong(
                        "with a second `*` a name would have to be tried again and again \
                         (backtracking)"
                            .into(),
                        "use one `*`, and `?` or `[...]` for single characters",
                    );
                }
                '*' => {
                    tail = Some(Vec::new());
                    continue;
                }
                '?' => Element::Any,
                '[' => {
                    let Some((class, after)) = rest.as_str().split_once(']') else {
                        return wrong("a `[` without its `]`".into(), "close it, as in `[a-z]`");
                    };
                    rest = after.chars();
                    let Some(class) = Element::class(class) else {
                        let fix = "name characters or ranges in their order, as in `[a-z0-9_]`";
                        return wrong(format!("`[{class}]` names no characters"), fix);
                    };
                    class
                }
                '(' | ')' | '{' | '}' | '|' | '+' | '^' | '$' | '\\' | ']' => {
                    return wrong(
                        format!(
                            "`{character}`: this is no regular expression, as those may backtrack"
                        ),
                        "use `?`, `[a-z]` and one `*`",
                    );
                }
                character => Element::Character(character),
            };
            tail.as_mut().unwrap_or(&mut head).push(element);
        }
        Ok(Pattern { text: text.into(), parts: Arc::new(Parts { head, tail }) })
    }

    /// Whether a name looks like this. One pass over the name.
    pub fn matches(&self, name: &str) -> bool {
        let mut rest = name.chars();
        let fits = |element: &Element, character: Option<char>| {
            character.is_some_and(|character| element.fits(character))
        };
        if !self.parts.head.iter().all(|element| fits(element, rest.next())) {
            return false;
        }
        match &self.parts.tail {
            Some(tail) => tail.iter().rev().all(|element| fits(element, rest.next_back())),
            None => rest.next().is_none(),
        }
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Element {
    fn class(class: &str) -> Option<Element> {
        let (class, negated) = match class.strip_prefix('!') {
            Some(class) => (class, true),
            None => (class, false),
        };
        let members: Vec<char> = class.chars().collect();
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < members.len() {
            let (last, width) = match members.get(at + 1..at + 3) {
                Some(['-', last]) => (*last, 3),
                _ => (members[at], 1),
            };
            if last < members[at] {
                return None;
            }
            ranges.push((members[at], last));
            at += width;
        }
        (!ranges.is_empty()).then_some(Element::Class { ranges, negated })
    }

    fn fits(&self, character: char) -> bool {
        match self {
            Element::Character(own) => *own == character,
            Element::Any => true,
            Element::Class { ranges, negated } => {
                let within = |(first, last): &(char, char)| (*first..=*last).contains(&character);
                ranges.iter().any(within) != *negated
            }
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pattern, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        Pattern::parse(&text).map_err(|(wrong, fix)| D::Error::custom(format!("{wrong}; {fix}")))
    }
}

impl JsonSchema for Pattern {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Pattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "name-pattern" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern).expect("a pattern").matches(name)
    }

    #[test]
    fn head_and_tail_are_compared_and_the_star_takes_the_rest() {
        for (pattern, name) in [
            ("*", ""),
            ("room-*", "room-"),
            ("room-*", "room-17"),
            ("*-inbox", "ada-inbox"),
            ("user-*-inbox", "user-7-inbox"),
            ("[0-9]*", "7th"),
            ("??", "ab"),
            ("[!a-z]x", "Äx"),
            ("[a-]", "-"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("room-*", "room"),
            ("ab*ba", "aba"),
            ("?", ""),
            ("room", "room1"),
            ("[a-c]", "d"),
            ("[!a-c]", "b"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn what_would_backtrack_is_refused_with_what_to_write() {
        for pattern in ["*a*", "**", "(a+)+$", "(.*a){20}", "a|b", "[", "[]", "[z-a]", "", "a]"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
        let (wrong, fix) = Pattern::parse("*a*b").unwrap_err();
        assert!(wrong.contains("backtracking") && fix.contains("one `*`"));
    }
}
