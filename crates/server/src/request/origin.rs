//! Which web pages may connect: the `Origin` rule of `client.allowed_origins`.
//!
//! A browser names the page that a request comes from. Any other client may omit or forge the header, so the rule
//! protects a user's browser, not the server.

/// Whether a request with this `Origin` may connect.
///
/// A request without the header does not come from a browser and is allowed. An empty list allows only the server's own
/// host, so that the page it serves works and no other does.
pub(crate) fn allowed(patterns: &[String], origin: Option<&str>, host: Option<&str>) -> bool {
    let Some(origin) = origin else { return true };
    if patterns.is_empty() {
        let origin_host = origin.split_once("://").map(|(_, rest)| rest);
        return match (origin_host, host) {
            (Some(of_page), Some(of_server)) => of_page.eq_ignore_ascii_case(of_server),
            _ => false,
        };
    }
    patterns.iter().any(|pattern| matches(pattern, origin))
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
