use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

/// Addresses of a server, kept across restarts.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// The port of clients.
    pub client: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
    /// An address for one more listener.
    pub extra: SocketAddr,
}

impl Addresses {
    /// Returns unique addresses: a loopback address derived from the process id and a counter. A port of 127.0.0.1
    /// could be taken by an outgoing connection before the server restarts.
    #[expect(clippy::new_without_default, reason = "no two are equal")]
    pub fn new() -> Addresses {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let [low, high, ..] = std::process::id().to_le_bytes();
        let [count, more] = COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        assert!(more == 0, "so many servers have no addresses");
        let ip = Ipv4Addr::new(127, 64 | high & 63, low, count);
        let at = |port| SocketAddr::from((ip, port));
        Addresses { client: at(8000), admin: at(8001), extra: at(8002) }
    }
}
