//! Certificates for a server that only tests use: valid ones, and invalid ones of each kind.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

use crate::{Context, Error};

/// TLS of the test server.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeTls {
    /// Serve TLS with a self-signed certificate created at start
    #[arg(long)]
    pub tls: bool,
    /// Names in the certificate; by default `localhost` and the address it listens on
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "tls")]
    pub tls_names: Vec<String>,
    /// Create an expired certificate
    #[arg(long, requires = "tls")]
    pub tls_expired: bool,
    /// Write the certificate here, as PEM, for clients to trust (`curl --cacert`, `dunlin bench http --ca`)
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub tls_certificate: Option<PathBuf>,
}

impl ServeTls {
    pub(super) fn config(&self, listen: SocketAddr) -> Result<Option<Arc<ServerConfig>>, Error> {
        if !self.tls {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(format!("cannot make a certificate for {:?}: {error}", self.tls_names))
        };
        let names = if self.tls_names.is_empty() {
            let mut names: Vec<_> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
            names.push(listen.ip().to_string());
            names
        } else {
            self.tls_names.clone()
        };
        let mut params = rcgen::CertificateParams::new(names).map_err(|error| failed(&error))?;
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, format!("dunlin bench serve {listen}"));
        if self.tls_expired {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        }
        let key = rcgen::KeyPair::generate().map_err(|error| failed(&error))?;
        let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
        if let Some(path) = &self.tls_certificate {
            std::fs::write(path, certificate.pem())
                .context(format!("cannot write {}", path.display()))?;
        }
        let der = PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| failed(&error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], der)
            .map_err(|error| failed(&error))?;
        Ok(Some(Arc::new(config)))
    }
}
