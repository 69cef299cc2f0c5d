//! Files with variables: `NAME=value` in each line, as Docker, systemd and Laravel read them.

use std::collections::BTreeMap;

/// Variables of an environment by their names.
pub type Variables = BTreeMap<String, String>;

/// Returns whether each line is a comment or sets a variable in upper case.
pub(super) fn is_environment(text: &str) -> bool {
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sets = |line: &str| {
        let line = line.strip_prefix("export ").unwrap_or(line);
        // TOML has blanks around the sign, and keys in lower case.
        line.split_once('=').is_some_and(|(name, _)| is_name(name.trim_end()))
    };
    lines.next().is_some_and(sets)
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Reads the variables of a file. A later line overrides an earlier one. `${NAME}` of an earlier line, or of `around`, is
/// replaced, except in single quotes; an unknown one remains as it is.
///
/// # Errors
/// The number of a line that is none, and why.
pub(super) fn parse(text: &str, around: &Variables) -> Result<Variables, (usize, &'static str)> {
    let mut variables = Variables::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=').ok_or((number, "it sets no variable"))?;
        let (name, value) = (name.trim(), value.trim_start());
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                let mut within = value[1..].to_owned();
                let end = loop {
                    if let Some(end) = closing(&within, quote) {
                        break end;
                    }
                    // A quoted value, such as a key in PEM, may have several lines.
                    let (_, next) = lines.next().ok_or((number, "its quote does not end"))?;
                    within.push('\n');
                    within.push_str(next);
                };
                within.truncate(end);
                match quote {
                    '"' => expanded(&unescaped(&within), &variables, around),
                    _ => within,
                }
            }
            _ => {
                let plain = value.split(" #").next().unwrap_or_default().trim_end();
                expanded(plain, &variables, around)
            }
        };
        variables.insert(name.to_owned(), value);
    }
    Ok(variables)
}

/// Returns where the closing quote is.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == quote && !is_escaped;
        is_escaped = quote == '"' && c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                Some(other @ ('"' | '\\' | '$')) => out.push(other),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            (c, false) => out.push(c),
        }
    }
    out
}

fn expanded(text: &str, variables: &Variables, around: &Variables) -> String {
    super::variables::expand(text, |name| variables.get(name).or_else(|| around.get(name)).cloned())
        .0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_quotes_comments_and_references_are_read_as_laravel_reads_them() {
        let text = "# a comment\nexport A=1\nB = two words # a comment\nC=\"x \\\"y\\\"\\n\"\nD='${A}'\nE=\"${A}-${MISSING}-${Z}\"\n\
                    KEY=\"-----BEGIN\nMII\n-----END\"\nF=\n";
        let around = Variables::from([("Z".to_owned(), "z".to_owned())]);
        let variables = parse(text, &around).unwrap();
        let get = |name: &str| variables.get(name).map(String::as_str);
        assert_eq!(
            (get("A"), get("B"), get("C")),
            (Some("1"), Some("two words"), Some("x \"y\"\n"))
        );
        assert_eq!((get("D"), get("E")), (Some("${A}"), Some("1-${MISSING}-z")));
        assert_eq!((get("KEY"), get("F")), (Some("-----BEGIN\nMII\n-----END"), Some("")));
        assert!(is_environment(text));
        assert_eq!(parse("A=1\nnothing\n", &around), Err((2, "it sets no variable")));
        assert_eq!(parse("A='1\n", &around), Err((1, "its quote does not end")));
        for other in ["a = 1\n", "A: 1\n", "{}", "", "[section]\nA=1"] {
            assert!(!is_environment(other), "{other}");
        }
    }
}
