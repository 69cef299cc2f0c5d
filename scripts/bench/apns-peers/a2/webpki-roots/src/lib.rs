//! The certificates of a PEM file, where a crate expects Mozilla's roots.

use std::sync::LazyLock;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, TrustAnchor};

/// The roots of the file that `APNS_ROOTS` names; none if there is none.
pub static TLS_SERVER_ROOTS: LazyLock<Vec<TrustAnchor<'static>>> = LazyLock::new(|| {
    let Ok(file) = std::env::var("APNS_ROOTS") else { return Vec::new() };
    let certificates = CertificateDer::pem_file_iter(file).expect("APNS_ROOTS is a PEM file");
    certificates
        .map(|certificate| {
            let certificate = certificate.expect("APNS_ROOTS holds certificates");
            let anchor = webpki::anchor_from_trusted_cert(&certificate);
            anchor.expect("APNS_ROOTS holds roots").to_owned()
        })
        .collect()
});
