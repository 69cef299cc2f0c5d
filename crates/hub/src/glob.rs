//! Patterns of channel names, as shells have them. Each is used for one walk over names, so it is matched as it is, within
//! bounds; the crate `globset` would compile a regular expression for that.

/// Most alternatives a pattern's braces may multiply to.
const ALTERNATIVES_MAX: usize = 256;
/// Longest pattern in bytes.
const PATTERN_BYTES_MAX: usize = 1024;

/// Expands `{a,b}` into patterns without braces. `None` for a pattern that is malformed, too long
/// or stands for too many.
pub(crate) fn expand(pattern: &str) -> Option<Vec<String>> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return None;
    }
    let mut done = Vec::new();
    let mut open = vec![pattern.to_owned()];
    while let Some(pattern) = open.pop() {
        if open.len() + done.len() >= ALTERNATIVES_MAX {
            return None;
        }
        let Some((start, end)) = braces(&pattern)? else {
            done.push(pattern);
            continue;
        };
        let inner = &pattern[start + 1..end];
        for alternative in alternatives(inner) {
            open.push(format!("{}{alternative}{}", &pattern[..start], &pattern[end + 1..]));
        }
    }
    done.reverse();
    done.iter().all(|pattern| is_wellformed(pattern)).then_some(done)
}

/// True when a pattern may stand for other names than its own.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// True when `name` is what `pattern`, without braces, describes: `*` any characters, `?` any
/// one, `[a-z]` and `[!a-z]` one of a class, `\` takes the next literally. Linear in the name for
/// each star.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (mut at, mut rest) = (pattern, name);
    // Where to go on when the text after the last star does not fit: one character later.
    let mut retry: Option<(&str, &str)> = None;
    loop {
        if let Some(after) = at.strip_prefix('*') {
            retry = Some((after, rest));
            at = after;
            continue;
        }
        if at.is_empty() && rest.is_empty() {
            return true;
        }
        if let Some(next) = step(at, rest) {
            (at, rest) = next;
            continue;
        }
        let Some((after, from)) = retry else { return false };
        let mut chars = from.chars();
        if chars.next().is_none() {
            return false;
        }
        retry = Some((after, chars.as_str()));
        (at, rest) = (after, chars.as_str());
    }
}

/// Matches one character with one element; what is left of both.
fn step<'a>(pattern: &'a str, name: &'a str) -> Option<(&'a str, &'a str)> {
    let mut rest = name.chars();
    let character = rest.next()?;
    let mut elements = pattern.chars();
    let fits = match elements.next()? {
        '?' => true,
        '\\' => elements.next()? == character,
        '[' => {
            let (class, after) = elements.as_str().split_once(']')?;
            elements = after.chars();
            in_class(class, character)
        }
        literal => literal == character,
    };
    fits.then_some((elements.as_str(), rest.as_str()))
}

fn in_class(class: &str, character: char) -> bool {
    let (class, wanted) = match class.strip_prefix('!') {
        Some(class) => (class, false),
        None => (class, true),
    };
    let mut members = class.chars();
    let mut found = false;
    while let Some(first) = members.next() {
        let mut ahead = members.clone();
        let last = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(last)) => {
                members = ahead;
                last
            }
            _ => first,
        };
        found |= (first..=last).contains(&character);
    }
    found == wanted
}

/// The first outermost pair of braces; `None` inside: there is none; `None` outside: unbalanced.
fn braces(pattern: &str) -> Option<Option<(usize, usize)>> {
    let mut depth = 0usize;
    let mut start = 0;
    let mut escaped = false;
    for (at, character) in pattern.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => {
                if depth == 0 {
                    start = at;
                }
                depth += 1;
            }
            '}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(Some((start, at)));
                }
            }
            _ => {}
        }
    }
    (depth == 0).then_some(None)
}

/// Splits at commas outside inner braces.
fn alternatives(inner: &str) -> Vec<&str> {
    let mut frames = Vec::new();
    let (mut depth, mut start, mut escaped) = (0, 0, false);
    for (at, character) in inner.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                frames.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    frames.push(&inner[start..]);
    frames
}

fn is_wellformed(pattern: &str) -> bool {
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        match character {
            '\\' if rest.next().is_none() => return false,
            '[' => match rest.as_str().split_once(']') {
                Some((_, after)) => rest = after.chars(),
                None => return false,
            },
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, name: &str) -> bool {
        expand(pattern).expect("wellformed").iter().any(|pattern| matches(pattern, name))
    }

    #[test]
    fn patterns_match_as_shells_do() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "chat:1"),
            ("chat:*", "chat:"),
            ("chat:?", "chat:é"),
            ("*:*:end", "a:b:c:end"),
            ("{chat,news}:[0-9]", "news:7"),
            ("{a,b{c,d}}", "bd"),
            ("\\*", "*"),
            ("[!a-c]x", "dx"),
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
            ("", "a"),
            ("chat:*", "chat"),
            ("?", ""),
            ("[a-c]", "d"),
            ("\\*", "a"),
            ("{a,b}", "c"),
            ("a*b*c", "ab"),
            ("room-*", "room"),
            ("ab*ba", "aba"),
            ("room", "room1"),
            ("[!a-c]", "b"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn malformed_pattern_is_refused() {
        for pattern in ["{", "}", "{a", "[", "\\", &"{a,b}".repeat(10), &"a".repeat(2000)] {
            assert_eq!(expand(pattern), None, "{pattern}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_pattern_or_none_and_any_name_fits_it_or_not(
            pattern in "[a-c*?!{}\\[\\],\\\\é-]{0,12}",
            name in "[a-cé-]{0,8}",
        ) {
            for pattern in expand(&pattern).into_iter().flatten() {
                matches(&pattern, &name);
            }
            proptest::prop_assert!(fits("*", &name));
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        assert!(!fits(&"a*".repeat(100), &format!("{}b", "a".repeat(99))));
    }
}
