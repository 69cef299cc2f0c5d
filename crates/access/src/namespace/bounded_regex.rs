//! Regular expressions of settings and tokens, by `regex`: linear time in the text for any expression, and bounded memory.

use std::fmt::Display;

use regex::{Regex, RegexBuilder};

/// The longest expression, in bytes.
const BYTES_MAX: usize = 1_024;
/// The memory limit of a compiled expression, and of the search cache, in bytes.
const COMPILED_BYTES_MAX: usize = 64 << 10;
const NESTED_MAX: u32 = 32;

/// The advice for an expression that does not compile.
pub const FIX: &str = "write it as in \"^[a-z]+:[0-9]+$\", in at most 1024 bytes";

/// An expression that restricts or grants something. One that does not compile matches nothing: there is no error that a
/// caller could take for "no restriction".
#[derive(Clone, Debug)]
pub(crate) struct BoundedRegex {
    text: Box<str>,
    compiled: Option<Regex>,
}

impl BoundedRegex {
    /// Compiles the expression of a token. The backend that signed it is responsible for its form.
    pub(crate) fn of_token(text: &str) -> BoundedRegex {
        BoundedRegex { text: text.into(), compiled: compile(text).ok() }
    }

    /// Compiles the expression of a setting. [`judge`] has refused one that does not compile; should one get here all the
    /// same, the log says that it admits nothing.
    pub(crate) fn of_setting(key: impl Display, text: &str) -> BoundedRegex {
        let compiled = compile(text).map_err(|error| {
            tracing::error!(%key, error, "closed: this expression does not compile, so nothing matches it");
        });
        BoundedRegex { text: text.into(), compiled: compiled.ok() }
    }

    /// Whether it matches somewhere in a text.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.compiled.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

impl PartialEq for BoundedRegex {
    fn eq(&self, other: &BoundedRegex) -> bool {
        self.text == other.text
    }
}

/// Validates an expression.
///
/// # Errors
/// It does not compile, or is too large.
pub fn judge(text: &str) -> Result<(), String> {
    compile(text).map(drop)
}

fn compile(text: &str) -> Result<Regex, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("it has more than {BYTES_MAX} bytes"));
    }
    let mut builder = RegexBuilder::new(text);
    let bounded = builder.size_limit(COMPILED_BYTES_MAX).dfa_size_limit(COMPILED_BYTES_MAX);
    bounded.nest_limit(NESTED_MAX).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it takes too much memory".to_owned(),
        // The last line names the error; those before it show the position.
        error => error.to_string().lines().last().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_made_to_be_slow_or_large_is_refused_or_fast() {
        assert!(BoundedRegex::of_token("^[a-z]+$").is_match("abc"));
        for bad in
            ["(", "a{1000}{1000}", &"(".repeat(99), &"a".repeat(2_000), r"\pL{300}", r"(a)\1"]
        {
            assert!(judge(bad).is_err(), "{bad}");
        }
        // Backtracking would take exponential time.
        let long = format!("{}b", "a".repeat(255));
        assert!(!BoundedRegex::of_token("^(a+)+$").is_match(&long));
    }

    #[test]
    fn an_expression_that_does_not_compile_matches_nothing() {
        for bad in ["^[a-z+$", "(", "a{1000}{1000}"] {
            for regex in [BoundedRegex::of_token(bad), BoundedRegex::of_setting("key", bad)] {
                assert!(["", "a", "(", bad].iter().all(|text| !regex.is_match(text)), "{bad}");
            }
        }
    }
}
