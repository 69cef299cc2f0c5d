//! TLS configuration of the generator.

use std::path::Path;
use std::sync::Arc;

use dunlin_wire::text::without_byte_order_mark;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ALL_VERSIONS, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};

use super::address::Address;
use super::options::Http;
use crate::Error;
use crate::transport::Tls;

/// Returns the TLS configuration by the options; `None` for `http://`.
pub(super) fn client(options: &Http, address: &Address) -> Result<Option<Tls>, Error> {
    if !address.tls {
        return match asked_for(options) {
            Some(flag) => Err(Error::new(format!(
                "{flag} is for TLS, and {} does without; write https://, or leave it out",
                options.url
            ))),
            None => Ok(None),
        };
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions: &[&'static SupportedProtocolVersion] = match options.tls_version.as_deref() {
        Some("1.2") => &[&TLS12],
        Some("1.3") => &[&TLS13],
        _ => ALL_VERSIONS,
    };
    let failed = |error: rustls::Error| Error::new(format!("cannot set up TLS: {error}"));
    let verifier = AnyCertificate(provider.signature_verification_algorithms);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(failed)?;
    let builder = if options.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    } else {
        builder.with_root_certificates(roots(options.ca.as_deref())?)
    };
    let mut config = match (&options.cert, &options.key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates("--cert", certificate)?;
            let wrong = |why: &dyn std::fmt::Display| {
                Error::new(format!(
                    "--key {}: {why}; give the private key of --cert in PEM form",
                    key.display()
                ))
            };
            let pem = std::fs::read(key).map_err(|error| wrong(&error))?;
            let key = PrivateKeyDer::from_pem_slice(without_byte_order_mark(&pem))
                .map_err(|error| wrong(&error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| wrong(&error))?
        }
        _ => builder.with_no_client_auth(),
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

/// Returns a TLS configuration that verifies no certificate and resumes no session.
///
/// # Errors
/// TLS cannot be set up.
pub fn unverified() -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = AnyCertificate(provider.signature_verification_algorithms);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(format!("cannot set up TLS: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns a given flag that has no meaning without TLS.
fn asked_for(options: &Http) -> Option<&'static str> {
    [
        ("--ca", options.ca.is_some()),
        ("--insecure", options.insecure),
        ("--server-name", options.server_name.is_some()),
        ("--cert", options.cert.is_some()),
        ("--tls-version", options.tls_version.is_some()),
    ]
    .into_iter()
    .find_map(|(flag, given)| given.then_some(flag))
}

/// Reads at least one certificate.
fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let wrong = |why: &dyn std::fmt::Display| {
        Error::new(format!(
            "{flag} {}: {why}; give a file of certificates in PEM form",
            path.display()
        ))
    };
    let pem = std::fs::read(path).map_err(|error| wrong(&error))?;
    // A mark before the first line would hide the first certificate.
    let certificates = CertificateDer::pem_slice_iter(without_byte_order_mark(&pem))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(&error))?;
    if certificates.is_empty() {
        return Err(wrong(&"there is no certificate in it"));
    }
    Ok(certificates)
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in certificates("--ca", path)? {
                roots.add(certificate).map_err(|error| {
                    Error::new(format!("--ca {}: {error}; it is no authority", path.display()))
                })?;
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

/// Trusts any certificate; the signatures of the handshake are still verified.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
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
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
