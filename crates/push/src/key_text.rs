//! Keys and certificates as they are pasted: with a byte order mark of an editor, with the line ends of an environment variable,
//! in each container that tools write.

use std::borrow::Cow;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use p256::SecretKey;
use p256::pkcs8::DecodePrivateKey;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

/// base64url with or without padding: browsers use none, some libraries do.
pub(crate) const BASE64_URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns a text without a byte order mark.
pub(crate) fn unmarked(text: &str) -> &str {
    text.trim_start_matches('\u{feff}')
}

/// Returns a PEM text with its line ends, which environment variables and JSON in JSON have as `\n`.
pub(crate) fn pem(text: &str) -> Cow<'_, str> {
    let text = unmarked(text).trim();
    match text.contains("\\n") {
        true => text.replace("\\r", "").replace("\\n", "\n").into(),
        false => text.into(),
    }
}

/// Decodes Base64 in either alphabet, padded or not; line ends are ignored. `None` if it is none.
pub fn base64(text: &str) -> Option<Vec<u8>> {
    let letters: String = unmarked(text)
        .chars()
        .filter(|letter| !letter.is_ascii_whitespace())
        .map(|letter| match letter {
            '+' => '-',
            '/' => '_',
            letter => letter,
        })
        .collect();
    BASE64_URL.decode(letters).ok()
}

/// Returns the first private key of a PEM text: PKCS #8, PKCS #1 or SEC 1.
pub(crate) fn private_key(text: &str) -> Option<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem(text).as_bytes()).ok()
}

/// Returns a private key of P-256: PKCS #8 or SEC 1, in PEM, or either or its 32 bytes in Base64.
pub(crate) fn p256_key(text: &str) -> Option<SecretKey> {
    let of_der = |der: &[u8]| {
        SecretKey::from_pkcs8_der(der).ok().or_else(|| SecretKey::from_sec1_der(der).ok())
    };
    if text.contains("-----BEGIN") {
        return of_der(private_key(text)?.secret_der());
    }
    let bytes = base64(text)?;
    SecretKey::from_slice(&bytes).ok().or_else(|| of_der(&bytes))
}
