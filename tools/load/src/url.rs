//! Parses URLs and durations of the command line.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::{Context, Error};

/// The parts of a URL that a client needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// The resolved address of the host; IPv4 is preferred.
    pub address: SocketAddr,
    /// Host and port as in the `Host` header.
    pub host: String,
    /// Path and query.
    pub path: String,
    /// Whether the scheme is `wss` or `https`.
    pub tls: bool,
}

impl Url {
    /// Parses a URL and resolves its host.
    ///
    /// # Errors
    /// An invalid URL; the message shows a valid one.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::new(format!("{text}: {why}; give a URL such as ws://127.0.0.1:8000/path"))
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("no scheme"))?;
        let port = match scheme {
            "ws" | "http" => 80,
            "redis" => 6379,
            "nats" => 4222,
            "mqtt" => 1883,
            "wss" | "https" => 443,
            _ => return Err(wrong("unknown scheme")),
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = if path.is_empty() { "/" } else { path };
        let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
        let address = if has_port { host.to_owned() } else { format!("{host}:{port}") };
        let address = address
            .to_socket_addrs()
            .context(format!("{text}: cannot resolve {host}"))?
            .min_by_key(SocketAddr::is_ipv6)
            .ok_or_else(|| wrong("the host has no address"))?;
        let tls = matches!(scheme, "wss" | "https");
        Ok(Self { address, host: host.to_owned(), path: path.to_owned(), tls })
    }
}

/// Parses a duration such as `500ms`, `25s`, `10m` or `2h`; a bare number is in seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` is no time; write 500ms, 25s or 10m"))?;
    let unit_s = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is no unit of time; use ms, s, m or h")),
    };
    Duration::try_from_secs_f64(number * unit_s).map_err(|_| format!("`{text}` is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url = Url::parse("ws://127.0.0.1:8000/connection/websocket?x=1").unwrap();
        assert_eq!(url.address, SocketAddr::from(([127, 0, 0, 1], 8000)));
        assert_eq!(
            (url.host.as_str(), url.path.as_str()),
            ("127.0.0.1:8000", "/connection/websocket?x=1")
        );
        assert_eq!(Url::parse("nats://127.0.0.1").unwrap().address.port(), 4222);
        assert_eq!(Url::parse("ws://[::1]:9/").unwrap().address.port(), 9);
        let secure = Url::parse("wss://127.0.0.1/").unwrap();
        assert_eq!((secure.address.port(), secure.tls), (443, true));
    }

    #[test]
    fn times() {
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        assert!(duration("soon").is_err() && duration("3 parsecs").is_err());
    }
}
