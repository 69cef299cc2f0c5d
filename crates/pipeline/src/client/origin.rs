//! Where a host is reached.

use std::fmt;
use std::path::PathBuf;

/// Where a host is reached, read from a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) place: Place,
    /// Whether to speak TLS.
    pub(crate) secure: bool,
    /// What stands in `Host`.
    pub(crate) authority: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// A name or an address, and a port.
    Network { host: String, port: u16 },
    /// A socket in the file system.
    Unix(PathBuf),
}

/// A URL that no client can ask.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadUrl {
    /// Neither `http://`, `https://` nor `unix:`.
    Scheme,
    /// No host, or one with bytes that hosts do not have.
    Host,
    /// No number from 1 to 65535 behind the colon.
    Port,
}

impl fmt::Display for BadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadUrl::Scheme => "the URL begins with none of http://, https:// and unix:",
            BadUrl::Host => "the URL has no valid host; write http://name:port, http://[::1]:port",
            BadUrl::Port => "the port of the URL is no number from 1 to 65535",
        })
    }
}

impl std::error::Error for BadUrl {}

impl Origin {
    /// Reads `http://host[:port]`, `https://host[:port]` and `unix:/path`; what follows the authority is ignored.
    pub(crate) fn parse(url: &str) -> Result<Origin, BadUrl> {
        if let Some(path) = url.strip_prefix("unix:") {
            let place = Place::Unix(PathBuf::from(path));
            return Ok(Origin { place, secure: false, authority: "localhost".to_owned() });
        }
        let (secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(BadUrl::Scheme),
        };
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(BadUrl::Host)?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or(BadUrl::Port)?,
            None if port.is_empty() => {
                if secure {
                    443
                } else {
                    80
                }
            }
            None => return Err(BadUrl::Host),
        };
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        if host.is_empty() || !host.bytes().all(valid) {
            return Err(BadUrl::Host);
        }
        let place = Place::Network { host: host.to_owned(), port };
        Ok(Origin { place, secure, authority: authority.to_owned() })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
            Place::Network { .. } => {
                let scheme = if self.secure { "https" } else { "http" };
                write!(f, "{scheme}://{}", self.authority)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_can_be_asked() {
        for (url, host, port, secure) in [
            ("http://a.example", "a.example", 80, false),
            ("https://a.example/x?y", "a.example", 443, true),
            ("http://127.0.0.1:8000/", "127.0.0.1", 8000, false),
            ("https://[::1]:8443", "::1", 8443, true),
        ] {
            let origin = Origin::parse(url).expect(url);
            assert_eq!(origin.place, Place::Network { host: host.to_owned(), port });
            assert_eq!(origin.secure, secure);
        }
        let unix = Origin::parse("unix:/run/a.sock").expect("a path");
        assert_eq!(unix.place, Place::Unix("/run/a.sock".into()));
    }

    #[test]
    fn urls_that_cannot() {
        for (url, error) in [
            ("ftp://a", BadUrl::Scheme),
            ("http://", BadUrl::Host),
            ("http://a b", BadUrl::Host),
            ("http://u@a", BadUrl::Host),
            ("http://a:0", BadUrl::Port),
            ("http://a:99999", BadUrl::Port),
            ("http://[::1", BadUrl::Host),
        ] {
            assert_eq!(Origin::parse(url), Err(error), "{url}");
        }
    }
}
