//! The secrets of a process, derived from one by HKDF (RFC 5869), so that none reveals another.

use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

/// The secret or random values of a process.
#[derive(Clone)]
pub struct DerivedKeys {
    /// Makes session tokens unguessable.
    pub session_token: [u8; 16],
    /// Seed of the hash that finds a channel's home worker.
    pub channel_hash: u64,
    /// Distinguishes session ids of this start from those of earlier ones. Not secret: every session id contains it.
    pub boot: u8,
}

impl DerivedKeys {
    /// Derives the keys from the secret of this process.
    pub fn of(secret: &[u8]) -> DerivedKeys {
        let key = Salt::new(HKDF_SHA256, b"dunlin").extract(secret);
        DerivedKeys {
            session_token: derive(&key, b"session token"),
            channel_hash: u64::from_ne_bytes(derive(&key, b"channel hash")),
            boot: derive::<1>(&key, b"boot")[0],
        }
    }
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive<const N: usize>(key: &Prk, purpose: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let filled = key.expand(&[purpose], Length(N)).and_then(|okm| okm.fill(&mut out));
    // HKDF yields at most 255 hash lengths (RFC 5869 §2.3).
    filled.expect("at most sixteen bytes are asked for");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_a_part_of_another() {
        let secret = [7; 16];
        let keys = DerivedKeys::of(&secret);
        let again = DerivedKeys::of(&secret);
        assert_eq!(
            (keys.session_token, keys.channel_hash),
            (again.session_token, again.channel_hash)
        );
        let bytes = keys.channel_hash.to_ne_bytes();
        assert!(keys.session_token != secret && keys.session_token[8..] != bytes);
        assert!(
            keys.session_token[..8] != bytes
                && DerivedKeys::of(&[8; 16]).channel_hash != keys.channel_hash
        );
    }
}
