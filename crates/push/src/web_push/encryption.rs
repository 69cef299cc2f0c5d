//! The encryption of a message for one browser (RFC 8291), in one record of the `aes128gcm` coding (RFC 8188).

use hkdf::Hkdf;
use p256::SecretKey;
use p256::ecdh::diffie_hellman;
use p256::elliptic_curve::sec1::ToSec1Point;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use sha2::Sha256;

use super::Subscription;

/// Most bytes of a message. Every push service must accept 4,096 encrypted bytes (RFC 8291 §4), which include a
/// header of 86, a tag of 16 and a delimiter of 1.
pub const PLAINTEXT_BYTES_MAX: usize = 4_096 - HEADER_BYTES - TAG_BYTES - 1;

/// Salt, record size, length of the key id, and the key.
const HEADER_BYTES: usize = 16 + 4 + 1 + KEY_BYTES;
const KEY_BYTES: usize = 65;
const TAG_BYTES: usize = 16;
const RECORD_BYTES: u32 = 4_096;
/// The delimiter after the plaintext of the last record (RFC 8188 §2).
const LAST_RECORD: u8 = 2;

/// Why a message was not encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncryptError {
    /// It is longer than [`PLAINTEXT_BYTES_MAX`] bytes.
    #[error("a Web Push message has at most 3,993 bytes; shorten it")]
    TooLong,
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    Random,
}

/// Encrypts a message with a new key and salt. Returns the body of the request.
///
/// # Errors
///
/// The message is too long, or the system has no random numbers.
pub fn encrypt(subscription: &Subscription, plaintext: &[u8]) -> Result<Vec<u8>, EncryptError> {
    let random = SystemRandom::new();
    let mut salt = [0; 16];
    random.fill(&mut salt).map_err(|_| EncryptError::Random)?;
    let mut scalar = [0; 32];
    // One random number in 2³² is not a valid key.
    let ephemeral = loop {
        random.fill(&mut scalar).map_err(|_| EncryptError::Random)?;
        if let Ok(key) = SecretKey::from_slice(&scalar) {
            break key;
        }
    };
    encrypt_with(subscription, plaintext, &ephemeral, salt)
}

/// Encrypts a message with a given key and salt, neither of which may be reused.
///
/// # Errors
///
/// The message is too long.
pub fn encrypt_with(
    subscription: &Subscription,
    plaintext: &[u8],
    ephemeral: &SecretKey,
    salt: [u8; 16],
) -> Result<Vec<u8>, EncryptError> {
    if plaintext.len() > PLAINTEXT_BYTES_MAX {
        return Err(EncryptError::TooLong);
    }
    let ours = ephemeral.public_key().to_sec1_point(false);
    let theirs = subscription.public.to_sec1_point(false);
    let shared = diffie_hellman(ephemeral.to_nonzero_scalar(), subscription.public.as_affine());

    let mut info = b"WebPush: info\0".to_vec();
    info.extend_from_slice(theirs.as_bytes());
    info.extend_from_slice(ours.as_bytes());
    let mut key_material = [0; 32];
    expand(
        &Hkdf::new(Some(&subscription.auth), shared.raw_secret_bytes()),
        &info,
        &mut key_material,
    );
    let (mut key, mut nonce) = ([0; 16], [0; 12]);
    let derived = Hkdf::new(Some(&salt), &key_material);
    expand(&derived, b"Content-Encoding: aes128gcm\0", &mut key);
    expand(&derived, b"Content-Encoding: nonce\0", &mut nonce);

    let mut body = Vec::with_capacity(HEADER_BYTES + plaintext.len() + 1 + TAG_BYTES);
    body.extend_from_slice(&salt);
    body.extend_from_slice(&RECORD_BYTES.to_be_bytes());
    body.push(KEY_BYTES as u8);
    body.extend_from_slice(ours.as_bytes());
    body.extend_from_slice(plaintext);
    body.push(LAST_RECORD);
    let key = UnboundKey::new(&AES_128_GCM, &key).expect("a key of 16 bytes");
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = LessSafeKey::new(key)
        .seal_in_place_separate_tag(nonce, Aad::empty(), &mut body[HEADER_BYTES..])
        .expect("a record far below what AES-GCM can hold");
    body.extend_from_slice(tag.as_ref());
    Ok(body)
}

fn expand(from: &Hkdf<Sha256>, info: &[u8], into: &mut [u8]) {
    from.expand(info, into).expect("HKDF gives up to 8,160 bytes");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_text::BASE64_URL as BASE64;
    use base64::Engine;

    /// RFC 8291, appendix A.
    #[test]
    fn the_example_of_the_rfc_comes_out_byte_for_byte() {
        let subscription = Subscription::new(
            "https://push.example.net/push/JzLQ3raZJfFBR0aqvOMsLrt54w4rJUsV".to_owned(),
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "BTBZMqHH6r4Tts7J_aSIgg",
        )
        .unwrap();
        let ephemeral = BASE64.decode("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw").unwrap();
        let ephemeral = SecretKey::from_slice(&ephemeral).unwrap();
        let salt = BASE64.decode("DGv6ra1nlYgDCS1FRnbzlw").unwrap().try_into().unwrap();
        let plaintext = b"When I grow up, I want to be a watermelon";
        let body = encrypt_with(&subscription, plaintext, &ephemeral, salt).unwrap();
        let expected = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLoc\
                        InmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLV\
                        WGNWQexSgSxsj_Qulcy4a-fN";
        assert_eq!(BASE64.encode(&body), expected);
    }

    #[test]
    fn a_message_may_be_as_long_as_every_service_takes_and_no_longer() {
        let subscription = Subscription::new(
            "https://push.example.net/x".to_owned(),
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "BTBZMqHH6r4Tts7J_aSIgg",
        )
        .unwrap();
        let longest = vec![b'x'; PLAINTEXT_BYTES_MAX];
        let body = encrypt(&subscription, &longest).unwrap();
        assert_eq!((PLAINTEXT_BYTES_MAX, body.len()), (3_993, 4_096));
        assert_ne!(body, encrypt(&subscription, &longest).unwrap(), "key and salt are fresh");
        let longer = vec![b'x'; PLAINTEXT_BYTES_MAX + 1];
        assert_eq!(encrypt(&subscription, &longer), Err(EncryptError::TooLong));
    }
}
