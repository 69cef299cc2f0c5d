//! TLS of the connections that this server makes to engines.

use std::io;

use dunlin_config::Engine;
use dunlin_net::{ClientTls, Tls};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// The name of no server (RFC 6761 §6.4).
const NOBODY: &str = "nobody.invalid";

/// Why certificates cannot be verified: the key at fault, the problem, and how to fix it.
pub type TrustError = (&'static str, String, &'static str);

/// How connections to a server begin. Where the settings ask for TLS, no error leads to plain text: a TLS that cannot be
/// built is replaced by one that trusts nobody, with which no connection is made.
#[derive(Clone, Debug)]
pub enum PeerTls {
    /// As the settings say.
    Plain,
    /// By TLS.
    Tls(Tls),
}

impl PeerTls {
    /// Builds the TLS of an engine. Validation has refused one that cannot be built; should one get here all the same, the
    /// log says that no connection is made.
    pub fn of_engine(engine: &Engine) -> PeerTls {
        if !engine.tls {
            return PeerTls::Plain;
        }
        let built = trust(engine.ca.as_deref())
            .map_err(|(key, error, _)| format!("{key}: {error}"))
            .and_then(|tls| identified(&tls, engine).map_err(|error| error.to_string()));
        PeerTls::Tls(built.unwrap_or_else(|error| {
            let addresses = &engine.addresses;
            tracing::error!(?addresses, error, "closed: the TLS of an engine cannot be built");
            trusts_nobody()
        }))
    }

    /// Returns the TLS configuration; `None` for plain text.
    pub fn config(&self) -> Option<&Tls> {
        match self {
            PeerTls::Plain => None,
            PeerTls::Tls(tls) => Some(tls),
        }
    }

    /// Returns the TLS of a connection to a host; `None` for plain text. Servers name other servers, and no certificate
    /// can bear some of these names: a connection to such a host fails.
    pub fn client(&self, host: &str) -> Option<ClientTls> {
        let tls = self.config()?;
        Some(tls.client(host).unwrap_or_else(|error| {
            tracing::error!(host, %error, "closed: no certificate can bear the name of a server");
            trusts_nobody().client(NOBODY).unwrap_or_else(|_| unreachable!("it is a legal name"))
        }))
    }
}

/// Creates the TLS configuration that trusts these roots, or those of this machine.
///
/// # Errors
/// The key at fault, the problem, and how to fix it.
pub fn trust(ca: Option<&str>) -> Result<Tls, TrustError> {
    match ca {
        Some(ca) => Tls::with_roots(ca.as_bytes()).map_err(|error| {
            let sentence = format!("a certificate in it cannot be read: {error}");
            ("ca", sentence, "set it to the text of the .pem file, all of it")
        }),
        None => Tls::system().map_err(|error| {
            ("tls", error.to_string(), "install ca-certificates on this machine, or set `ca`")
        }),
    }
}

/// Validates the client certificate of an engine.
///
/// # Errors
/// Certificate and key cannot be read, or are not of one pair.
pub fn judge_identity(engine: &Engine) -> io::Result<()> {
    identified(&trusts_nobody(), engine).map(drop)
}

/// Adds the client certificate of an engine, if it has one.
fn identified(tls: &Tls, engine: &Engine) -> io::Result<Tls> {
    match (&engine.tls_client_cert, &engine.tls_client_key) {
        (Some(chain), Some(key)) => {
            tls.with_client_certificate(chain.as_bytes(), key.reveal().as_bytes())
        }
        _ => Ok(tls.clone()),
    }
}

/// A configuration with which every handshake fails: it has no roots.
fn trusts_nobody() -> Tls {
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
    let builder = builder.with_safe_default_protocol_versions();
    let builder =
        builder.unwrap_or_else(|_| unreachable!("the provider has the suites of TLS 1.3"));
    let nobody = builder.with_root_certificates(RootCertStore::empty());
    Tls::from_config(nobody.with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_whose_tls_cannot_be_built_is_never_spoken_to_in_plain_text() {
        let cut = "-----BEGIN CERTIFICATE-----\nMIIB";
        for ca in ["", "no PEM", cut] {
            let engine = Engine { tls: true, ca: Some(ca.into()), ..Engine::default() };
            assert!(PeerTls::of_engine(&engine).client("redis.example").is_some(), "{ca:?}");
        }
        let root = include_str!("../../server/tests/data/root.pem");
        let engine = Engine { tls: true, ca: Some(root.into()), ..Engine::default() };
        let tls = PeerTls::of_engine(&engine);
        // Names that a Sentinel, a cluster or NATS has sent.
        for host in ["redis-1.example", "no host", "", "-a.example", "[::1"] {
            assert!(tls.client(host).is_some(), "{host:?}");
        }
        assert!(PeerTls::of_engine(&Engine::default()).client("redis.example").is_none());
    }
}
