//! The PROXY protocol: whose a connection is, and what is refused.

use std::net::SocketAddr;

use dunlin_wire::proxy::{Decoded, Error, HEADER_BYTES_MAX, decode};
use proptest::prelude::*;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn block(version_command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let length = u16::try_from(block.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[version_command, family], &length, block].concat()
}

fn encode(version: u8, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
    match (version, source.ip(), destination.ip()) {
        (1, s, d) => {
            let family = if s.is_ipv4() { "TCP4" } else { "TCP6" };
            let (from, to) = (source.port(), destination.port());
            format!("PROXY {family} {s} {d} {from} {to}\r\n").into_bytes()
        }
        (_, std::net::IpAddr::V4(s), std::net::IpAddr::V4(d)) => {
            block(0x21, 0x11, &[&s.octets()[..], &d.octets(), &ports].concat())
        }
        (_, std::net::IpAddr::V6(s), std::net::IpAddr::V6(d)) => {
            block(0x21, 0x21, &[&s.octets()[..], &d.octets(), &ports].concat())
        }
        _ => unreachable!("of one family"),
    }
}

fn source(bytes: &[u8]) -> Result<Option<String>, Error> {
    match decode(bytes)? {
        Decoded::Header { source, length } => {
            assert!(length <= bytes.len());
            Ok(source.map(|source| source.to_string()))
        }
        Decoded::NeedMore => panic!("{bytes:?} is whole"),
    }
}

#[test]
fn a_line_names_the_client() {
    let named = |line: &[u8]| source(line).map(Option::unwrap_or_default);
    assert_eq!(
        named(b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"),
        Ok("192.0.2.7:56324".into())
    );
    assert_eq!(named(b"PROXY TCP6 2001:db8::7 ::1 1 65535\r\nrest"), Ok("[2001:db8::7]:1".into()));
    assert_eq!(named(b"PROXY UNKNOWN\r\n"), Ok(String::new()));
    assert_eq!(named(b"PROXY UNKNOWN ffff:: whatever\r\n"), Ok(String::new()));
}

#[test]
fn a_line_that_is_none_is_refused() {
    for line in [
        "PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 56324 443 1\r\n",
        "PROXY TCP4 192.0.2.7  198.51.100.1 56324 443\r\n",
        "PROXY TCP4 192.0.2.07 198.51.100.1 56324 443\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 056 443\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 +56 443\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 65536 443\r\n",
        "PROXY TCP4 2001:db8::7 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.7 198.51.100.1 1 2\r\n",
        "PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n",
        "PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\n",
        "PROXY \r\n",
        &format!("PROXY UNKNOWN {}\r\n", "x".repeat(107)),
    ] {
        assert_eq!(source(line.as_bytes()), Err(Error::Line), "{line:?}");
    }
    for other in ["GET / HTTP/1.1\r\n", "proxy TCP4", "PROXX", "\r\n\r\nx", "\x16\x03\x01"] {
        assert_eq!(decode(other.as_bytes()), Err(Error::Missing), "{other:?}");
    }
}

#[test]
fn a_block_names_the_client_and_what_else_it_says_is_skipped() {
    let addresses = [192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 1, 0xbb];
    let with_more = [&addresses[..], b"\x04\0\x03xyz"].concat();
    for of in [&addresses[..], &with_more] {
        let bytes = block(0x21, 0x11, of);
        let expected = Decoded::Header {
            source: Some("192.0.2.7:56324".parse().unwrap()),
            length: bytes.len(),
        };
        assert_eq!(decode(&[&bytes[..], b"GET /"].concat()), Ok(expected));
    }
    for nobody in [block(0x20, 0x00, b""), block(0x20, 0x11, b"xyz"), block(0x21, 0x00, b"xyz")] {
        assert_eq!(source(&nobody), Ok(None));
    }
    assert_eq!(source(&block(0x21, 0x31, &[b'/'; 216])), Ok(None), "a Unix socket");
}

#[test]
fn a_block_that_is_none_is_refused() {
    assert_eq!(source(&block(0x21, 0x11, &[0; 11])), Err(Error::Short));
    assert_eq!(source(&block(0x21, 0x21, &[0; 35])), Err(Error::Short));
    for (version_command, family) in [(0x11, 0x11), (0x22, 0x11), (0x21, 0x12), (0x21, 0x41)] {
        let bytes = block(version_command, family, &[0; 216]);
        assert_eq!(source(&bytes), Err(Error::Unknown), "{version_command:x} {family:x}");
    }
    let long = block(0x21, 0x11, &vec![0; HEADER_BYTES_MAX]);
    assert_eq!(source(&long[..16]), Err(Error::TooLong), "before it is sent");
}

proptest! {
    #[test]
    fn what_a_proxy_says_is_understood_wherever_it_is_cut(
        version in 1u8..=2,
        v6 in any::<bool>(),
        from in any::<(u128, u16)>(),
        to in any::<(u128, u16)>(),
        rest in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let address = |(bits, port): (u128, u16)| match v6 {
            true => SocketAddr::from((std::net::Ipv6Addr::from_bits(bits), port)),
            false => SocketAddr::from((std::net::Ipv4Addr::from_bits(bits as u32), port)),
        };
        let header = encode(version, address(from), address(to));
        for cut in 0..header.len() {
            prop_assert_eq!(decode(&header[..cut]), Ok(Decoded::NeedMore));
        }
        let expected = Decoded::Header { source: Some(address(from)), length: header.len() };
        prop_assert_eq!(decode(&[header, rest].concat()), Ok(expected));
    }
}
