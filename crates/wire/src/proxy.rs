//! The receiving side of the PROXY protocol, versions 1 and 2 (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>):
//! a header in which a proxy names the client at the start of each connection.
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

/// Maximum accepted header. Version 1 has at most 107 bytes (§2.1); version 2 may have 64 KiB, of which proxies use some
/// hundreds.
pub const HEADER_BYTES_MAX: usize = 4096;

/// The longest line of version 1, including its end (§2.1).
const LINE_BYTES_MAX: usize = 107;
const LINE_START: &[u8] = b"PROXY ";
/// The signature of version 2 (§2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const FIXED_BYTES: usize = 16;

/// The result of decoding the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The header is incomplete: call again with all of it and more after it.
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

/// Why the start of a connection is not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It begins like neither version.
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    /// A malformed line of version 1 (§2.1).
    #[error("the PROXY line is malformed")]
    Line,
    /// An unknown version, command or family, or one that is not for TCP (§2.2).
    #[error("the PROXY header has an unknown version, command or family")]
    Unknown,
    /// A block of version 2 too short for its addresses (§2.2).
    #[error("the PROXY header is too short for its addresses")]
    Short,
    /// More than [`HEADER_BYTES_MAX`] bytes.
    #[error("the PROXY header is too long")]
    TooLong,
}

/// Decodes the header at the start of `bytes`.
///
/// # Errors
///
/// Returns an error if the header is malformed; more bytes cannot change that, so close the connection.
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

/// Decodes version 1: one line of text.
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
        // The rest of the line is ignored.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(addresses::<Ipv4Addr>(words)?),
        Some("TCP6") => Some(addresses::<Ipv6Addr>(words)?),
        _ => return Err(Error::Line),
    };
    Ok(Decoded::Header { source, length: end + 1 })
}

/// Parses source and destination address, source and destination port, and nothing more. Returns the source.
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

/// Parses digits without leading zeros.
fn port(word: &str) -> Result<u16, Error> {
    let plain =
        word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    word.parse().ok().filter(|_| plain).ok_or(Error::Line)
}

/// Decodes version 2: a fixed part, addresses, and further data, which is skipped.
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
