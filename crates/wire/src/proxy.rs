//! The PROXY protocol, versions 1 and 2, as its receiver reads it
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>): what a proxy that passes bytes on says first on each
//! connection, namely whose it is.
//!
//! ```
//! use dunlin_wire::proxy::{Decoded, decode};
//!
//! let input = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\nGET / HTTP/1.1\r\n";
//! let Decoded::Header { source, length } = decode(input)? else { panic!("it is whole") };
//! assert_eq!(source, Some("192.0.2.7:56324".parse().unwrap()));
//! assert!(input[length..].starts_with(b"GET /"));
//! # Ok::<(), dunlin_wire::proxy::Error>(())
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The longest header that is taken. One of version 1 has 107 bytes at most (§2.1); one of version 2 may have 64 KiB, of
/// which proxies use some hundreds.
pub const HEADER_BYTES_MAX: usize = 4096;

/// The longest line of version 1, its end included (§2.1).
const LINE_BYTES_MAX: usize = 107;
const LINE_START: &[u8] = b"PROXY ";
/// What version 2 begins with (§2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const FIXED_BYTES: usize = 16;

/// What the beginning of a connection holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The header is not complete: give all of it again with more behind it.
    NeedMore,
    /// A header, the first `length` bytes.
    Header {
        /// The client's address. `None`: the proxy speaks for itself, as in a health check (`LOCAL`), or does not know the
        /// client by an IP address (`UNKNOWN`, a Unix socket).
        source: Option<SocketAddr>,
        /// Bytes of the header.
        length: usize,
    },
}

/// Why the beginning of a connection is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It begins as neither version does.
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    /// A malformed line of version 1 (§2.1).
    #[error("the PROXY line is malformed")]
    Line,
    /// A version, command or family that there is not, or not for TCP (§2.2).
    #[error("the PROXY header has an unknown version, command or family")]
    Unknown,
    /// A block of version 2 too short for its addresses (§2.2).
    #[error("the PROXY header is too short for its addresses")]
    Short,
    /// More than [`HEADER_BYTES_MAX`] bytes.
    #[error("the PROXY header is too long")]
    TooLong,
}

/// Reads the header at the start of `bytes`.
///
/// # Errors
///
/// It is malformed, and no further byte can mend it: the connection is to be closed.
pub fn decode(bytes: &[u8]) -> Result<Decoded, Error> {
    let begins_as = |start: &[u8]| {
        let length = start.len().min(bytes.len());
        bytes[..length] == start[..length]
    };
    if begins_as(LINE_START) {
        decode_line(bytes)
    } else if begins_as(SIGNATURE) {
        decode_block(bytes)
    } else {
        Err(Error::Missing)
    }
}

/// Version 1: one line of text.
fn decode_line(bytes: &[u8]) -> Result<Decoded, Error> {
    let within = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = within.iter().position(|&byte| byte == b'\n') else {
        return if within.len() < LINE_BYTES_MAX {
            Ok(Decoded::NeedMore)
        } else {
            Err(Error::Line)
        };
    };
    let line = bytes[LINE_START.len()..end].strip_suffix(b"\r").ok_or(Error::Line)?;
    let line = str::from_utf8(line).map_err(|_| Error::Line)?;
    let mut words = line.split(' ');
    let source = match words.next() {
        // Whatever follows is to be ignored.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(addresses::<Ipv4Addr>(words)?),
        Some("TCP6") => Some(addresses::<Ipv6Addr>(words)?),
        _ => return Err(Error::Line),
    };
    Ok(Decoded::Header { source, length: end + 1 })
}

/// Source and destination address, source and destination port, and no more. Gives the source.
fn addresses<'a, A: FromStr + Into<IpAddr>>(
    mut words: impl Iterator<Item = &'a str>,
) -> Result<SocketAddr, Error> {
    let mut next = || words.next().ok_or(Error::Line);
    let address = |word: &str| word.parse::<A>().map_err(|_| Error::Line);
    let source = address(next()?)?;
    address(next()?)?;
    let (source_port, _) = (port(next()?)?, port(next()?)?);
    match words.next() {
        None => Ok(SocketAddr::new(source.into(), source_port)),
        Some(_) => Err(Error::Line),
    }
}

/// Digits alone, without zeros before them.
fn port(word: &str) -> Result<u16, Error> {
    let plain =
        word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    word.parse().ok().filter(|_| plain).ok_or(Error::Line)
}

/// Version 2: a fixed part, addresses, and what else the proxy has to say, which is skipped.
fn decode_block(bytes: &[u8]) -> Result<Decoded, Error> {
    let Some((&[version_command, family, high, low], behind)) =
        bytes.get(SIGNATURE.len()..).and_then(<[u8]>::split_first_chunk)
    else {
        return Ok(Decoded::NeedMore);
    };
    let is_local = match version_command {
        0x20 => true,
        0x21 => false,
        _ => return Err(Error::Unknown),
    };
    let block = usize::from(u16::from_be_bytes([high, low]));
    if FIXED_BYTES + block > HEADER_BYTES_MAX {
        return Err(Error::TooLong);
    }
    let address_bytes = match (is_local, family) {
        (true, _) | (_, 0x00) => 0,
        (_, 0x11) => 12,
        (_, 0x21) => 36,
        (_, 0x31) => 216,
        _ => return Err(Error::Unknown),
    };
    if block < address_bytes {
        return Err(Error::Short);
    }
    let Some(block) = behind.get(..block) else { return Ok(Decoded::NeedMore) };
    let word = |at: usize| u16::from_be_bytes([block[at], block[at + 1]]);
    let source = match (address_bytes, block.first_chunk::<4>(), block.first_chunk::<16>()) {
        (12, Some(&source), _) => Some(SocketAddr::from((source, word(8)))),
        (36, _, Some(&source)) => Some(SocketAddr::from((source, word(32)))),
        _ => None,
    };
    Ok(Decoded::Header { source, length: FIXED_BYTES + block.len() })
}
