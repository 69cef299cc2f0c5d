//! Logins by key: an nkey, or credentials issued by an operator's tools (a JWT and its nkey).
//!
//! An nkey is an Ed25519 key in base32: two bytes for its type, 32 for the key, two for a checksum. The server has the public
//! key and sends a nonce; the user signs it. The seed is never sent.
//!
//! It is no `nkeys`: that crate brings a second implementation of Ed25519, and one error for everything that is refused here.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use data_encoding::BASE32_NOPAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::Deserialize;

/// The prefix of a seed, in the five highest bits.
const SEED: u8 = 18 << 3;
/// The prefix of a user's key.
const USER: u8 = 20 << 3;

/// A user's key, and the JWT by which an account vouches for it. `Debug` shows only public parts.
#[derive(Clone)]
pub struct Credentials {
    key: Arc<Ed25519KeyPair>,
    public_key: Arc<str>,
    jwt: Option<Arc<str>>,
    expires_s: Option<u64>,
}

/// Why a seed or credentials are invalid. Contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// It is not base32 with the right checksum, of the right length.
    #[error("it is no seed, or a part of it is missing or mistyped")]
    NoSeed,
    /// It is the public half.
    #[error("it is a public key; the seed begins with SU")]
    Public,
    /// It is the seed of something else.
    #[error("it is the seed of {0}, and not of a user (SU...)")]
    OtherKind(&'static str),
    /// The text has no block of this name.
    #[error("there is no block {0:?} in it")]
    NoBlock(&'static str),
    /// The JWT is not three parts in base64 with an object in the middle.
    #[error("its JWT cannot be read")]
    NoJwt,
    /// The JWT is of an account or an operator.
    #[error("its JWT is not of a user")]
    NotOfUser,
    /// The JWT was issued for another key.
    #[error("its JWT is of {0}, its seed of {1}")]
    OtherKey(String, String),
    /// The file with it cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

/// The parts of a JWT that are read here. The server checks the rest.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    #[serde(default)]
    exp: u64,
    #[serde(default)]
    nats: Option<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default, rename = "type")]
    kind: String,
}

impl Credentials {
    /// Creates a user from a seed alone, as `nk -gen user` writes it: `SU...`. Surrounding whitespace is ignored.
    ///
    /// # Errors
    /// See [`CredentialsError`].
    pub fn from_seed(seed: &str) -> Result<Credentials, CredentialsError> {
        let seed = seed.trim();
        let bytes = BASE32_NOPAD.decode(seed.as_bytes()).unwrap_or_default();
        let (body, checksum) = bytes.split_at(bytes.len().min(34));
        if bytes.len() != 36 || checksum != crc16(body).to_le_bytes() {
            return Err(match seed.len() == 56 && seed.starts_with('U') {
                true => CredentialsError::Public,
                false => CredentialsError::NoSeed,
            });
        }
        let kind = (body[0] & 7) << 5 | body[1] >> 3;
        if body[0] & 0xf8 != SEED {
            return Err(CredentialsError::NoSeed);
        }
        if kind != USER {
            return Err(CredentialsError::OtherKind(match kind {
                0 => "an account",
                112 => "an operator",
                104 => "a server",
                16 => "a cluster",
                184 => "a curve key",
                _ => "something else",
            }));
        }
        let key = Ed25519KeyPair::from_seed_unchecked(&body[2..]);
        let key = key.map_err(|_| CredentialsError::NoSeed)?;
        let mut public = vec![USER];
        public.extend_from_slice(key.public_key().as_ref());
        public.extend_from_slice(&crc16(&public).to_le_bytes());
        let public_key = BASE32_NOPAD.encode(&public).into();
        Ok(Credentials { key: Arc::new(key), public_key, jwt: None, expires_s: None })
    }

    /// Creates a user from the content of a `.creds` file: the JWT and the seed, each in a block.
    ///
    /// # Errors
    /// See [`CredentialsError`].
    pub fn from_creds(text: &str) -> Result<Credentials, CredentialsError> {
        let jwt = block(text, "NATS USER JWT")?;
        let credentials = Credentials::from_seed(block(text, "USER NKEY SEED")?)?;
        let mut parts = jwt.split('.');
        let claims = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(_), Some(claims), Some(_), None) => URL_SAFE_NO_PAD.decode(claims).ok(),
            _ => None,
        };
        let claims = claims.ok_or(CredentialsError::NoJwt)?;
        let claims: Claims =
            serde_json::from_slice(&claims).map_err(|_| CredentialsError::NoJwt)?;
        if claims.nats.is_none_or(|of| of.kind != "user") {
            return Err(CredentialsError::NotOfUser);
        }
        if claims.sub != *credentials.public_key {
            let seed = credentials.public_key.to_string();
            return Err(CredentialsError::OtherKey(claims.sub, seed));
        }
        let expires_s = (claims.exp > 0).then_some(claims.exp);
        Ok(Credentials { jwt: Some(jwt.into()), expires_s, ..credentials })
    }

    /// Returns the public key: `U...`.
    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// Returns the Unix time in seconds at which the JWT expires, if it does.
    pub fn expires_s(&self) -> Option<u64> {
        self.expires_s
    }

    pub(super) fn jwt(&self) -> Option<&str> {
        self.jwt.as_deref()
    }

    /// Signs a nonce and encodes the signature as servers expect it.
    pub(super) fn sign(&self, nonce: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(self.key.sign(nonce))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Credentials");
        shown.field("public_key", &self.public_key).field("expires_s", &self.expires_s);
        shown.finish_non_exhaustive()
    }
}

