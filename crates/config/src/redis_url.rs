//! Addresses of Redis as a URL: `redis://user:password@host:port/database`, `rediss://`, `redis+sentinel://`, `redis+cluster://`,
//! `unix:`. Percent-encoding is decoded (RFC 3986 §2.1).

use crate::duration::milliseconds;
use crate::engine_kind::EngineTopology;
use crate::entries::wrong_address;

/// What a URL says. The login, the database and TLS apply to all its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RedisUrl {
    pub(crate) topology: EngineTopology,
    /// Host and port, or `unix:` and a path.
    pub(crate) addresses: Vec<String>,
    pub(crate) tls: bool,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<u32>,
    pub(crate) sentinel_primary: Option<String>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    pub(crate) connect_timeout_ms: Option<u64>,
    pub(crate) timeout_ms: Option<u64>,
}

/// The port of a URL that has none.
const PORT: u16 = 6379;
/// The port of a Sentinel.
const SENTINEL_PORT: u16 = 26_379;

impl RedisUrl {
    /// Returns whether the text is a URL, and no plain `host:port`.
    pub(crate) fn is_url(text: &str) -> bool {
        text.contains("://") || text.starts_with("unix:")
    }

    /// Reads a URL. The error never contains the URL, which may have a password.
    pub(crate) fn parse(text: &str) -> Result<RedisUrl, &'static str> {
        let (scheme, rest) = match text.split_once("://") {
            Some(parts) => parts,
            None => ("unix", text.strip_prefix("unix:").ok_or("it is no URL")?),
        };
        let (topology, tls) = match scheme {
            "redis" | "tcp" | "unix" => (EngineTopology::Servers, false),
            "rediss" => (EngineTopology::Servers, true),
            "redis+sentinel" => (EngineTopology::Sentinel, false),
            "rediss+sentinel" => (EngineTopology::Sentinel, true),
            "redis+cluster" => (EngineTopology::Cluster, false),
            "rediss+cluster" => (EngineTopology::Cluster, true),
            _ => {
                return Err(
                    "its scheme is none of redis, rediss, redis+sentinel, redis+cluster and unix",
                );
            }
        };
        let mut url = RedisUrl { topology, tls, ..RedisUrl::default() };
        let rest = rest.split('#').next().unwrap_or_default();
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let place = url.login(place, scheme == "unix")?;
        if scheme == "unix" {
            let path = decoded(place).ok_or("its percent-encoding is broken")?;
            url.addresses = vec![format!("unix:{path}")];
        } else {
            let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
            if !database.is_empty() {
                url.database = Some(database.parse().map_err(|_| "its database is no number")?);
            }
            url.addresses = hosts.split(',').map(|host| url.with_port(host)).collect();
        }
        url.options(query)?;
        let wrong = |address: &String| match address.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => None,
            Some(_) => Some("its path is not absolute"),
            None => wrong_address(address),
        };
        match url.addresses.iter().find_map(wrong) {
            Some(wrong) => Err(wrong),
            None => Ok(url),
        }
    }

    /// Reads several addresses, each a URL, or host and port.
    pub(crate) fn of_all(addresses: &[String]) -> Result<RedisUrl, String> {
        let mut all: Option<RedisUrl> = None;
        for address in addresses {
            let url = match RedisUrl::is_url(address) {
                true => RedisUrl::parse(address)
                    .map_err(|wrong| format!("it cannot be read: {wrong}"))?,
                false => RedisUrl { addresses: vec![address.clone()], ..RedisUrl::default() },
            };
            let Some(first) = &mut all else {
                all = Some(url);
                continue;
            };
            let like_first = RedisUrl { addresses: url.addresses.clone(), ..first.clone() };
            // What the first says holds for those that say nothing.
            let says_nothing =
                url == RedisUrl {
                    addresses: url.addresses.clone(),
                    tls: url.tls,
                    ..RedisUrl::default()
                } && url.tls == first.tls;
            if first.topology == EngineTopology::Cluster || !says_nothing && like_first != url {
                return Err("its addresses have different logins, databases or options".to_owned());
            }
            first.addresses.extend(url.addresses);
        }
        all.ok_or_else(|| "there is no address".to_owned())
    }

    /// Takes user and password from the beginning, and returns the rest. A path may contain an `@`.
    fn login<'a>(&mut self, place: &'a str, is_path: bool) -> Result<&'a str, &'static str> {
        let end = if is_path { 0 } else { place.find('/').unwrap_or(place.len()) };
        let at = match is_path {
            true => place.find('@').filter(|at| !place[..*at].contains('/')),
            false => place[..end].rfind('@'),
        };
        let Some(at) = at else { return Ok(place) };
        let (login, rest) = (&place[..at], &place[at + 1..]);
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        let broken = "the percent-encoding of its login is broken";
        self.user = Some(decoded(user).ok_or(broken)?).filter(|user| !user.is_empty());
        self.password = password.map(|text| decoded(text).ok_or(broken)).transpose()?;
        Ok(rest)
    }

    fn with_port(&self, host: &str) -> String {
        let port = match self.topology {
            EngineTopology::Sentinel => SENTINEL_PORT,
            _ => PORT,
        };
        let host_end = host.rfind(']').map_or(0, |at| at + 1);
        match host[host_end..].contains(':') {
            true => host.to_owned(),
            false => format!("{host}:{port}"),
        }
    }

    /// Reads the query, with the names that Centrifugo has for its options.
    fn options(&mut self, query: &str) -> Result<(), &'static str> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(&value.replace('+', " "))
                .ok_or("the percent-encoding of its query is broken")?;
            let is_on = matches!(value.as_str(), "true" | "1" | "t" | "T" | "TRUE" | "True");
            match name {
                "addr" => {
                    let address = self.with_port(&value);
                    self.addresses.push(address);
                }
                "db" => {
                    self.database = Some(value.parse().map_err(|_| "its database is no number")?);
                }
                "sentinel_master_name" => {
                    self.topology = EngineTopology::Sentinel;
                    self.sentinel_primary = Some(value);
                }
                "sentinel_user" => self.sentinel_user = Some(value),
                "sentinel_password" => self.sentinel_password = Some(value),
                "tls_enabled" | "sentinel_tls_enabled" => self.tls |= is_on,
                "connect_timeout" => self.connect_timeout_ms = milliseconds(&value),
                "io_timeout" => self.timeout_ms = milliseconds(&value),
                "force_resp2" | "replica_client_enabled" | "client_name" => {}
                _ => return Err("its query has an option that is not known"),
            }
        }
        Ok(())
    }
}

