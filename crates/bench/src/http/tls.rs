//! Whom to trust.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::address::Address;
use super::options::Http;
use super::transport::Tls;
use crate::error::Error;

/// TLS as the options ask for it; `None` for `http://`.
pub(super) fn client(options: &Http, address: &Address) -> Result<Option<Tls>, Error> {
    if !address.tls {
        return Ok(None);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(format!("cannot set up TLS: {error}")))?;
    let mut config = if options.insecure {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth()
    } else {
        builder.with_root_certificates(roots(options.ca.as_deref())?).with_no_client_auth()
    };
    config.alpn_protocols =
        vec![if options.is_http2() { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let name = options.server_name.as_deref().unwrap_or(&address.host);
    let name = ServerName::try_from(name.to_owned()).map_err(|_| {
        Error::new(format!(
            "`{name}` is no name a certificate can have; give one with --server-name"
        ))
    })?;
    Ok(Some(Tls { config: Arc::new(config), name }))
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            let wrong = |why: &dyn std::fmt::Display| {
                Error::new(format!(
                    "--ca {}: {why}; give a file of certificates in PEM form",
                    path.display()
                ))
            };
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| wrong(&error))?;
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"there is no certificate in it"));
            }
        }
        None => {
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
            if roots.is_empty() {
                return Err(Error::new(
                    "the system has no certificates to trust: install ca-certificates, or give --ca FILE or --insecure",
                ));
            }
        }
    }
    Ok(roots)
}

/// Trusts whoever answers; the signatures of the handshake are still checked.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
