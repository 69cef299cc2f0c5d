//! Certificates: the older way to say who is sending ("Establishing a certificate-based connection").

use p12_keystore::{KeyStore, Pkcs12ImportPolicy};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::origin::ClientIdentity;

/// A provider certificate with its key.
#[derive(Debug)]
pub struct Certificate(pub(super) ClientIdentity);

impl Certificate {
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
