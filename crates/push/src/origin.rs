//! The address of a service, and how to connect to it.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::key_text;

/// How a service is reached: its address, the roots to trust, the client certificate and the proxy.
#[derive(Debug)]
pub struct Origin {
    /// The host name. It is looked up for each connection and verified in the certificate.
    pub host: String,
    /// The port; Apple listens on 443 and 2197.
    pub port: u16,
    /// Connect to this address instead of `host`, directly or through the proxy: a test server, or one of several
    /// addresses.
    pub address: Option<String>,
    /// The proxy.
    pub proxy: Option<Proxy>,
    /// Root certificates to trust in addition to those of the system.
    pub roots: Vec<CertificateDer<'static>>,
    /// Trust only `roots`.
    pub roots_only: bool,
    /// The client certificate, if the service requires one.
    pub identity: Option<ClientIdentity>,
}

/// A client certificate with its chain and key.
#[derive(Debug)]
pub struct ClientIdentity {
    /// The certificate first, then its issuers.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

/// A proxy on the way to the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its protocol.
    pub kind: ProxyKind,
    /// Its host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// User and password.
    pub login: Option<(String, String)>,
}

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// HTTP CONNECT (RFC 9110 §9.3.6).
    Http,
    /// SOCKS version 5 (RFC 1928, RFC 1929), which looks the name up itself.
    Socks5,
}

/// Why an origin cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OriginError(pub String);

impl Origin {
    /// Creates an origin without a proxy that trusts the roots of the system.
    pub fn new(host: &str, port: u16) -> Origin {
        Origin {
            host: host.to_owned(),
            port,
            address: None,
            proxy: None,
            roots: Vec::new(),
            roots_only: false,
            identity: None,
        }
    }

    /// Returns host and port to request from a proxy.
    pub(crate) fn reached_at(&self) -> (&str, u16) {
        let address = self.address.as_deref().and_then(|address| address.rsplit_once(':'));
        let address = address.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        address.unwrap_or((&self.host, self.port))
    }

    /// Trusts the certificates of a PEM file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or has no certificates.
    pub fn add_roots(&mut self, file: &Path) -> Result<(), OriginError> {
        let shown = file.display();
        let text = std::fs::read(file)
            .map_err(|error| OriginError(format!("roots of {shown}: {error}")))?;
        let text = String::from_utf8_lossy(&text);
        let certificates = CertificateDer::pem_slice_iter(key_text::pem(&text).as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| OriginError(format!("roots of {shown}: {error}")))?;
        if certificates.is_empty() {
            return Err(OriginError(format!(
                "roots of {shown}: the file holds no -----BEGIN CERTIFICATE-----; name one of root certificates"
            )));
        }
        self.roots.extend(certificates);
        Ok(())
    }

    /// Trusts the certificates of a PEM text.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not PEM or has no certificates.
    pub fn add_roots_pem(&mut self, pem: &[u8]) -> Result<(), OriginError> {
        let text = String::from_utf8_lossy(pem);
        let certificates = CertificateDer::pem_slice_iter(key_text::pem(&text).as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| {
                OriginError(format!("the roots are no PEM: {error}; give root certificates"))
            })?;
        if certificates.is_empty() {
            return Err(OriginError(
                "the roots hold no -----BEGIN CERTIFICATE-----; give root certificates".to_owned(),
            ));
        }
        let mut judged = rustls::RootCertStore::empty();
        for root in &certificates {
            judged.add(root.clone()).map_err(|error| {
                OriginError(format!("a root certificate is not valid: {error}"))
            })?;
        }
        self.roots.extend(certificates);
        Ok(())
    }

    /// Returns the TLS configuration: roots, client certificate, HTTP/2 by ALPN.
    pub(crate) fn tls(&self) -> Result<rustls::ClientConfig, OriginError> {
        let mut roots = rustls::RootCertStore::empty();
        if !self.roots_only {
            // Read once: a process may have thousands of credentials, and each read opens a hundred files.
            static NATIVE: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
            let native = NATIVE.get_or_init(|| rustls_native_certs::load_native_certs().certs);
            roots.add_parsable_certificates(native.iter().cloned());
        }
        for root in &self.roots {
            roots.add(root.clone()).map_err(|error| {
                OriginError(format!("a root certificate is not valid: {error}"))
            })?;
        }
        if roots.is_empty() {
            return Err(OriginError(
                "this machine has no root certificates; install ca-certificates or name a file of roots"
                    .to_owned(),
            ));
        }
        self.with_roots(roots)
    }

    /// Checks whether the client certificate can be used, independent of the roots.
    pub(crate) fn check_identity(&self) -> Result<(), OriginError> {
        self.with_roots(rustls::RootCertStore::empty()).map(drop)
    }

    fn with_roots(
        &self,
        roots: rustls::RootCertStore,
    ) -> Result<rustls::ClientConfig, OriginError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| OriginError(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
                .map_err(|error| OriginError(format!("the client certificate: {error}")))?,
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

impl std::str::FromStr for Proxy {
    type Err = OriginError;

    /// Parses `http://user:password@host:port` or `socks5://host:port`.
    fn from_str(text: &str) -> Result<Proxy, OriginError> {
        let wrong = |why: &str| OriginError(format!("proxy {text:?}: {why}"));
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong("write http://HOST:PORT or socks5://HOST:PORT"))?;
        let kind = match scheme {
            "http" => ProxyKind::Http,
            "socks5" | "socks5h" => ProxyKind::Socks5,
            _ => return Err(wrong("only http:// and socks5:// are known")),
        };
        let rest = rest.trim_end_matches('/');
        let (login, address) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((login, address)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                (Some((user.to_owned(), password.to_owned())), address)
            }
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        let port = port.parse().map_err(|_| wrong("its port is no number"))?;
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Proxy { kind, host, port, login })
    }
}
