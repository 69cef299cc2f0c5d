//! The server to load, as its URL names it.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::error::{Context, Error};

/// A URL, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) tls: bool,
    /// Host and port as the `Host` header has them; the port only where it is not the scheme's own.
    pub(crate) authority: String,
    /// The host alone, for the certificate.
    pub(crate) host: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) socket: SocketAddr,
}

impl Address {
    /// # Errors
    /// A URL that is none, or a host without an address; the sentence says what to write instead.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::new(format!("{url}: {why}; give a URL such as http://127.0.0.1:8500/hello"))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("there is no scheme"))?;
        let (tls, port) = match scheme {
            "http" => (false, 80),
            "https" => (true, 443),
            other => return Err(wrong(&format!("`{other}` is not http or https"))),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        if authority.is_empty() || authority.contains('@') {
            return Err(wrong("there must be a host, and no user name"));
        }
        let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
        let with_port = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        let host = with_port.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let socket = with_port
            .to_socket_addrs()
            .context(format!(
                "{url}: the name {host} does not resolve; check it, or give an address"
            ))?
            .min_by_key(SocketAddr::is_ipv6)
            .ok_or_else(|| wrong("the host has no address"))?;
        let target = if target.starts_with('?') { format!("/{target}") } else { target.to_owned() };
        Ok(Self { tls, authority: authority.to_owned(), host, target, socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_becomes_an_address_an_authority_and_a_target() {
        let address = Address::parse("http://127.0.0.1:8500/a?b=1#c").unwrap();
        assert_eq!(address.socket, SocketAddr::from(([127, 0, 0, 1], 8500)));
        assert_eq!(
            (address.tls, address.authority.as_str(), address.target.as_str()),
            (false, "127.0.0.1:8500", "/a?b=1")
        );
        let address = Address::parse("https://[::1]").unwrap();
        assert_eq!((address.host.as_str(), address.socket.port()), ("::1", 443));
        assert_eq!((address.tls, address.target.as_str()), (true, "/"));
        assert_eq!(Address::parse("http://127.0.0.1?x").unwrap().target, "/?x");
    }

    #[test]
    fn a_url_that_is_none_is_told_how_one_looks() {
        for url in ["127.0.0.1:8500", "ftp://127.0.0.1/", "http:///x", "http://a@127.0.0.1/"] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains("http://127.0.0.1:8500/hello"), "{error}");
        }
        let error = Address::parse("http://no-such-name.invalid/").unwrap_err().to_string();
        assert!(error.contains("no-such-name.invalid does not resolve"), "{error}");
    }
}
