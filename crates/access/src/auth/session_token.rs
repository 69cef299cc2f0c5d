//! The unguessable form of a session id that the emulation endpoint accepts.
//!
//! A session id contains its worker, but is not secret: presence shows it to other clients. With the token, a sender of
//! commands proves that the server issued the id to it. The token is the id followed by a keyed hash, so it needs no memory
//! and is verified before any lookup.

use std::hash::Hasher;

use dunlin_hub::SessionId;
use siphasher::sip::SipHasher24;

/// Returns `id.tag`, the tag as 16 hexadecimal digits.
pub fn issue(secret: &[u8; 16], id: SessionId) -> String {
    format!("{id}.{:016x}", tag(secret, id))
}

/// Returns the session that this process issued the token for, or `None`.
pub fn verify(secret: &[u8; 16], token: &str) -> Option<SessionId> {
    let (id, claimed) = token.split_once('.')?;
    if claimed.len() != 16 {
        return None;
    }
    let id: SessionId = id.parse().ok()?;
    let claimed = u64::from_str_radix(claimed, 16).ok()?;
    // One comparison of two words: its time reveals nothing about where they differ.
    (claimed == tag(secret, id)).then_some(id)
}

fn tag(secret: &[u8; 16], id: SessionId) -> u64 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write_u64(id.to_u64());
    hasher.finish()
}
