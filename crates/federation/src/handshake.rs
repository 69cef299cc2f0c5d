//! Who is at the other end: each side signs what only the two ends of this connection know.
//!
//! The dialer sends its hello. The listener answers with its own and its signature, then the dialer signs. What is signed has the
//! keying material that TLS exports for this connection, so that a signature is worth nothing on another one: nobody in the middle,
//! and nobody who has recorded one, can use it.

use std::fmt;
use std::sync::Arc;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::frame::{Close, CloseCode, Frame, FrameError, FrameReader, Hello, VERSION};

/// The bytes of a key: those of an Ed25519 public key, and of the seed that a private key is.
pub const KEY_BYTES: usize = 32;
/// The bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// The bytes that TLS exports.
pub const EXPORTER_BYTES: usize = 32;
/// The label under which TLS exports them (RFC 8446 §7.5).
pub const EXPORTER_LABEL: &[u8] = b"EXPERIMENTAL-dunlin-federation";

/// The longest frame before the peer is known.
const FRAME_BYTES_MAX: usize = 1_024;
/// The first bytes of what is signed, so that it is never taken for anything else.
const CONTEXT: &[u8] = b"dunlin federation 1\0";

/// The public key of a domain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

/// A peer's name and keys.
pub type PeerKeys = (Arc<str>, Arc<[PublicKey]>);

/// A key that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError;

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key has 64 hexadecimal digits; `dunlin federation key` makes a pair")
    }
}

impl std::error::Error for KeyError {}

/// Reads 32 bytes in hexadecimal.
fn hex(text: &str) -> Result<[u8; KEY_BYTES], KeyError> {
    let mut bytes = [0; KEY_BYTES];
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return Err(KeyError);
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(KeyError);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(bytes)
}

