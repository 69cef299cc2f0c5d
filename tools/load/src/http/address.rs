//! The URL of the server, and the addresses it resolves to.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dunlin_net::{Url, UrlError};

use super::resolve;
use crate::Error;
use crate::transport::PeerAddr;

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) tls: bool,
    /// Host and port as in the `Host` header; without the port if it is the scheme's default.
    pub(crate) authority: String,
    /// The host alone, for the certificate and the resolver.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query.
    pub(crate) target: String,
}

/// Where to open connections to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResolvedAddress {
    /// At least one address; the one that connected first comes first.
    Network(Vec<SocketAddr>),
    Unix(PathBuf),
}

impl Address {
    /// Parses a URL, without resolving the host.
    ///
    /// # Errors
    /// An invalid URL; the message shows a valid one.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::new(format!("{url}: {why}; give a URL such as http://127.0.0.1:8500/hello"))
        };
        let parsed: Url = url.parse().map_err(|error: UrlError| match error {
            UrlError::User => {
                wrong("there must be no user name; send it with -H 'Authorization: …'")
            }
            error => wrong(&error.to_string()),
        })?;
        let dunlin_net::ServerAddr::Network { host, port } = parsed.server else {
            return Err(wrong("a socket of the file system is named with --unix-socket"));
        };
        let Url { secure: tls, authority, target, .. } = parsed;
        Ok(Self { tls, authority, host, port, target })
    }

    /// Returns `unix_socket` if given, otherwise the addresses of the host. Several addresses are raced (RFC 8305), so
    /// that an unreachable one causes no delay.
    ///
    /// # Errors
    /// A name that does not resolve within `timeout`.
    pub(crate) fn resolve(
        &self,
        unix_socket: Option<&Path>,
        timeout: Duration,
    ) -> Result<ResolvedAddress, Error> {
        if let Some(path) = unix_socket {
            return Ok(ResolvedAddress::Unix(path.to_owned()));
        }
        let addresses = resolve::addresses(&self.host, self.port, timeout)?;
        Ok(ResolvedAddress::Network(resolve::race(addresses, timeout)))
    }
}

impl ResolvedAddress {
    /// Returns the address to use after `attempt` consecutive failures: all addresses of a host are tried in turn.
    pub(super) fn of_attempt(&self, attempt: u32) -> PeerAddr<'_> {
        match self {
            Self::Unix(path) => PeerAddr::Unix(path),
            Self::Network(addresses) => {
                PeerAddr::Network(addresses[attempt as usize % addresses.len()])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_becomes_a_host_a_port_an_authority_and_a_target() {
        let address = Address::parse("http://127.0.0.1:8500/a?b=1#c").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("127.0.0.1", 8500));
        assert_eq!(
            (address.tls, address.authority.as_str(), address.target.as_str()),
            (false, "127.0.0.1:8500", "/a?b=1")
        );
        let address = Address::parse("https://[::1]").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 443));
        assert_eq!((address.tls, address.target.as_str()), (true, "/"));
        let address = Address::parse("http://[::1]:81/").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 81));
        assert_eq!(Address::parse("http://127.0.0.1?x").unwrap().target, "/?x");
    }

    #[test]
    fn a_url_that_is_none_is_reported_how_one_looks() {
        for url in [
            "127.0.0.1:8500",
            "ftp://127.0.0.1/",
            "http:///x",
            "http://a@127.0.0.1/",
            "http://a:b/",
            "http://a:99999/",
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains("http://127.0.0.1:8500/hello"), "{error}");
        }
    }

    #[test]
    fn every_address_of_a_host_has_its_turn() {
        let addresses = ["[::1]:1", "127.0.0.1:1"].map(|address| address.parse().unwrap());
        let resolved = ResolvedAddress::Network(addresses.to_vec());
        let turns = [0, 1, 2].map(|attempt| match resolved.of_attempt(attempt) {
            PeerAddr::Network(address) => address,
            PeerAddr::Unix(path) => panic!("{path:?}"),
        });
        assert_eq!(turns, [addresses[0], addresses[1], addresses[0]]);
    }
}
