//! Regular expressions of settings and tokens, by `regex`: linear time in the text for any expression, and bounded memory.

use regex::{Regex, RegexBuilder};

/// The longest expression, in bytes.
const BYTES_MAX: usize = 1_024;
/// The memory limit of a compiled expression, and of the search cache, in bytes.
const COMPILED_BYTES_MAX: usize = 64 << 10;
const NESTED_MAX: u32 = 32;

/// The advice for an expression that does not compile.
pub(crate) const FIX: &str = "write it as in \"^[a-z]+:[0-9]+$\", in at most 1024 bytes";

/// Compiles an expression.
///
/// # Errors
/// It does not compile, or is too large.
pub(crate) fn compile(text: &str) -> Result<Regex, String> {
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
        assert!(compile("^[a-z]+$").unwrap().is_match("abc"));
        for bad in
            ["(", "a{1000}{1000}", &"(".repeat(99), &"a".repeat(2_000), r"\pL{300}", r"(a)\1"]
        {
            assert!(compile(bad).is_err(), "{bad}");
        }
        // Backtracking would take exponential time.
        assert!(!compile("^(a+)+$").unwrap().is_match(&format!("{}b", "a".repeat(255))));
    }
}
