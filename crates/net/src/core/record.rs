//! TLS records after the handshake, sealed and opened with the keys that `rustls` negotiated.
//!
//! A connection keeps only its keys, 120 bytes, and no buffer. Each call sets up a cipher of `ring` from them, in some
//! hundred nanoseconds, while a system call takes several thousand. `rustls` would keep four sets of cipher tables and
//! buffers per connection.
//!
//! Records are handled as in RFC 8446 §5 and §4.6.3, and RFC 5246 §6.2 with RFC 5288 and RFC 7905.

use std::error::Error;
use std::{fmt, io};

use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets, ProtocolVersion};

const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// Maximum plaintext of a record (RFC 8446 §5.1).
const PLAIN_BYTES_MAX: usize = 1 << 14;
/// Maximum expansion of a record by sealing (RFC 5246 §6.2.3; RFC 8446 §5.2 allows less).
const EXPANSION_BYTES_MAX: usize = 2048;
/// Maximum records under one key of AES-GCM (RFC 8446 §5.5), with a margin.
const RECORDS_PER_KEY_MAX: u64 = 1 << 24;

/// Maximum consecutive key updates and empty records: opening them costs more than sending them.
const EMPTY_RECORDS_MAX: u8 = 32;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const KEY_UPDATE: u8 = 24;
const CLOSE_NOTIFY: u8 = 0;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// The peer violated the protocol, or a record is not authentic; the value is the alert to send (RFC 8446 §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordError {
    UnexpectedMessage = 10,
    BadRecord = 20,
    Overflow = 22,
    Decode = 50,
    Internal = 80,
    /// The peer has sent an alert.
    Alerted = 0,
}

impl From<RecordError> for io::Error {
    fn from(error: RecordError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecordError::UnexpectedMessage => "TLS: a message that does not belong there",
            RecordError::BadRecord => "TLS: a record that cannot be opened with the key",
            RecordError::Overflow => "TLS: a record that is too long",
            RecordError::Decode => "TLS: a record that cannot be decoded",
            RecordError::Internal => "TLS: keys or records cannot be made",
            RecordError::Alerted => "TLS: the peer has sent an alert",
        })
    }
}

impl Error for RecordError {}

/// The key of one direction, and the number of its next record.
struct Keys {
    key: [u8; 32],
    iv: [u8; 12],
    sequence: u64,
}

/// Seals and opens the records of one connection.
pub(crate) struct Records {
    /// Derives the next keys.
    kernel: KernelConnection<ServerConnectionData>,
    algorithm: &'static Algorithm,
    sealing: Keys,
    opening: Keys,
    /// The peer has requested an update of our key.
    update_due: bool,
    /// Consecutive records without content.
    empty_records: u8,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").finish_non_exhaustive()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.key = [0; 32];
        std::hint::black_box(&self.key);
    }
}

impl Keys {
    fn of(
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Option<(&'static Algorithm, Keys)> {
        let (algorithm, secret, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return None,
        };
        let mut key = [0; 32];
        key.get_mut(..algorithm.key_len())?
            .copy_from_slice(secret.as_ref().get(..algorithm.key_len())?);
        Some((algorithm, Keys { key, iv: iv.as_ref().try_into().ok()?, sequence }))
    }

    fn cipher(&self, algorithm: &'static Algorithm) -> Result<LessSafeKey, RecordError> {
        let key = UnboundKey::new(algorithm, &self.key[..algorithm.key_len()]);
        key.map(LessSafeKey::new).map_err(|_| RecordError::Internal)
    }

    /// Returns the nonce of the next record (RFC 8446 §5.3).
    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        nonce
    }
}

impl Records {
    /// Takes over after a handshake. `None` for an unsupported cipher.
    pub(crate) fn new(
        secrets: ExtractedSecrets,
        kernel: KernelConnection<ServerConnectionData>,
    ) -> Option<Records> {
        let ((algorithm, sealing), (_, opening)) = (Keys::of(secrets.tx)?, Keys::of(secrets.rx)?);
        Some(Records { kernel, algorithm, sealing, opening, update_due: false, empty_records: 0 })
    }

