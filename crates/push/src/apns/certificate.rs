//! Certificates: the older way to say who is sending ("Establishing a certificate-based connection").

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use p12_keystore::{KeyStore, Pkcs12ImportPolicy};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::Environment;
use crate::origin::{ClientIdentity, OriginError};

/// A provider certificate with its key.
#[derive(Debug)]
pub struct Certificate(pub(super) ClientIdentity);

impl Certificate {
    /// Whether TLS can show it: whether its key is its own.
    ///
    /// # Errors
    ///
    /// What TLS says.
    pub fn check(&self) -> Result<(), OriginError> {
        let mut origin = Environment::Production.origin();
        origin.identity = Some(self.identity());
        origin.tls().map(drop)
    }

    pub(super) fn identity(&self) -> ClientIdentity {
        ClientIdentity { chain: self.0.chain.clone(), key: self.0.key.clone_key() }
    }

    /// From when to when it is valid; `None` where its text cannot be read.
    pub fn validity(&self) -> Option<(SystemTime, SystemTime)> {
        let der = self.0.chain.first()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let at = |time: x509_parser::time::ASN1Time| {
            UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
        };
        let validity = certificate.validity();
        Some((at(validity.not_before), at(validity.not_after)))
    }

    /// Reads a PEM file with certificate and key, in any order.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn from_pem(pem: &[u8]) -> Result<Certificate, String> {
        let chain = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("certificate: not PEM ({error:?})"))?;
        if chain.is_empty() {
            return Err("certificate: the file holds no -----BEGIN CERTIFICATE-----".to_owned());
        }
        let text = String::from_utf8_lossy(pem);
        if text.contains("ENCRYPTED") {
            return Err("certificate: its key is encrypted; export it as .p12 with its password, or decrypt \
                        it with `openssl pkey`"
                .to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
            "certificate: the file holds no private key beside the certificate".to_owned()
        })?;
        Ok(Certificate(ClientIdentity { chain, key }))
    }

    /// Reads a `.p12` file as Keychain Access exports it, in the old encryption (RC2 and triple DES) or the
    /// new.
    ///
    /// # Errors
    ///
    /// A wrong password, or a file without certificate and key.
    pub fn from_p12(p12: &[u8], password: &str) -> Result<Certificate, String> {
        let store =
            KeyStore::from_pkcs12(p12, password, Pkcs12ImportPolicy::Relaxed).map_err(|error| {
                format!(
                    "certificate: the .p12 file cannot be opened ({error}); is the password right?"
                )
            })?;
        let Some((_, chain)) = store.private_key_chain() else {
            return Err(
                "certificate: the .p12 file holds no private key with a certificate; export both \
                        together"
                    .to_owned(),
            );
        };
        let key = PrivatePkcs8KeyDer::from(chain.key().as_der().to_vec());
        let chain =
            chain.certs().iter().map(|cert| CertificateDer::from(cert.as_der().to_vec())).collect();
        Ok(Certificate(ClientIdentity { chain, key: PrivateKeyDer::Pkcs8(key) }))
    }
}
