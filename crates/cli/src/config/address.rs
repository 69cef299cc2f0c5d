//! The address of an admin port (TCP, TLS or a Unix socket), and how to connect to it.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use dunlin_net::Tls;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConnection, StreamOwned};

use crate::error::CliError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than the longest canary run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(330);
/// A connection to an admin port.
pub(super) trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// The address of an admin port.
pub(super) enum AdminAddress {
    /// Plain HTTP at `HOST:PORT`.
    Tcp(String),
    /// HTTP over TLS at `HOST:PORT`.
    Tls(String, Tls),
    /// The socket at this path.
    Unix(String),
}

/// The PEM files of a TLS connection; without `ca` the system's root certificates are trusted.
#[derive(Default)]
pub(super) struct TlsFiles {
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) cert_key: Option<String>,
}

impl AdminAddress {
    /// Parses `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. A URL without a port means its
    /// scheme's default port.
    pub(super) fn parse(text: &str, files: &TlsFiles) -> Result<AdminAddress, CliError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(AdminAddress::Unix(path.to_owned()));
        }
        let (authority, default_port) = match text.split_once("://") {
            Some(("https", rest)) => (rest, Some(443)),
            Some(("http", rest)) => (rest, Some(80)),
            _ => (text, None),
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        if authority.is_empty() || authority.contains(['/', '?', '#', '@']) {
            let wanted = "HOST:PORT, https://HOST:PORT or unix:PATH";
            return Err(format!("--admin {text} is not an address; write {wanted}").into());
        }
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let authority = match (port, default_port) {
            (None, Some(port)) => format!("{authority}:{port}"),
            _ => authority.to_owned(),
        };
        Ok(match default_port {
            Some(443) => AdminAddress::Tls(authority, files.open()?),
            _ => AdminAddress::Tcp(authority),
        })
    }

    /// Returns the value of the `Host` header; a Unix socket has no host name.
    pub(super) fn host(&self) -> &str {
        match self {
            AdminAddress::Tcp(authority) | AdminAddress::Tls(authority, _) => authority,
            AdminAddress::Unix(_) => "localhost",
        }
    }

    pub(super) fn connect(&self) -> Result<Box<dyn Stream>, CliError> {
        match self {
            AdminAddress::Unix(path) => {
                let stream = UnixStream::connect(path)
                    .and_then(|stream| {
                        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map(|()| stream)
                    })
                    .map_err(|error| format!("no server answers at {path}: {error}"))?;
                Ok(Box::new(stream))
            }
            AdminAddress::Tcp(authority) => Ok(Box::new(self.dial(authority)?)),
            AdminAddress::Tls(authority, tls) => {
                let name = authority.rsplit_once(':').map_or(&authority[..], |(host, _)| host);
                let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(name)
                    .map_err(|error| format!("--admin {self} has no valid host name: {error}"))?;
                let connection = ClientConnection::new(tls.config().clone(), name)?;
                Ok(Box::new(StreamOwned::new(connection, self.dial(authority)?)))
            }
        }
    }

    fn dial(&self, authority: &str) -> Result<TcpStream, CliError> {
        let addresses = authority.to_socket_addrs().map_err(|error| {
            format!("{authority} is no address: {error}; write --admin 127.0.0.1:8001")
        })?;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(format!(
            "no server answers at {self}: {last}; start one with `dunlin serve`, or name its admin port \
             with --admin"
        )
        .into())
    }

    /// Explains a TLS error and how to fix it. Returns `None` for other errors.
    pub(super) fn tls_fault(&self, error: &io::Error) -> Option<String> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        let fix = match error {
            rustls::Error::InvalidMessage(_) => {
                return Some(format!(
                    "{self} does not speak TLS; write --admin http://{}",
                    self.host()
                ));
            }
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                "give the certificate that signed the server's with --ca FILE"
            }
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => "write a name of the certificate in --admin",
            rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            ) => "renew the server's certificate, or check this machine's clock",
            rustls::Error::AlertReceived(
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired
                | AlertDescription::HandshakeFailure,
            ) => {
                "if admin_ingress.client_ca is set, give a certificate that it signed with --cert FILE and --cert-key FILE"
            }
            _ => "see docs/operating/tls.md",
        };
        Some(format!("TLS to {self} failed: {error}; {fix}"))
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminAddress::Tcp(authority) => f.write_str(authority),
            AdminAddress::Tls(authority, _) => write!(f, "https://{authority}"),
            AdminAddress::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

impl TlsFiles {
    fn open(&self) -> Result<Tls, CliError> {
        let read = |flag: &str, path: &str| {
            fs::read(path).map_err(|error| format!("cannot read {flag} {path}: {error}"))
        };
        let mut tls = match &self.ca {
            Some(path) => Tls::with_roots(&read("--ca", path)?)
                .map_err(|error| format!("cannot use --ca {path}: {error}"))?,
            None => Tls::system()?,
        };
        match (&self.cert, &self.cert_key) {
            (Some(cert), Some(key)) => {
                tls = tls
                    .with_client_certificate(&read("--cert", cert)?, &read("--cert-key", key)?)
                    .map_err(|error| format!("cannot use --cert {cert}: {error}"))?;
            }
            (None, None) => {}
            _ => return Err("give both --cert and --cert-key, or neither".into()),
        }
        Ok(tls)
    }
}

/// Connects to a socket that a server named, if it belongs to this user or to root. Another user who serves the address
/// could name any socket.
pub(super) fn own_socket(path: &Path) -> Option<Box<dyn Stream>> {
    let owner = fs::metadata(path).ok()?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return None;
    }
    let stream = UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    Some(Box::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_port_a_url_or_a_socket() {
        let shown = |text: &str| {
            AdminAddress::parse(text, &TlsFiles::default()).map(|address| address.to_string())
        };
        for (text, is) in [
            ("127.0.0.1:8001", "127.0.0.1:8001"),
            ("http://node-2:8001/", "node-2:8001"),
            ("http://node-2", "node-2:80"),
            ("https://node-2", "https://node-2:443"),
            ("https://[::1]:8001", "https://[::1]:8001"),
            ("https://[::1]", "https://[::1]:443"),
            ("unix:/run/dunlin/admin-socket", "unix:/run/dunlin/admin-socket"),
        ] {
            assert_eq!(shown(text).unwrap(), is);
        }
        for text in ["", "https://", "https://node-2/config", "ftp://node-2:8001", "http://a@b"] {
            let error = shown(text).unwrap_err().to_string();
            assert!(error.contains("write HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn a_client_certificate_needs_its_key() {
        let files = TlsFiles { cert: Some("chain.pem".to_owned()), ..TlsFiles::default() };
        let error = AdminAddress::parse("https://node-2:8001", &files).err().unwrap().to_string();
        assert!(error.contains("--cert-key"), "{error}");
    }
}
