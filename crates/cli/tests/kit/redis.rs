//! A real Redis for a test, at its own address.

use std::net::SocketAddr;

use dunlin_testkit::Redis;

use super::Addresses;

fn address() -> SocketAddr {
    SocketAddr::new(Addresses::new().client.ip(), 6379)
}

/// One at an address that stays its own.
pub fn start() -> Redis {
    Redis::start_at(address(), &[]).expect("it starts")
}

/// One that speaks TLS alone, and to those alone who show a certificate of this authority; `issue` makes those of a name.
pub fn start_verifying(ca: &str, issue: impl Fn(&str) -> (String, String)) -> Redis {
    let addr = address();
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = issue(&addr.ip().to_string());
    let files = [("ca", ca), ("cert", &*certificate), ("key", &*key)].map(|(name, text)| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    });
    let [ca, certificate, key] = &files;
    let port = addr.port().to_string();
    let tls = ["--port", "0", "--tls-port", &port, "--tls-auth-clients", "yes"];
    let of_tls = ["--tls-ca-cert-file", ca, "--tls-cert-file", certificate, "--tls-key-file", key];
    // It has read its files once it is ready.
    Redis::start_at(addr, &[tls, of_tls].concat()).expect("it starts")
}