/// Decodes percent-encoding (RFC 3986 §2.1).
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let digits =
            part.get(..2).filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> RedisUrl {
        RedisUrl::parse(url).unwrap_or_else(|wrong| panic!("{url}: {wrong}"))
    }

    #[test]
    fn redis_url_with_percent_encoded_login_is_decoded() {
        let url = parse("rediss://ada:p%40s%2Fs:w@10.0.0.7:6380/3");
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("ada"), Some("p@s/s:w")));
        assert_eq!(
            (url.addresses, url.tls, url.database),
            (vec!["10.0.0.7:6380".into()], true, Some(3))
        );
        let url = parse("redis://:secret@redis");
        assert_eq!((url.user, url.password.as_deref()), (None, Some("secret")));
        assert_eq!(url.addresses, ["redis:6379"]);
    }

    #[test]
    fn redis_url_of_sentinels_and_clusters_names_all_addresses() {
        let url = parse(
            "redis+sentinel://:p@s1?sentinel_master_name=mymaster&addr=s2:26380&sentinel_password=q%20r&io_timeout=1.5s",
        );
        assert_eq!(url.topology, EngineTopology::Sentinel);
        assert_eq!(url.addresses, ["s1:26379", "s2:26380"]);
        assert_eq!(
            (url.sentinel_primary.as_deref(), url.sentinel_password.as_deref()),
            (Some("mymaster"), Some("q r"))
        );
        assert_eq!(url.timeout_ms, Some(1_500));
        let url = parse("redis+cluster://10.0.0.1:7000,10.0.0.2:7000?addr=[::1]:7001");
        assert_eq!(url.topology, EngineTopology::Cluster);
        assert_eq!(url.addresses, ["10.0.0.1:7000", "10.0.0.2:7000", "[::1]:7001"]);
    }

    #[test]
    fn redis_url_of_a_unix_socket_is_its_path() {
        for (url, path) in [
            ("unix:/run/redis.sock", "unix:/run/redis.sock"),
            ("unix:///run/redis%20a.sock", "unix:/run/redis a.sock"),
            ("unix://u:p@/run/redis.sock?db=2", "unix:/run/redis.sock"),
        ] {
            assert_eq!(parse(url).addresses, [path], "{url}");
        }
        assert_eq!(parse("unix://u:p@/run/redis.sock?db=2").database, Some(2));
        assert_eq!(parse("unix:///run/a@b.sock").addresses, ["unix:/run/a@b.sock"]);
    }

    #[test]
    fn redis_url_that_cannot_be_read_is_refused_without_its_password() {
        for url in [
            "http://a",
            "redis://",
            "redis://u:p%4@a",
            "redis://a:b",
            "redis://a/x",
            "unix:",
            "unix:redis.sock",
            "redis://a?sharded=1",
            "redis",
        ] {
            assert!(RedisUrl::parse(url).is_err(), "{url}");
        }
    }
}
