//! What a node is called that was given no name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The name of a node that was given none: its host and the port of its clients, with their address if it is one of several of the
/// machine. A host that is called like any other is named by the address under which it reaches others.
pub(crate) fn default_name(host: &str, client: SocketAddr) -> String {
    let is_common =
        matches!(host.split('.').next().unwrap_or_default(), "" | "(none)" | "localhost");
    let is_any = client.ip().is_unspecified()
        || client.ip() == IpAddr::from(Ipv4Addr::LOCALHOST)
        || client.ip() == IpAddr::from(Ipv6Addr::LOCALHOST);
    match (is_common, is_any) {
        (true, _) => {}
        (false, true) => return format!("{host}:{}", client.port()),
        (false, false) => return format!("{host}@{client}"),
    }
    let is_own = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_loopback();
    let own = Some(client.ip()).filter(is_own).or_else(|| {
        // Nothing is sent: the kernel says from which address it would be. The other one is for documentation (RFC 5737).
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(is_own)
    });
    match own {
        Some(ip) => SocketAddr::new(ip, client.port()).to_string(),
        None => format!("{host}:{}", client.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_two_machines_apart() {
        let addr = |text: &str| text.parse().expect("an address");
        assert_eq!(default_name("web-1", addr("0.0.0.0:8000")), "web-1:8000");
        assert_eq!(default_name("web-1", addr("127.0.0.1:8000")), "web-1:8000");
        assert_eq!(default_name("web-1", addr("127.0.0.2:8000")), "web-1@127.0.0.2:8000");
        assert_eq!(default_name("web-1", addr("[fd00::7]:80")), "web-1@[fd00::7]:80");
        assert_eq!(default_name("localhost", addr("10.0.0.7:8000")), "10.0.0.7:8000");
        assert_eq!(default_name("localhost.localdomain", addr("[fd00::7]:80")), "[fd00::7]:80");
        let name = default_name("localhost", addr("0.0.0.0:8000"));
        assert!(name.ends_with(":8000") && !name.starts_with("0.0.0.0"), "{name}");
    }
}
