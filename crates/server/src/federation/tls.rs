//! TLS of links. It keeps others from reading and changing; who the peer is, the handshake above it finds out. So certificates are
//! made at the start and nobody looks at them.

use std::io;
use std::sync::Arc;

use dunlin_net::{ClientTls, ServerTls, Tls};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme, version};

/// The name in every certificate.
const NAME: &str = "federation.dunlin.invalid";

/// TLS in both directions.
pub(super) struct LinkTls {
    pub(super) server: ServerTls,
    pub(super) client: ClientTls,
}

impl LinkTls {
    /// Makes a key and a certificate.
    pub(super) fn new() -> io::Result<LinkTls> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec![NAME.to_owned()]).map_err(io::Error::other)?;
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .map_err(io::Error::other)?;
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        client.resumption = rustls::client::Resumption::disabled();
        Ok(LinkTls {
            server: ServerTls::from_config(server).with_exporter(),
            client: Tls::from_config(client).client(NAME)?,
        })
    }
}

/// Accepts whoever has the key of the certificate that it shows.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("links have TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
