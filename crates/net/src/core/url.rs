//! URLs of servers.

use std::path::PathBuf;
use std::str::FromStr;
use std::{fmt, io};

/// The URL of a server: `http://`, `https://`, `ws://` or `wss://` with a host, optionally a port, path and query; or
/// `unix:` and the path of a socket.
///
/// ```
/// use dunlin_net::{ServerAddr, Url};
///
/// let url: Url = "wss://a.example/chat?room=1".parse()?;
/// assert!(url.secure && url.target == "/chat?room=1");
/// assert_eq!(url.server, ServerAddr::Network { host: "a.example".into(), port: 443 });
/// # Ok::<(), dunlin_net::UrlError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    /// Where to connect.
    pub server: ServerAddr,
    /// Whether to use TLS.
    pub secure: bool,
    /// The value of `Host`.
    pub authority: String,
    /// Path and query.
    pub target: String,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddr {
    /// A name or an address, and a port.
    Network {
        /// Without the brackets of an IPv6 address.
        host: String,
        /// From 1 to 65535.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

/// Why a text is not a URL of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// None of `http://`, `https://`, `ws://`, `wss://` and `unix:`.
    #[error("the URL begins with none of http://, https://, ws://, wss:// and unix:")]
    Scheme,
    /// No host, or one with invalid characters.
    #[error("the URL has no valid host; write http://name:port, http://[::1]:port")]
    Host,
    /// A user name before the host.
    #[error(
        "the URL has a user name, which is sent to nobody; send an Authorization header instead"
    )]
    User,
    /// The port is not a number from 1 to 65535.
    #[error("the port of the URL is no number from 1 to 65535")]
    Port,
}

impl From<UrlError> for io::Error {
    fn from(error: UrlError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Url, UrlError> {
        if let Some(path) = url.strip_prefix("unix:") {
            let server = ServerAddr::Unix(PathBuf::from(path));
            let (authority, target) = ("localhost".to_owned(), "/".to_owned());
            return Ok(Url { server, secure: false, authority, target });
        }
        let (secure, rest) = [("http", false), ("https", true), ("ws", false), ("wss", true)]
            .into_iter()
            .find_map(|(scheme, secure)| {
                Some((secure, url.strip_prefix(scheme)?.strip_prefix("://")?))
            })
            .ok_or(UrlError::Scheme)?;
        let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(UrlError::User);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(UrlError::Host)?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or(UrlError::Port)?,
            None if port.is_empty() && secure => 443,
            None if port.is_empty() => 80,
            None => return Err(UrlError::Host),
        };
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        if host.is_empty() || !host.bytes().all(valid) {
            return Err(UrlError::Host);
        }
        let target = target.split('#').next().unwrap_or_default();
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Url {
            server: ServerAddr::Network { host: host.to_owned(), port },
            secure,
            authority: authority.to_owned(),
            target: format!("{slash}{target}"),
        })
    }
}

impl fmt::Display for Url {
    /// Writes scheme and authority, which identify the server in a client's errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            ServerAddr::Unix(path) => write!(f, "unix:{}", path.display()),
            ServerAddr::Network { .. } => {
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
    fn urls_that_lead_somewhere() {
        for (url, host, port, secure, target) in [
            ("http://a.example", "a.example", 80, false, "/"),
            ("https://a.example/x?y#z", "a.example", 443, true, "/x?y"),
            ("http://127.0.0.1:8000/", "127.0.0.1", 8000, false, "/"),
            ("wss://[::1]:8443?q", "::1", 8443, true, "/?q"),
            ("ws://a", "a", 80, false, "/"),
        ] {
            let parsed: Url = url.parse().expect(url);
            assert_eq!(parsed.server, ServerAddr::Network { host: host.to_owned(), port });
            assert_eq!((parsed.secure, parsed.target.as_str()), (secure, target));
        }
        let unix: Url = "unix:/run/a.sock".parse().expect("a path");
        assert_eq!(unix.server, ServerAddr::Unix("/run/a.sock".into()));
    }

    #[test]
    fn urls_that_lead_nowhere() {
        for (url, error) in [
            ("ftp://a", UrlError::Scheme),
            ("http://", UrlError::Host),
            ("http://a b", UrlError::Host),
            ("http://u@a", UrlError::User),
            ("http://u:secret@a:80/x", UrlError::User),
            ("http://a:0", UrlError::Port),
            ("http://a:99999", UrlError::Port),
            ("http://[::1", UrlError::Host),
        ] {
            assert_eq!(url.parse::<Url>(), Err(error), "{url}");
        }
    }
}
