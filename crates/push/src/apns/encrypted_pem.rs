//! Private keys behind a passphrase in PEM, as OpenSSL writes them: `ENCRYPTED PRIVATE KEY` (PKCS #8, RFC 5958) and the
//! traditional form with `DEK-Info` (RFC 1421 §4.6.1.3), which `openssl rsa -aes256` and old exports have.

use aes::{Aes128, Aes192, Aes256};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cbc::Decryptor;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockModeDecrypt, KeyIvInit};
use des::{Des, TdesEde3};
use md5::{Digest, Md5};
use pkcs8::EncryptedPrivateKeyInfoRef;

use super::{CertificateError, CertificateFault};

const PKCS8: &str = "ENCRYPTED PRIVATE KEY";

/// Returns whether a PEM text has an encrypted key.
pub(super) fn is_encrypted(pem: &str) -> bool {
    pem.contains(PKCS8) || pem.contains("Proc-Type: 4,ENCRYPTED")
}

/// Decrypts the keys of a PEM text; other sections are unchanged.
///
/// # Errors
/// The passphrase is wrong or missing, or the encryption is not supported.
pub fn decrypt_pem(pem: &str, passphrase: &str) -> Result<String, CertificateError> {
    if !is_encrypted(pem) {
        return Ok(pem.to_owned());
    }
    let mut out = String::new();
    let mut rest = pem;
    while let Some(begin) = rest.find("-----BEGIN ") {
        let section = &rest[begin..];
        let label = section[11..].split("-----").next().unwrap_or_default();
        let end_line = format!("-----END {label}-----");
        let Some(end) = section.find(&end_line) else {
            return Err(unreadable("a section of it has no end"));
        };
        let (section, after) = section.split_at(end + end_line.len());
        rest = after;
        let inner = &section[label.len() + 16..end];
        let (label, der) = if label == PKCS8 {
            ("PRIVATE KEY", open_pkcs8(&base64(inner)?, passphrase)?)
        } else if let Some(info) = inner.lines().find_map(|line| line.strip_prefix("DEK-Info:")) {
            let body: Vec<&str> = inner.lines().filter(|line| !line.contains(':')).collect();
            (label, open_traditional(info.trim(), &base64(&body.concat())?, passphrase)?)
        } else {
            out.push_str(section);
            out.push('\n');
            continue;
        };
        let text = BASE64_STANDARD.encode(der);
        out.push_str(&format!("-----BEGIN {label}-----\n"));
        for line in text.as_bytes().chunks(64) {
            out.push_str(&String::from_utf8_lossy(line));
            out.push('\n');
        }
        out.push_str(&format!("-----END {label}-----\n"));
    }
    Ok(out)
}

fn open_pkcs8(der: &[u8], passphrase: &str) -> Result<Vec<u8>, CertificateError> {
    let encrypted = EncryptedPrivateKeyInfoRef::try_from(der)
        .map_err(|error| unreadable(&format!("its key cannot be read ({error})")))?;
    let opened = encrypted.decrypt(passphrase).map_err(|_| wrong(passphrase))?;
    Ok(opened.as_bytes().to_vec())
}

/// Decrypts a traditional key. `info` is the cipher and its initialization vector in hexadecimal, the first eight bytes
/// of which are the salt.
fn open_traditional(
    info: &str,
    sealed: &[u8],
    passphrase: &str,
) -> Result<Vec<u8>, CertificateError> {
    let (cipher, iv) = info.split_once(',').unwrap_or((info, ""));
    let iv: Option<Vec<u8>> = (0..iv.len() / 2)
        .map(|at| iv.get(2 * at..2 * at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()))
        .collect();
    let iv = iv.filter(|iv| iv.len() >= 8).ok_or_else(|| unreadable("its DEK-Info has no salt"))?;
    let key = |bytes| derive_key(passphrase.as_bytes(), &iv[..8], bytes);
    let opened = match cipher {
        "AES-128-CBC" => open::<Decryptor<Aes128>>(&key(16), &iv, sealed),
        "AES-192-CBC" => open::<Decryptor<Aes192>>(&key(24), &iv, sealed),
        "AES-256-CBC" => open::<Decryptor<Aes256>>(&key(32), &iv, sealed),
        "DES-EDE3-CBC" => open::<Decryptor<TdesEde3>>(&key(24), &iv, sealed),
        "DES-CBC" => open::<Decryptor<Des>>(&key(8), &iv, sealed),
        other => return Err(unreadable(&format!("its key is encrypted by {other:?}"))),
    };
    // A wrong passphrase rarely yields valid padding and the first byte of a DER sequence; then the caller fails to
    // parse the key.
    opened.filter(|der| der.first() == Some(&0x30)).ok_or_else(|| wrong(passphrase))
}

fn open<C: KeyIvInit + BlockModeDecrypt>(key: &[u8], iv: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = sealed.to_vec();
    let opened = C::new_from_slices(key, iv).ok()?.decrypt_padded::<Pkcs7>(&mut bytes).ok()?;
    Some(opened.to_vec())
}

/// Derives a key like OpenSSL's `EVP_BytesToKey` with MD5 and one round.
fn derive_key(passphrase: &[u8], salt: &[u8], bytes: usize) -> Vec<u8> {
    let mut key = Vec::new();
    let mut last: Vec<u8> = Vec::new();
    while key.len() < bytes {
        last = Md5::new()
            .chain_update(&last)
            .chain_update(passphrase)
            .chain_update(salt)
            .finalize()
            .to_vec();
        key.extend_from_slice(&last);
    }
    key.truncate(bytes);
    key
}

fn base64(text: &str) -> Result<Vec<u8>, CertificateError> {
    let text: String = text.split_whitespace().collect();
    BASE64_STANDARD.decode(text).map_err(|_| unreadable("its key is no Base64, or cut"))
}

fn unreadable(what: &str) -> CertificateError {
    let fix = "decrypt it with `openssl pkey`, or export it as .p12";
    CertificateError::new(CertificateFault::Unreadable, what, fix)
}

fn wrong(passphrase: &str) -> CertificateError {
    let what = match passphrase.is_empty() {
        true => "its key is encrypted, and there is no passphrase",
        false => "the passphrase does not open its key",
    };
    CertificateError::new(CertificateFault::Password, what, "name the right one")
}
