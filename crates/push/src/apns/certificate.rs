//! Provider certificates, the older way to authenticate ("Establishing a certificate-based connection").

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use p12_keystore::{KeyStore, Pkcs12ImportPolicy};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::time::ASN1Time;

use super::Environment;
use super::encrypted_pem::decrypt_pem;
use crate::key_text;
use crate::origin::ClientIdentity;

/// A provider certificate with its key. It was valid when it was read.
#[derive(Debug)]
pub struct Certificate {
    identity: ClientIdentity,
    validity: Option<Validity>,
}

/// Why a certificate cannot be used. The text is a clause that follows the name of the file or key, and ends with the
/// fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {fix}")]
pub struct CertificateError {
    /// The kind of the error.
    pub fault: CertificateFault,
    /// The cause.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

/// The kind of a certificate error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateFault {
    /// The file has another format, or lacks the certificate or the key.
    Unreadable,
    /// The password or passphrase is wrong.
    Password,
    /// The key does not match the certificate, or TLS does not support its kind.
    Key,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
}

impl CertificateError {
    pub(super) fn new(
        fault: CertificateFault,
        what: impl Into<String>,
        fix: &str,
    ) -> CertificateError {
        CertificateError { fault, what: what.into(), fix: fix.to_owned() }
    }
}

impl Certificate {
    /// Reads a PEM file with certificate and key, in any order. `passphrase` decrypts an encrypted key.
    ///
    /// # Errors
    ///
    /// Something is missing, the passphrase is wrong, or the certificate is not valid now.
    pub fn from_pem(pem: &[u8], passphrase: &str) -> Result<Certificate, CertificateError> {
        let unreadable =
            |what: String, fix| Err(CertificateError::new(CertificateFault::Unreadable, what, fix));
        let pem = decrypt_pem(&key_text::pem(&String::from_utf8_lossy(pem)), passphrase)?;
        let pem = pem.as_bytes();
        let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let chain = match chain {
            Ok(chain) if chain.is_empty() => {
                let what = "it holds no -----BEGIN CERTIFICATE-----";
                return unreadable(what.to_owned(), EXPORT);
            }
            Ok(chain) => chain,
            Err(_) => return unreadable("it is no PEM, or cut".to_owned(), EXPORT),
        };
        let Ok(key) = PrivateKeyDer::from_pem_slice(pem) else {
            return unreadable("it holds no private key beside the certificate".to_owned(), EXPORT);
        };
        Certificate::validated(ClientIdentity { chain, key }, SystemTime::now())
    }

    /// Reads a `.p12` file as exported by Keychain Access, in the old encryption (RC2 and triple DES) or the new one.
    ///
    /// # Errors
    ///
    /// The password is wrong, certificate or key are missing, or the certificate is not valid now.
    pub fn from_p12(p12: &[u8], password: &str) -> Result<Certificate, CertificateError> {
        // A DER sequence; if it is one, the password may still be wrong.
        if p12.first() != Some(&0x30) {
            let what = "it is neither PEM nor a .p12 file";
            return Err(CertificateError::new(CertificateFault::Unreadable, what, EXPORT));
        }
        let store =
            KeyStore::from_pkcs12(p12, password, Pkcs12ImportPolicy::Relaxed).map_err(|error| {
                let what = format!("the .p12 file cannot be opened ({error})");
                CertificateError::new(CertificateFault::Password, what, "is the password right?")
            })?;
        let Some((_, chain)) = store.private_key_chain() else {
            let what = "the .p12 file holds no private key with a certificate";
            return Err(CertificateError::new(CertificateFault::Unreadable, what, EXPORT));
        };
        let key = PrivatePkcs8KeyDer::from(chain.key().as_der().to_vec());
        let chain =
            chain.certs().iter().map(|cert| CertificateDer::from(cert.as_der().to_vec())).collect();
        let identity = ClientIdentity { chain, key: PrivateKeyDer::Pkcs8(key) };
        Certificate::validated(identity, SystemTime::now())
    }

    /// Returns when it expires; `None` if that cannot be parsed.
    pub fn valid_until(&self) -> Option<SystemTime> {
        self.validity.map(|validity| time(validity.until))
    }

    pub(super) fn identity(&self) -> ClientIdentity {
        ClientIdentity { chain: self.identity.chain.clone(), key: self.identity.key.clone_key() }
    }

    /// Checks that TLS can use it and that it is valid.
    fn validated(
        identity: ClientIdentity,
        now: SystemTime,
    ) -> Result<Certificate, CertificateError> {
        let validity = identity.chain.first().and_then(|der| Validity::read(der));
        if let Some(error) = validity.and_then(|validity| validity.fault(now)) {
            return Err(error);
        }
        let certificate = Certificate { identity, validity };
        let mut origin = Environment::Production.origin();
        origin.identity = Some(certificate.identity());
        origin.check_identity().map_err(|error| {
            CertificateError::new(CertificateFault::Key, error.0, "export it with its own key")
        })?;
        Ok(certificate)
    }
}

const EXPORT: &str = "export certificate and key together from Keychain Access";
const RENEW: &str = "renew it in the developer account";

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug)]
struct Validity {
    from: ASN1Time,
    until: ASN1Time,
}

impl Validity {
    fn read(der: &[u8]) -> Option<Validity> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let validity = certificate.validity();
        Some(Validity { from: validity.not_before, until: validity.not_after })
    }

    fn fault(self, now: SystemTime) -> Option<CertificateError> {
        let now_s = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        let today = ASN1Time::from_timestamp(now_s).map_or_else(|_| now_s.to_string(), day);
        if now_s > self.until.timestamp() {
            let what = format!("the certificate expired on {}", day(self.until));
            let fix = format!("{RENEW}, or set the clock of this machine if today is not {today}");
            return Some(CertificateError::new(CertificateFault::Expired, what, &fix));
        }
        if now_s < self.from.timestamp() {
            let what = format!("the certificate is valid from {} on", day(self.from));
            let fix = format!("set the clock of this machine if today is not {today}, or wait");
            return Some(CertificateError::new(CertificateFault::NotYetValid, what, &fix));
        }
        None
    }
}

/// Returns the fix for a certificate that Apple refuses, if it has expired.
pub(super) fn ended(until: Option<SystemTime>, now: SystemTime) -> Option<String> {
    let until = until.filter(|until| now > *until)?;
    let seconds = until.duration_since(UNIX_EPOCH).ok()?.as_secs() as i64;
    let on = day(ASN1Time::from_timestamp(seconds).ok()?);
    Some(format!("the certificate expired on {on}: {RENEW}"))
}

/// Formats a UTC date such as 2026-11-21.
fn day(time: ASN1Time) -> String {
    time.to_datetime().date().to_string()
}

fn time(time: ASN1Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}
