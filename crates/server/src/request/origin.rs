//! Which web pages may connect: the `Origin` rule of `client.allowed_origins`.
//!
//! A browser names the page that a request comes from. Any other client may omit or forge the header, so the rule
//! protects a user's browser, not the server.

/// Why a request may connect, and so what its page may do in its visitor's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// It has no `Origin`, so it does not come from a page of another site.
    NoPage,
    /// The page is the server's own, or is named: it acts with its visitor's cookies.
    Named,
    /// Only because any page is admitted (`*`), or a page without an origin (`null`, a sandboxed frame of any site). Its
    /// visitor's cookies are not its own to use.
    Anybody,
}

/// Whether a request with this `Origin` may connect, and why.
///
/// An empty list admits only the server's own host, so that the page it serves works and no other does.
pub(crate) fn admitted(
    patterns: &[String],
    origin: Option<&str>,
    host: Option<&str>,
) -> Option<Admitted> {
    let Some(origin) = origin else { return Some(Admitted::NoPage) };
    let host_of_page = origin.split_once("://").map(|(_, rest)| rest);
    let is_own = match (host_of_page, host) {
        (Some(of_page), Some(of_server)) => of_page.eq_ignore_ascii_case(of_server),
        _ => false,
    };
    let is_named =
        |pattern: &String| pattern != "*" && origin != "null" && matches(pattern, origin);
    if patterns.iter().any(is_named) {
        return Some(Admitted::Named);
    }
    let is_any = patterns.iter().any(|pattern| matches(pattern, origin));
    match (is_own, is_any) {
        (true, _) if patterns.is_empty() || is_any => Some(Admitted::Named),
        (_, true) => Some(Admitted::Anybody),
        _ => None,
    }
}

/// Matches a pattern: `*` is any origin; a `*` inside a pattern stands for at least one character of the host.
fn matches(pattern: &str, origin: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern.eq_ignore_ascii_case(origin);
    };
    let (origin, head, tail) = (origin.as_bytes(), head.as_bytes(), tail.as_bytes());
    origin.len() > head.len() + tail.len()
        && origin[..head.len()].eq_ignore_ascii_case(head)
        && origin[origin.len() - tail.len()..].eq_ignore_ascii_case(tail)
        // The `*` must not match a `/`, an `@` or a second authority.
        && origin[head.len()..origin.len() - tail.len()]
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(patterns: &[&str]) -> Vec<String> {
        patterns.iter().map(|p| (*p).to_owned()).collect()
    }

    fn allowed(patterns: &[String], origin: Option<&str>, host: Option<&str>) -> bool {
        admitted(patterns, origin, host).is_some()
    }

    #[test]
    fn a_page_that_only_a_star_admits_is_nobody_in_particular() {
        let of = |patterns: &[&str], origin| {
            admitted(&list(patterns), Some(origin), Some("push.example.com"))
        };
        let named = "https://app.example.com";
        assert_eq!(of(&["*"], "https://evil.example"), Some(Admitted::Anybody));
        assert_eq!(of(&["*"], "null"), Some(Admitted::Anybody));
        assert_eq!(of(&["null"], "null"), Some(Admitted::Anybody));
        assert_eq!(of(&["*", named], named), Some(Admitted::Named));
        assert_eq!(of(&["*"], "https://push.example.com"), Some(Admitted::Named), "its own page");
        assert_eq!(of(&[named], "https://push.example.com"), None, "not even its own page");
        assert_eq!(of(&[named], "null"), None);
        assert_eq!(admitted(&list(&["*"]), None, None), Some(Admitted::NoPage));
    }

    #[test]
    fn without_a_list_only_the_own_host_connects() {
        assert!(allowed(&[], None, Some("push.example.com")));
        assert!(allowed(&[], Some("https://push.example.com"), Some("push.example.com")));
        assert!(allowed(&[], Some("http://127.0.0.1:8000"), Some("127.0.0.1:8000")));
        assert!(!allowed(&[], Some("https://evil.example"), Some("push.example.com")));
        assert!(!allowed(&[], Some("null"), Some("push.example.com")));
    }

    #[test]
    fn a_list_names_pages_and_subdomains() {
        let patterns = list(&["https://app.example.com", "https://*.example.org"]);
        assert!(allowed(&patterns, Some("https://APP.example.com"), None));
        assert!(allowed(&patterns, Some("https://a.b.example.org"), None));
        assert!(!allowed(&patterns, Some("https://example.org"), None));
        assert!(!allowed(&patterns, Some("https://evil.example/x.example.org"), None));
        assert!(!allowed(&patterns, Some("http://a.example.org"), None));
        assert!(allowed(&list(&["*"]), Some("https://anything"), None));
    }
}