    fn is_tls13(&self) -> bool {
        self.kernel.protocol_version() == ProtocolVersion::TLSv1_3
    }

    /// Returns the number of nonce bytes in a record (RFC 5288 §3).
    fn explicit_bytes(&self) -> usize {
        if self.is_tls13() || self.algorithm == &CHACHA20_POLY1305 { 0 } else { 8 }
    }

    /// Appends records with these bytes.
    ///
    /// # Errors
    ///
    /// The key has sealed its maximum of records, and TLS 1.2 cannot renew it: the connection must end.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.renew_key(out)?;
        self.seal_as(APPLICATION_DATA, plain, out)
    }

    /// Appends a `close_notify` alert: no more data follows.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        // A connection whose key is used up ends without it.
        let _ = self.seal_as(ALERT, &[WARNING, CLOSE_NOTIFY], out);
    }

    fn seal_as(&mut self, kind: u8, plain: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        let cipher = self.sealing.cipher(self.algorithm)?;
        let (is_tls13, explicit) = (self.is_tls13(), self.explicit_bytes());
        for plain in plain.chunks(PLAIN_BYTES_MAX) {
            let nonce = self.sealing.nonce();
            let sealed_bytes = explicit + plain.len() + usize::from(is_tls13) + TAG_BYTES;
            let header = header(if is_tls13 { APPLICATION_DATA } else { kind }, sealed_bytes);
            out.reserve(HEADER_BYTES + sealed_bytes);
            out.extend_from_slice(&header);
            out.extend_from_slice(&nonce[12 - explicit..]);
            let at = out.len();
            out.extend_from_slice(plain);
            if is_tls13 {
                out.push(kind);
            }
            let aad = match is_tls13 {
                true => Aad::from(AdditionalData::of_header(header)),
                false => {
                    Aad::from(AdditionalData::of_record(self.sealing.sequence, kind, plain.len()))
                }
            };
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = cipher.seal_in_place_separate_tag(nonce, aad, &mut out[at..]);
            out.extend_from_slice(tag.map_err(|_| RecordError::Internal)?.as_ref());
            self.sealing.sequence += 1;
        }
        Ok(())
    }

    /// Renews the key if the peer has requested it, or if it has sealed its maximum of records.
    fn renew_key(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        let is_used_up =
            self.sealing.sequence >= RECORDS_PER_KEY_MAX && self.algorithm != &CHACHA20_POLY1305;
        if !is_used_up && !self.update_due {
            return Ok(());
        }
        if !self.is_tls13() {
            return Err(RecordError::Internal);
        }
        self.seal_as(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], out)?;
        let next = self.kernel.update_tx_secret().ok().and_then(Keys::of);
        (_, self.sealing) = next.ok_or(RecordError::Internal)?;
        self.update_due = false;
        Ok(())
    }

    /// Opens the records at the start of `input` and appends their content to `plain`, and immediate responses to
    /// `out`. Returns the number of bytes consumed, and whether the peer has sent `close_notify`.
    ///
    /// # Errors
    ///
    /// The connection must end; `out` has the alert for the peer.
    pub(crate) fn open(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(usize, bool), RecordError> {
        let opened = self.open_all(input, plain);
        match opened {
            Ok(_) if self.update_due => self.renew_key(out)?,
            Err(error) if error != RecordError::Alerted => {
                let _ = self.seal_as(ALERT, &[FATAL, error as u8], out);
            }
            _ => {}
        }
        opened
    }

    fn open_all(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> Result<(usize, bool), RecordError> {
        let mut at = 0;
        let mut cipher = self.opening.cipher(self.algorithm)?;
        while let Some(&[kind, _, _, high, low]) = input[at..].first_chunk() {
            let length = usize::from(u16::from_be_bytes([high, low]));
            if length > PLAIN_BYTES_MAX + EXPANSION_BYTES_MAX {
                return Err(RecordError::Overflow);
            }
            let Some(record) = input[at..].get_mut(..HEADER_BYTES + length) else { break };
            at += record.len();
            let (kind, payload) = self.open_one(&cipher, kind, record)?;
            let has_content = kind == APPLICATION_DATA && !payload.is_empty();
            self.empty_records = if has_content { 0 } else { self.empty_records + 1 };
            if self.empty_records > EMPTY_RECORDS_MAX {
                return Err(RecordError::UnexpectedMessage);
            }
            match (kind, payload) {
                (APPLICATION_DATA, payload) => plain.extend_from_slice(payload),
                (ALERT, &[_, CLOSE_NOTIFY]) => return Ok((at, true)),
                (ALERT, _) => return Err(RecordError::Alerted),
                (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, wants_ours @ (0 | 1)]) if self.is_tls13() => {
                    let next = self.kernel.update_rx_secret().ok().and_then(Keys::of);
                    (_, self.opening) = next.ok_or(RecordError::Internal)?;
                    cipher = self.opening.cipher(self.algorithm)?;
                    self.update_due |= wants_ours == 1;
                }
                // A renegotiation (RFC 5746; TLS 1.3 has none), or a message that only servers send.
                _ => return Err(RecordError::UnexpectedMessage),
            }
        }
        Ok((at, false))
    }

    /// Opens one record in place. Returns its type and content.
    fn open_one<'r>(
        &mut self,
        cipher: &LessSafeKey,
        kind: u8,
        record: &'r mut [u8],
    ) -> Result<(u8, &'r [u8]), RecordError> {
        let (is_tls13, explicit) = (self.is_tls13(), self.explicit_bytes());
        let (header, sealed) =
            record.split_first_chunk_mut::<HEADER_BYTES>().ok_or(RecordError::Decode)?;
        let plain_bytes =
            sealed.len().checked_sub(explicit + TAG_BYTES).ok_or(RecordError::BadRecord)?;
        if is_tls13 && kind != APPLICATION_DATA {
            return Err(RecordError::UnexpectedMessage);
        }
        let mut nonce = self.opening.nonce();
        nonce[12 - explicit..].copy_from_slice(&sealed[..explicit]);
        if explicit > 0 {
            nonce[..4].copy_from_slice(&self.opening.iv[..4]);
        }
        let aad = match is_tls13 {
            true => Aad::from(AdditionalData::of_header(*header)),
            false => Aad::from(AdditionalData::of_record(self.opening.sequence, kind, plain_bytes)),
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = cipher.open_in_place(nonce, aad, &mut sealed[explicit..]);
        let mut opened: &[u8] = opened.map_err(|_| RecordError::BadRecord)?;
        self.opening.sequence += 1;
        let mut kind = kind;
        if is_tls13 {
            // The type follows the content, before padding zeros (RFC 8446 §5.4).
            let end = opened.iter().rposition(|&byte| byte != 0);
            let end = end.ok_or(RecordError::UnexpectedMessage)?;
            (kind, opened) = (opened[end], &opened[..end]);
        }
        if opened.len() > PLAIN_BYTES_MAX {
            return Err(RecordError::Overflow);
        }
        Ok((kind, opened))
    }
}

/// Returns the header of a record. Its version is TLS 1.2 in all versions (RFC 8446 §5.1).
fn header(kind: u8, bytes: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = (bytes as u16).to_be_bytes();
    [kind, 3, 3, high, low]
}

/// The additional authenticated data of a record.
struct AdditionalData {
    bytes: [u8; 13],
    length: usize,
}

impl AdditionalData {
    /// As in RFC 8446 §5.2.
    fn of_header(header: [u8; HEADER_BYTES]) -> AdditionalData {
        let mut bytes = [0; 13];
        bytes[..HEADER_BYTES].copy_from_slice(&header);
        AdditionalData { bytes, length: HEADER_BYTES }
    }

    /// As in RFC 5246 §6.2.3.3.
    fn of_record(sequence: u64, kind: u8, plain_bytes: usize) -> AdditionalData {
        let mut bytes = [0; 13];
        bytes[..8].copy_from_slice(&sequence.to_be_bytes());
        bytes[8..].copy_from_slice(&header(kind, plain_bytes));
        AdditionalData { bytes, length: 13 }
    }
}

impl AsRef<[u8]> for AdditionalData {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