/// Returns the line in the block with this name.
fn block<'a>(text: &'a str, name: &'static str) -> Result<&'a str, CredentialsError> {
    let mut lines = text.lines().map(str::trim);
    let begins = |line: &str| line.starts_with("---") && line.contains(&format!("BEGIN {name}"));
    let found = lines.by_ref().any(begins);
    let line = lines.find(|line| !line.is_empty());
    match line.filter(|line| found && !line.starts_with("---")) {
        Some(line) => Ok(line),
        None => Err(CredentialsError::NoBlock(name)),
    }
}

/// Computes CRC-16/XMODEM: polynomial 0x1021, initial value 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc: u16, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A seed of a kind, with these 32 bytes.
    fn seed(kind: u8, key: &[u8; 32]) -> String {
        let mut bytes = vec![SEED | kind >> 5, kind << 3];
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&crc16(&bytes).to_le_bytes());
        BASE32_NOPAD.encode(&bytes)
    }

    #[test]
    fn a_seed_of_the_reference_implementation_is_read() {
        // Made by `nk -gen user -pubout`, and used nowhere.
        let seed = "SUAFOI4M5WPR57IPS36SGGJM3K7WGC2SW5MAIBBJXGQ27W2IPNRHTOUKT4";
        let public = "UBJHEHGFI4EEBOKRZ6KWHDCPGNBN4VKANEP2LDKZL33LL4CL37S2CLOH";
        let credentials = Credentials::from_seed(&format!(" {seed}\n")).unwrap();
        assert_eq!(credentials.public_key(), public);
        assert!(!format!("{credentials:?}").contains(seed));
        assert_eq!(Credentials::from_seed(public).unwrap_err(), CredentialsError::Public);
    }

    #[test]
    fn malformed_user_seed_is_refused() {
        let good = seed(USER, &[7; 32]);
        assert!(good.starts_with("SU"));
        for wrong in ["", "SU", &good[1..], &good.to_lowercase(), &format!("{good}A")] {
            assert_eq!(Credentials::from_seed(wrong).unwrap_err(), CredentialsError::NoSeed);
        }
        let account = Credentials::from_seed(&seed(0, &[7; 32])).unwrap_err();
        assert_eq!(account, CredentialsError::OtherKind("an account"));
    }

    /// The text of a `.creds` file.
    fn creds(claims: &str, seed: &str) -> String {
        let claims = URL_SAFE_NO_PAD.encode(claims);
        format!(
            "-----BEGIN NATS USER JWT-----\r\nhead.{claims}.signature\r\n------END NATS USER JWT------\r\n\
             \r\n*** IMPORTANT ***\r\n\r\n-----BEGIN USER NKEY SEED-----\r\n{seed}\r\n------END USER NKEY SEED------\r\n"
        )
    }

    #[test]
    fn credentials_are_a_jwt_and_the_seed_it_is_of() {
        let own = seed(USER, &[7; 32]);
        let public = Credentials::from_seed(&own).unwrap().public_key().to_owned();
        let claims = format!(r#"{{"sub":"{public}","exp":1700000000,"nats":{{"type":"user"}}}}"#);
        let credentials = Credentials::from_creds(&creds(&claims, &own)).unwrap();
        assert_eq!(credentials.expires_s(), Some(1_700_000_000));
        assert!(credentials.jwt().unwrap().starts_with("head."));

        let other = Credentials::from_creds(&creds(&claims, &seed(USER, &[8; 32]))).unwrap_err();
        assert!(matches!(&other, CredentialsError::OtherKey(of, _) if *of == public), "{other}");
        let account = claims.replace("\"user\"", "\"account\"");
        let refused = |text: &str| Credentials::from_creds(text).unwrap_err();
        assert_eq!(refused(&creds(&account, &own)), CredentialsError::NotOfUser);
        assert_eq!(refused(&creds("not JSON", &own)), CredentialsError::NoJwt);
        assert_eq!(refused(&own), CredentialsError::NoBlock("NATS USER JWT"));
        let cut = creds(&claims, "");
        assert_eq!(refused(&cut), CredentialsError::NoBlock("USER NKEY SEED"));
        assert!(!format!("{other} {cut:?}").contains(&own));
    }

    proptest! {
        #[test]
        fn any_key_is_read_back_and_one_wrong_character_noticed(
            key: [u8; 32], at in 0_usize..58, with in 0_usize..32,
        ) {
            let text = seed(USER, &key);
            prop_assert_eq!(text.len(), 58);
            let bytes = BASE32_NOPAD.decode(text.as_bytes()).unwrap();
            prop_assert_eq!(&bytes[2..34], &key);
            let mut wrong = text.clone().into_bytes();
            wrong[at] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[with];
            let wrong = String::from_utf8(wrong).unwrap();
            prop_assert_eq!(Credentials::from_seed(&wrong).is_ok(), wrong == text);
        }

        #[test]
        fn any_text_is_survived(text: String) {
            let _ = Credentials::from_seed(&text);
            let _ = Credentials::from_creds(&text);
            let _ = Credentials::from_creds(&creds(&text, &text));
        }
    }
}
