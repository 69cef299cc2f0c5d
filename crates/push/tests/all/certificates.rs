//! Certificates as Keychain Access and OpenSSL export them.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_push::apns::{Certificate, CertificateError, CertificateFault};

/// RC2 for the certificate, triple DES for the key, SHA-1: what macOS wrote for twenty years.
const OLD: &[u8] = include_bytes!("../certificates/valid-old.p12");
/// AES and SHA-256, as OpenSSL 3 writes it.
const NEW: &[u8] = include_bytes!("../certificates/valid.p12");

#[test]
fn old_and_new_files_are_opened_with_their_password() {
    for p12 in [OLD, NEW] {
        Certificate::from_p12(p12, "dunlin").unwrap();
        let error = Certificate::from_p12(p12, "wrong").unwrap_err();
        assert_eq!(error.fault, CertificateFault::Password);
        assert!(error.to_string().contains("is the password right?"), "{error}");
    }
    let valid = Certificate::from_pem(include_bytes!("../certificates/valid.pem"), "").unwrap();
    let century = UNIX_EPOCH + Duration::from_secs(4_102_444_800);
    assert_eq!(valid.valid_until(), Some(century));
    assert!(valid.valid_until() > Some(SystemTime::now()));
}

#[test]
fn a_pem_key_is_opened_with_its_passphrase_in_every_form_that_openssl_writes() {
    for pem in [
        &include_bytes!("../certificates/valid-pkcs8-aes.pem")[..],
        include_bytes!("../certificates/valid-pkcs8-des3.pem"),
        include_bytes!("../certificates/valid-dek-aes.pem"),
        include_bytes!("../certificates/valid-dek-des3.pem"),
        include_bytes!("../certificates/rsa-dek-aes.pem"),
    ] {
        let first = String::from_utf8_lossy(&pem[..40]);
        Certificate::from_pem(pem, "dunlin").unwrap_or_else(|error| panic!("{first}: {error}"));
        for (passphrase, word) in [("", "there is no passphrase"), ("wrong", "does not open")] {
            let error = Certificate::from_pem(pem, passphrase).unwrap_err();
            assert_eq!(error.fault, CertificateFault::Password, "{first}");
            assert!(error.to_string().contains(word), "{first}: {error}");
        }
    }
    let cut =
        include_str!("../certificates/valid-dek-aes.pem").replace("AES-128-CBC,", "AES-128-GCM,");
    let error = Certificate::from_pem(cut.as_bytes(), "dunlin").unwrap_err();
    assert!(error.to_string().contains("AES-128-GCM"), "{error}");
}

#[test]
fn malformed_certificate_is_refused_with_a_reason() {
    let fault = |result: Result<Certificate, CertificateError>, word: &str| {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        error.fault
    };
    use CertificateFault::{Key, Password, Unreadable};
    assert_eq!(fault(Certificate::from_p12(b"hello", ""), "neither PEM nor a .p12"), Unreadable);
    assert_eq!(fault(Certificate::from_p12(&NEW[..200], "dunlin"), ".p12"), Password);
    assert_eq!(fault(Certificate::from_pem(b"hello", ""), "BEGIN CERTIFICATE"), Unreadable);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["push.test".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    assert_eq!(
        fault(Certificate::from_pem(certificate.as_bytes(), ""), "no private key"),
        Unreadable
    );
    let whole = format!("{certificate}{}", key.serialize_pem());
    Certificate::from_pem(whole.as_bytes(), "").unwrap();
    let stranger = Certificate::from_pem(include_bytes!("../certificates/stranger.pem"), "");
    assert_eq!(fault(stranger, "export it with its own key"), Key);
}

#[test]
fn one_that_is_not_valid_now_is_refused_with_its_date_and_what_mends_it() {
    let ended = [
        Certificate::from_pem(include_bytes!("../certificates/ended.pem"), ""),
        Certificate::from_p12(include_bytes!("../certificates/ended.p12"), "dunlin"),
        Certificate::from_p12(include_bytes!("../certificates/ended-old.p12"), "dunlin"),
    ];
    for result in ended {
        let error = result.unwrap_err();
        assert_eq!(error.fault, CertificateFault::Expired);
        let reported = error.to_string();
        let begin = "the certificate expired on 2020-01-31; renew it in the developer account, or set \
                     the clock of this machine if today is not 2";
        assert!(reported.starts_with(begin), "{reported}");
    }
    let early = [
        Certificate::from_pem(include_bytes!("../certificates/early.pem"), ""),
        Certificate::from_p12(include_bytes!("../certificates/early.p12"), "dunlin"),
        Certificate::from_p12(include_bytes!("../certificates/early-old.p12"), "dunlin"),
    ];
    for result in early {
        let error = result.unwrap_err();
        assert_eq!(error.fault, CertificateFault::NotYetValid);
        let reported = error.to_string();
        let begin = "the certificate is valid from 2100-03-01 on; set the clock of this machine";
        assert!(reported.starts_with(begin), "{reported}");
    }
}
