//! The client address of a request that a proxy forwards: the `X-Forwarded-For` header.
//!
//! Each proxy appends the address of its peer, so everything left of what a trusted proxy wrote may be forged.
//! `Forwarded` (RFC 7239) is not read: a proxy that writes one of the two headers forwards the other as the client sent
//! it.

use std::net::{IpAddr, SocketAddr};

/// The error for an element that should be an address of a trusted proxy's peer, and is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForwardedForError;

/// Returns the last address that does not belong to a trusted proxy, or else the first address. `None` without any.
///
/// # Errors
/// An element that has to be read is not an address.
pub(crate) fn forwarded_for<'a>(
    elements: impl Iterator<Item = &'a [u8]>,
    is_proxy: impl Fn(IpAddr) -> bool,
) -> Result<Option<IpAddr>, ForwardedForError> {
    let mut client = None;
    for element in elements.collect::<Vec<_>>().into_iter().rev() {
        let address = str::from_utf8(element).ok().and_then(address).ok_or(ForwardedForError)?;
        client = Some(address);
        if !is_proxy(address) {
            break;
        }
    }
    Ok(client)
}

/// Parses an address, with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let without_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    text.parse()
        .or_else(|_| text.parse().map(|address: SocketAddr| address.ip()))
        .or_else(|_| without_brackets.unwrap_or_default().parse().map(IpAddr::V6))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(header: &str) -> Result<Option<String>, ForwardedForError> {
        let elements = header.split(',').map(|element| element.trim().as_bytes());
        let elements = elements.filter(|element| !element.is_empty());
        let is_proxy = |address: IpAddr| address.to_string().starts_with("10.");
        forwarded_for(elements, is_proxy).map(|client| client.map(|client| client.to_string()))
    }

    #[test]
    fn the_last_address_that_no_proxy_has_is_the_clients() {
        for (header, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            ("198.51.100.1, 192.0.2.7", "192.0.2.7"),
            ("whatever, 192.0.2.7, 10.0.0.1,10.0.0.2", "192.0.2.7"),
            ("10.0.0.1", "10.0.0.1"),
            ("192.0.2.7:4711", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("[2001:db8::7]:4711", "2001:db8::7"),
        ] {
            assert_eq!(client(header), Ok(Some(expected.to_owned())), "{header}");
        }
        assert_eq!(client(""), Ok(None));
    }

    #[test]
    fn malformed_header_of_a_trusted_proxy_is_refused() {
        for header in ["unknown", "192.0.2.7, _hidden", "192.0.2.7, 10.0.0.1x", "[192.0.2.7]"] {
            assert_eq!(client(header), Err(ForwardedForError), "{header}");
        }
    }
}
