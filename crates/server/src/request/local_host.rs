//! Checks that a request names this machine by a name that foreign DNS cannot resolve to it.
//!
//! Without keys, a request is only accepted because it comes from this machine. But any web page whose name resolves to
//! 127.0.0.1 (DNS rebinding) makes a browser on this machine send requests here. A page cannot choose the `Host` that its
//! browser sends: it is the page's own name.

use std::net::IpAddr;

/// Whether `Host` is an address, `localhost` or a subdomain of it, or a name without a dot, which no web site has.
///
/// A request without the header, as HTTP/1.0 allows, does not come from a browser.
pub(crate) fn is_local(host: Option<&str>) -> bool {
    let Some(host) = host else { return true };
    if let Some(v6) = host.strip_prefix('[') {
        return v6.split_once(']').is_some_and(|(v6, _)| v6.parse::<IpAddr>().is_ok());
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let last = name.rsplit('.').next().unwrap_or("");
    name.parse::<IpAddr>().is_ok() || !name.contains('.') || last.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_web_site_may_have_is_not_this_machine() {
        for host in
            ["127.0.0.1", "127.0.0.1:8001", "[::1]:8001", "localhost:8001", "10.0.0.7", "dunlin"]
        {
            assert!(is_local(Some(host)), "{host}");
        }
        assert!(is_local(Some("dunlin.localhost:8001")) && is_local(None));
        for host in [
            "evil.example",
            "evil.example:8001",
            "127.0.0.1.evil.example",
            "localhost.evil.example:8001",
            "evil.example.",
            "[::1",
            "[evil]:80",
        ] {
            assert!(!is_local(Some(host)), "{host}");
        }
    }
}