impl PublicKey {
    /// Reads a key in hexadecimal.
    ///
    /// # Errors
    /// It is not one.
    pub fn parse(text: &str) -> Result<PublicKey, KeyError> {
        hex(text).map(PublicKey)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A domain with its private key.
pub struct Identity {
    name: Arc<str>,
    key: Ed25519KeyPair,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Identity {
    /// Creates the identity of a domain from its private key in hexadecimal.
    ///
    /// # Errors
    /// It is not a key.
    pub fn new(name: &str, key: &str) -> Result<Identity, KeyError> {
        let key = Ed25519KeyPair::from_seed_unchecked(&hex(key)?).map_err(|_| KeyError)?;
        Ok(Identity { name: name.into(), key })
    }

    /// Returns its domain.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the public key, which peers have in their settings.
    pub fn public_key(&self) -> PublicKey {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(self.key.public_key().as_ref());
        PublicKey(key)
    }
}

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It has connected.
    Dialer,
    /// It was connected to.
    Listener,
}

/// Why a handshake has failed; each names what to change, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// What arrived cannot be read.
    Frame(FrameError),
    /// A frame arrived that does not belong there.
    OutOfTurn,
    /// The peer speaks other versions, from the first to the second.
    Version(u16, u16),
    /// The name that the peer gives is not one of a peer, or one that is blocked.
    NotAPeer(String),
    /// The dialed server is another domain: that which was dialed, and that which answered.
    OtherDomain(String, String),
    /// The peer takes this server for another domain: ours, and the one it means.
    WrongName(String, String),
    /// The signature is by none of the keys of this peer.
    WrongKey(String),
    /// The peer has ended the handshake, with this sentence.
    Refused(CloseCode, String),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Frame(error) => error.fmt(f),
            HandshakeError::OutOfTurn => {
                f.write_str("a frame that does not belong into a handshake")
            }
            HandshakeError::Version(min, max) => write!(
                f,
                "the peer speaks versions {min} to {max} of the protocol, and this server {VERSION}: update the older one"
            ),
            HandshakeError::NotAPeer(name) => write!(
                f,
                "`{name}` is not a peer here: add federation.peers.\"{name}\" if it should be, or take it out of federation.blocked"
            ),
            HandshakeError::OtherDomain(dialed, name) => write!(
                f,
                "the server at the address of `{dialed}` is `{name}`: correct federation.peers.\"{dialed}\".address"
            ),
            HandshakeError::WrongName(own, meant) => write!(
                f,
                "the peer takes this server for `{meant}`, and its federation.domain is `{own}`: correct one of them"
            ),
            HandshakeError::WrongKey(name) => write!(
                f,
                "the signature of `{name}` is by none of federation.peers.\"{name}\".keys: set them to what `dunlin federation key` says there"
            ),
            HandshakeError::Refused(_, text) => write!(f, "the peer has refused the link: {text}"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<FrameError> for HandshakeError {
    fn from(error: FrameError) -> HandshakeError {
        HandshakeError::Frame(error)
    }
}

impl HandshakeError {
    /// Appends the frame that says so to the peer. A stranger is not shown who else is a peer, nor that it is blocked.
    pub fn encode_close(&self, own: &str, out: &mut Vec<u8>) {
        let (code, text) = match self {
            HandshakeError::Frame(_) | HandshakeError::OutOfTurn => {
                (CloseCode::Protocol, self.to_string())
            }
            HandshakeError::Version(..) => (
                CloseCode::Version,
                format!(
                    "`{own}` speaks version {VERSION} of the protocol: update the older server"
                ),
            ),
            HandshakeError::NotAPeer(name) => (
                CloseCode::NotAPeer,
                format!(
                    "`{name}` is not a peer of `{own}`: its operator adds federation.peers.\"{name}\""
                ),
            ),
            HandshakeError::OtherDomain(..) | HandshakeError::WrongName(..) => (
                CloseCode::WrongName,
                format!("this is `{own}`: correct the name of the peer, or its address"),
            ),
            HandshakeError::WrongKey(name) => (
                CloseCode::WrongKey,
                format!(
                    "the signature of `{name}` is by none of the keys that `{own}` has for it: its operator sets federation.peers.\"{name}\".keys"
                ),
            ),
            HandshakeError::Refused(..) => return,
        };
        Frame::Close(Close { code, text: &text }).encode(out);
    }
}

/// How far a handshake is.
#[derive(Debug)]
pub enum Progress {
    /// More has to arrive.
    Incomplete,
    /// The peer is who it says. The reader has what came behind.
    Done(Arc<str>, FrameReader),
}

/// One handshake.
#[derive(Debug)]
pub struct Handshake {
    side: Side,
    exporter: [u8; EXPORTER_BYTES],
    nonce: [u8; NONCE_BYTES],
    reader: FrameReader,
    /// Of a dialer: the peer, from the beginning.
    peer: Option<Arc<str>>,
    peer_nonce: Option<[u8; NONCE_BYTES]>,
}

impl Handshake {
    /// Begins as the side that has connected. Appends the first frame.
    pub fn dial(
        identity: &Identity,
        peer: &Arc<str>,
        exporter: [u8; EXPORTER_BYTES],
        nonce: [u8; NONCE_BYTES],
        out: &mut Vec<u8>,
    ) -> Handshake {
        let handshake = Handshake {
            peer: Some(Arc::clone(peer)),
            ..Handshake::new(Side::Dialer, exporter, nonce)
        };
        handshake.hello(identity, peer, out);
        handshake
    }

    /// Begins as the side that was connected to.
    pub fn listen(exporter: [u8; EXPORTER_BYTES], nonce: [u8; NONCE_BYTES]) -> Handshake {
        Handshake::new(Side::Listener, exporter, nonce)
    }

    fn new(side: Side, exporter: [u8; EXPORTER_BYTES], nonce: [u8; NONCE_BYTES]) -> Handshake {
        let reader = FrameReader::default();
        Handshake { side, exporter, nonce, reader, peer: None, peer_nonce: None }
    }

    /// Returns the side.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns the peer: that which was dialed, or that which says to be it.
    pub fn peer(&self) -> Option<&Arc<str>> {
        self.peer.as_ref()
    }

    /// Takes what has arrived. `keys` returns a peer's name and keys; appends frames to `out`.
    ///
    /// # Errors
    /// Why the connection is to be closed; [`HandshakeError::encode_close`] says so to the peer.
    pub fn handle_data(
        &mut self,
        identity: &Identity,
        bytes: &[u8],
        keys: &dyn Fn(&str) -> Option<PeerKeys>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        let mut reader = std::mem::take(&mut self.reader);
        reader.push(bytes);
        while let Some(frame) = reader.next(FRAME_BYTES_MAX)? {
            match frame {
                Frame::Hello(hello) if self.peer_nonce.is_none() => {
                    self.handle_hello(identity, &hello, keys)?;
                    if self.side == Side::Listener {
                        self.hello(identity, hello.name, out);
                        self.sign(identity, out)?;
                    }
                }
                Frame::Auth { signature } if self.peer_nonce.is_some() => {
                    let peer = self.peer.clone().ok_or(HandshakeError::OutOfTurn)?;
                    let (_, keys) =
                        keys(&peer).ok_or_else(|| HandshakeError::NotAPeer(peer.to_string()))?;
                    let other = match self.side {
                        Side::Dialer => Side::Listener,
                        Side::Listener => Side::Dialer,
                    };
                    let signed = self.signed(other, identity.name(), &peer)?;
                    let is_by = |key: &PublicKey| {
                        UnparsedPublicKey::new(&ED25519, key.0).verify(&signed, &signature).is_ok()
                    };
                    if !keys.iter().any(is_by) {
                        return Err(HandshakeError::WrongKey(peer.to_string()));
                    }
                    if self.side == Side::Dialer {
                        self.sign(identity, out)?;
                    }
                    return Ok(Progress::Done(peer, reader));
                }
                Frame::Close(close) => {
                    return Err(HandshakeError::Refused(close.code, close.text.to_owned()));
                }
                _ => return Err(HandshakeError::OutOfTurn),
            }
        }
        self.reader = reader;
        Ok(Progress::Incomplete)
    }

    fn handle_hello(
        &mut self,
        identity: &Identity,
        hello: &Hello<'_>,
        keys: &dyn Fn(&str) -> Option<PeerKeys>,
    ) -> Result<(), HandshakeError> {
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            return Err(HandshakeError::Version(hello.version_min, hello.version_max));
        }
        match &self.peer {
            Some(dialed) if **dialed != *hello.name => {
                return Err(HandshakeError::OtherDomain(dialed.to_string(), hello.name.to_owned()));
            }
            Some(_) => {}
            None => {
                let known = keys(hello.name).filter(|_| *hello.name != **identity.name());
                let (name, _) =
                    known.ok_or_else(|| HandshakeError::NotAPeer(hello.name.to_owned()))?;
                self.peer = Some(name);
            }
        }
        if *hello.peer != **identity.name() {
            let (own, meant) = (identity.name().to_string(), hello.peer.to_owned());
            return Err(HandshakeError::WrongName(own, meant));
        }
        self.peer_nonce = Some(hello.nonce);
        Ok(())
    }

    fn hello(&self, identity: &Identity, peer: &str, out: &mut Vec<u8>) {
        let (version_min, version_max) = (VERSION, VERSION);
        let name: &str = identity.name();
        let nonce = self.nonce;
        Frame::Hello(Hello { version_min, version_max, name, peer, nonce }).encode(out);
    }

    fn sign(&self, identity: &Identity, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let peer = self.peer.as_ref().ok_or(HandshakeError::OutOfTurn)?;
        let signed = self.signed(self.side, identity.name(), peer)?;
        let mut signature = [0; 64];
        signature.copy_from_slice(identity.key.sign(&signed).as_ref());
        Frame::Auth { signature }.encode(out);
        Ok(())
    }

    /// Returns what `by` signs: the connection, who signs, both names and both nonces, the dialer's first.
    fn signed(&self, by: Side, own: &str, peer: &str) -> Result<Vec<u8>, HandshakeError> {
        let peer_nonce = self.peer_nonce.as_ref().ok_or(HandshakeError::OutOfTurn)?;
        let mut sides = [(own, &self.nonce), (peer, peer_nonce)];
        if self.side == Side::Listener {
            sides.swap(0, 1);
        }
        let mut signed = CONTEXT.to_vec();
        signed.push(u8::from(by == Side::Listener));
        signed.extend_from_slice(&self.exporter);
        for (name, nonce) in sides {
            signed.push(name.len() as u8);
            signed.extend_from_slice(name.as_bytes());
            signed.extend_from_slice(nonce);
        }
        Ok(signed)
    }
}
