//! The certificate authority that clients trust, the server's certificate, and the contents of a client's.

use std::sync::Arc;
use std::{fmt, fs, io, path::Path};

use dunlin_wire::text::trim_byte_order_mark;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, ServerConfig, SignatureScheme};
use x509_parser::oid_registry::OID_USERID;

use crate::StartError;

/// Names in the server's certificate: this machine's, and Apple's for clients that are redirected by a hosts file.
const NAMES: [&str; 8] = [
    "localhost",
    "127.0.0.1",
    "::1",
    "api.push.apple.com",
    "api.sandbox.push.apple.com",
    "api.development.push.apple.com",
    "api-manage-broadcast.push.apple.com",
    "api-manage-broadcast.sandbox.push.apple.com",
];

/// The simulator's certificate authority. Clients trust its certificate; its key signs the server's.
#[derive(Clone)]
pub struct Authority {
    pem: String,
    key_pem: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Generates a new authority.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new() -> Result<Authority, StartError> {
        let failed = |error| StartError::because("cannot make a certificate authority", error);
        let key = KeyPair::generate().map_err(failed)?;
        let pem = authority_params().self_signed(&key).map_err(failed)?.pem();
        Ok(Authority { pem, key_pem: key.serialize_pem() })
    }

    /// Loads the authority from the certificate in `file` and the key in the file of the same name with the extension
    /// `key`. Creates both if neither exists, so that clients need to be configured only once.
    ///
    /// # Errors
    /// A file cannot be read or written, or only one of the two exists.
    pub fn at(file: &Path) -> Result<Authority, StartError> {
        let key_file = file.with_extension("key");
        let read = |path: &Path| match fs::read_to_string(path) {
            Ok(text) => Ok(Some(trim_byte_order_mark(&text).to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(StartError::because(format!("cannot read {}", path.display()), error))
            }
        };
        match (read(file)?, read(&key_file)?) {
            (Some(pem), Some(key_pem)) => Ok(Authority { pem, key_pem }),
            (None, None) => {
                let authority = Authority::new()?;
                write_private(&key_file, &authority.key_pem)?;
                fs::write(file, &authority.pem).map_err(|error| {
                    StartError::because(format!("cannot write {}", file.display()), error)
                })?;
                Ok(authority)
            }
            _ => Err(StartError::new(format!(
                "of {} and {} only one is there; delete it, and both are made anew",
                file.display(),
                key_file.display()
            ))),
        }
    }

    /// Returns the certificate in PEM, for clients to trust.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a client certificate for a bundle id and its key, both in PEM, like the push certificate of a developer
    /// account. With `expired` its validity has ended.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn client_certificate(
        &self,
        bundle_id: &str,
        expired: bool,
    ) -> Result<(String, String), StartError> {
        let failed = |error| StartError::because("cannot make a client certificate", error);
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        name.push(DnType::CustomDnType(USER_ID_ARCS.to_vec()), bundle_id);
        name.push(DnType::CommonName, format!("Apple Push Services: {bundle_id}"));
        params.distinguished_name = name;
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(if expired { 2021 } else { 2049 }, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer()?).map_err(failed)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, StartError> {
        let key = KeyPair::from_pem(&self.key_pem).map_err(|error| {
            StartError::because("the authority's key is invalid; delete its files", error)
        })?;
        Ok(Issuer::new(authority_params(), key))
    }

    /// Returns the server's TLS configuration: a certificate signed by this authority, ALPN `h2`, optional client
    /// certificates.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, StartError> {
        let failed = |error| StartError::because("cannot make the server's certificate", error);
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(NAMES.map(str::to_owned)).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, "Dunlin's APNs simulator");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer()?).map_err(failed)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Arc::new(AnyClient(provider.signature_verification_algorithms));
        let unusable = |error| StartError::because("the server's TLS cannot be set up", error);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Returns the parameters of the authority: always the same, so that it can be restored from its key.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Dunlin's APNs simulator: authority");
    params
}

fn write_private(path: &Path, text: &str) -> Result<(), StartError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| StartError::because(format!("cannot write {}", path.display()), error))
}

/// Accepts every client certificate whose private key the client has. Its validity is checked push by push, as Apple
/// does. The chain is not checked, because Apple's authority signs no certificates for a simulator.
#[derive(Debug)]
struct AnyClient(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// `UID` (RFC 4519 §2.39), which holds the bundle id in Apple's certificates: 0.9.2342.19200300.100.1.1.
const USER_ID_ARCS: [u64; 7] = [0, 9, 2342, 19_200_300, 100, 1, 1];

/// The relevant fields of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    pub(crate) user_id: Option<String>,
    pub(crate) expires_s: Option<u64>,
}

impl ClientCertificate {
    /// Reads subject and expiry (RFC 5280 §4.1); a field that cannot be parsed is `None`.
    pub(crate) fn read(der: &[u8]) -> ClientCertificate {
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else {
            return ClientCertificate { user_id: None, expires_s: None };
        };
        let user_id = certificate.subject().iter_by_oid(&OID_USERID).next();
        ClientCertificate {
            user_id: user_id.and_then(|id| id.as_str().ok()).map(str::to_owned),
            expires_s: certificate.validity().not_after.timestamp().try_into().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(pem: &str) -> Vec<u8> {
        use rustls::pki_types::pem::PemObject;
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
    }

    #[test]
    fn a_client_certificate_names_its_bundle_id_and_its_end() {
        let authority = Authority::new().unwrap();
        let (pem, key) = authority.client_certificate("com.example.app", true).unwrap();
        assert!(key.contains("PRIVATE KEY"));
        let read = ClientCertificate::read(&der(&pem));
        // 1 January 2021.
        let expected = ClientCertificate {
            user_id: Some("com.example.app".to_owned()),
            expires_s: Some(1_609_459_200),
        };
        assert_eq!(read, expected);
        assert_eq!(ClientCertificate::read(&der(authority.pem())).user_id, None);
    }

    #[test]
    fn a_certificate_that_is_cut_is_read_up_to_the_cut() {
        let pem = Authority::new().unwrap().client_certificate("a", false).unwrap().0;
        let der = der(&pem);
        for length in 0..der.len() {
            ClientCertificate::read(&der[..length]);
        }
    }

    #[test]
    fn an_authority_is_the_same_the_next_time() {
        let directory =
            std::env::temp_dir().join(format!("dunlin-authority-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("ca.pem");
        let first = Authority::at(&file).unwrap();
        assert_eq!(Authority::at(&file).unwrap().pem(), first.pem());
        first.server_config().unwrap();
        fs::remove_file(directory.join("ca.key")).unwrap();
        assert!(Authority::at(&file).unwrap_err().to_string().contains("only one is there"));
        fs::remove_dir_all(&directory).unwrap();
    }
}
