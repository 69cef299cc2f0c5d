//! Certificates as Keychain Access and OpenSSL export them.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use dunlin_push::apns::Certificate;

/// RC2 for the certificate, triple DES for the key, SHA-1: what macOS wrote for twenty years.
const OLD: &[u8] = include_bytes!("certificates/old.p12");
/// AES and SHA-256, as OpenSSL 3 writes it.
const NEW: &[u8] = include_bytes!("certificates/new.p12");

#[test]
fn old_and_new_files_are_opened_with_their_password() {
    for p12 in [OLD, NEW] {
        Certificate::from_p12(p12, "dunlin").unwrap();
        let error = Certificate::from_p12(p12, "wrong").unwrap_err();
        assert!(error.contains("is the password right?"), "{error}");
    }
}

#[test]
fn what_is_no_certificate_is_told_why() {
    let error = Certificate::from_p12(b"hello", "").unwrap_err();
    assert!(error.contains(".p12"), "{error}");
    let error = Certificate::from_pem(b"hello").unwrap_err();
    assert!(error.contains("BEGIN CERTIFICATE"), "{error}");
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["push.test".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let error = Certificate::from_pem(certificate.as_bytes()).unwrap_err();
    assert!(error.contains("no private key"), "{error}");
    let whole = format!("{certificate}{}", key.serialize_pem());
    Certificate::from_pem(whole.as_bytes()).unwrap();
}
