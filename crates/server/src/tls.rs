//! Certificates of the listeners, and client certificates.
//!
//! All listeners share the certificates; [`ResolvesServerCert`] selects one by the client's server name. A certificate is
//! opened when it is set, so that an unusable one is rejected with the change, and read again when its files change.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use dunlin_config::{Certificate, Config, ConfigError, ConfigErrors, Ingress, Path};
use dunlin_engine_servers::file::read_file;
use dunlin_net::ServerTls;
use dunlin_wire::text::trim_byte_order_mark;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, ServerConfig,
    WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

/// The TLS state of the listeners for one revision of the settings.
pub(crate) struct Tls {
    certificates: Arc<Certificates>,
    /// One for each set of authorities of client certificates.
    servers: Vec<Server>,
}

/// The TLS configuration of all listeners with the same requirement for client certificates.
struct Server {
    client_ca: Option<Arc<str>>,
    /// Not shared with other listeners: a session must not be resumed on one with a stricter requirement.
    tickets: Arc<dyn ProducesTickets>,
    tls: ServerTls,
}

/// The certificates in use. Their files may change while the configuration does not.
#[derive(Debug, Default)]
struct Certificates {
    chosen: ArcSwap<CertificateSet>,
}

/// Certificates, by their DNS names.
#[derive(Debug, Default)]
struct CertificateSet {
    all: Vec<OpenedCertificate>,
}

/// An opened certificate.
#[derive(Clone, Debug)]
struct OpenedCertificate {
    /// Its name in `tls.certificates`.
    name: Box<str>,
    certified: Arc<CertifiedKey>,
    /// In lower case; `*.example.com` matches every name with exactly one more label.
    names: Vec<String>,
    not_after_s: i64,
}

impl Tls {
    /// Opens the certificates of a configuration. Omits unusable ones; [`judge`] reports their errors. A listener whose TLS
    /// cannot be built is closed: [`Tls::server`] returns an error for it.
    pub(crate) fn of(config: &Config, before: Option<(&Config, &Arc<Tls>)>) -> Arc<Tls> {
        let certificates = match before {
            Some((old, tls)) if old.tls == config.tls => Arc::clone(&tls.certificates),
            _ => Arc::new(Certificates::open(config, before)),
        };
        let mut servers: Vec<Server> = Vec::new();
        for (_, ingress) in ingresses(config).filter(|(_, ingress)| ingress.tls) {
            let is_same = |server: &&Server| server.client_ca == ingress.client_ca;
            if servers.iter().any(|server| is_same(&server)) {
                continue;
            }
            let former = before.and_then(|(_, tls)| tls.servers.iter().find(is_same));
            let tickets = former.map(|server| Arc::clone(&server.tickets));
            match Server::new(&certificates, ingress, tickets) {
                Ok(server) => servers.push(server),
                Err(error) => {
                    tracing::error!(%error, "closed: the TLS of a listener cannot be built");
                }
            }
        }
        Arc::new(Tls { certificates, servers })
    }

    /// Returns the TLS configuration of a listener; `None` if its settings say that it speaks plain text.
    ///
    /// # Errors
    /// Its TLS could not be built: it must not listen.
    pub(crate) fn server(&self, ingress: &Ingress) -> io::Result<Option<ServerTls>> {
        if !ingress.tls {
            return Ok(None);
        }
        let server = self.servers.iter().find(|server| server.client_ca == ingress.client_ca);
        let missing =
            || io::Error::other("its TLS cannot be built; see `client_ca` of its ingress");
        server.map(|server| Some(server.tls.clone())).ok_or_else(missing)
    }

    /// When the first of the certificates expires, in Unix seconds; 0 without any.
    pub(crate) fn first_expiry_s(&self) -> u64 {
        let expiries = self.certificates.chosen.load();
        let first = expiries.all.iter().map(|opened| opened.not_after_s).min();
        first.and_then(|at| u64::try_from(at).ok()).unwrap_or(0)
    }

    /// Whether all certificates could be opened. The clock may have been wrong, or a file not there yet.
    pub(crate) fn is_complete(&self, config: &Config) -> bool {
        self.certificates.chosen.load().all.len() == config.tls.certificates.len()
    }

    /// Opens the certificates again after their files have changed.
    ///
    /// # Errors
    /// Returns the errors of unusable certificates, whose former versions stay in use; the others are replaced.
    pub(crate) fn reopen(&self, config: &Config) -> Result<(), ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let former = self.certificates.chosen.load();
        let chosen = open_all(config, |name| former.named(name), &mut errors);
        self.certificates.chosen.store(Arc::new(chosen));
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

impl Server {
    fn new(
        certificates: &Arc<Certificates>,
        ingress: &Ingress,
        tickets: Option<Arc<dyn ProducesTickets>>,
    ) -> io::Result<Server> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = match &ingress.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(roots(ca).map_err(io::Error::other)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().map_err(io::Error::other)?)
            }
        };
        let tickets = match tickets {
            Some(tickets) => tickets,
            None => ring::Ticketer::new().map_err(io::Error::other)?,
        };
        let mut config = builder.with_cert_resolver(Arc::clone(certificates) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Resumption state is in the client's ticket; the server stores none.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::clone(&tickets);
        config.send_tls13_tickets = 1;
        let (client_ca, tls) = (ingress.client_ca.clone(), ServerTls::from_config(config));
        Ok(Server { client_ca, tickets, tls })
    }
}

impl CertificateSet {
    fn named(&self, name: &str) -> Option<OpenedCertificate> {
        self.all.iter().find(|opened| *opened.name == *name).cloned()
    }
}

impl Certificates {
    /// Opens the certificates. If one with unchanged settings cannot be opened, its former version stays in use.
    fn open(config: &Config, before: Option<(&Config, &Arc<Tls>)>) -> Certificates {
        let former = |name: &str| {
            let (old, tls) = before?;
            let (was, is) = (&old.tls.certificates, &config.tls.certificates);
            let is_same = was.get(name) == is.get(name);
            tls.certificates.chosen.load().named(name).filter(|_| is_same)
        };
        let mut errors = ConfigErrors::default();
        let chosen = open_all(config, former, &mut errors);
        errors.iter().for_each(|error| tracing::error!("{error}"));
        Certificates { chosen: ArcSwap::from_pointee(chosen) }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let chosen = self.chosen.load();
        let bears = |opened: &&OpenedCertificate, name: &str| {
            opened.names.iter().any(|of| matches(of, name))
        };
        let named = hello
            .server_name()
            .map(str::to_ascii_lowercase)
            .and_then(|name| chosen.all.iter().find(|opened| bears(opened, &name)));
        named.or(chosen.all.first()).map(|opened| Arc::clone(&opened.certified))
    }
}

/// Whether a certificate for `pattern` is one for `name` (RFC 9525 §6.3).
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(parent) => name.split_once('.').is_some_and(|(_, rest)| rest == parent),
        None => pattern == name,
    }
}

/// Validates changed settings: whether each certificate can be opened and is valid now.
pub(crate) fn judge(before: &Config, after: &Config, errors: &mut ConfigErrors) {
    for (name, _, certificate) in after.tls.certificates.changes_from(&before.tls.certificates) {
        if let Some(certificate) = certificate
            && let Err(error) = open(name, certificate)
        {
            errors.push(error);
        }
    }
}

/// Validates the authorities of client certificates.
pub(crate) fn judge_authorities(after: &Config, errors: &mut ConfigErrors) {
    for (path, ingress) in ingresses(after) {
        if let Some(Err(sentence)) = ingress.client_ca.as_deref().map(roots) {
            let fix = "set it to the text of the .pem file, all of it";
            errors.push(error(path().join("client_ca"), sentence, fix));
        }
    }
}

/// Returns the ingress of each address, with its key in the configuration.
fn ingresses(config: &Config) -> impl Iterator<Item = (impl Fn() -> Path, &Ingress)> {
    let server = &config.server;
    let fixed = [
        ("server.client_ingress", &server.client_ingress),
        ("server.admin_ingress", &server.admin_ingress),
    ];
    let fixed = fixed.into_iter().map(|(key, ingress)| (key, "", ingress));
    let named = config.listeners.iter().map(|(name, of)| ("listeners", name, &of.ingress));
    fixed.chain(named).map(|(key, name, ingress)| {
        let path = move || match name {
            "" => Path::of(key),
            name => Path::of(key).join(name).join("ingress"),
        };
        (path, ingress)
    })
}

/// Describes a PEM error. The library's own text shows labels as bytes.
fn pem_error(error: &pem::Error) -> String {
    let label = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("its end is missing, -----END {}-----", label(end_marker))
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("a section begins with a line that is no PEM: {:?}", label(line))
        }
        pem::Error::NoItemsFound => "it holds no PEM section".to_owned(),
        other => other.to_string(),
    }
}

fn roots(pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trim_byte_order_mark(pem).as_bytes()) {
        let certificate =
            certificate.map_err(|error| format!("it cannot be read: {}", pem_error(&error)))?;
        roots.add(certificate).map_err(|error| format!("it signs nothing: {error}"))?;
    }
    if roots.is_empty() { Err("there is no certificate in PEM in it".into()) } else { Ok(roots) }
}

/// Opens each certificate; uses the former version of one that cannot be opened.
fn open_all(
    config: &Config,
    former: impl Fn(&str) -> Option<OpenedCertificate>,
    errors: &mut ConfigErrors,
) -> CertificateSet {
    let mut all = Vec::new();
    for (name, certificate) in config.tls.certificates.iter() {
        match open(name, certificate) {
            Ok(opened) => all.push(opened),
            Err(error) => {
                all.extend(former(name));
                errors.push(error);
            }
        }
    }
    CertificateSet { all }
}

/// Returns the files of all certificates with their modification times.
pub(crate) fn file_times(config: &Config) -> Vec<(Arc<str>, Option<SystemTime>)> {
    let certificates = config.tls.certificates.values();
    let files = certificates.flat_map(|of| [&of.chain_file, &of.key_file]).flatten();
    let changed = |file: &str| fs::metadata(file).and_then(|meta| meta.modified()).ok();
    files.map(|file| (Arc::clone(file), changed(file))).collect()
}

/// Opens a certificate.
fn open(name: &str, certificate: &Certificate) -> Result<OpenedCertificate, ConfigError> {
    let path = || Path::of("tls.certificates").join(name);
    let text = |key: &str, inline: Option<&str>, file: Option<&str>| match (inline, file) {
        (Some(inline), _) => Ok((path().join(key), inline.to_owned())),
        (None, file) => {
            let (path, file) = (path().join(format!("{key}_file")), file.unwrap_or_default());
            read_file(file).map(|text| (path.clone(), text)).map_err(|cause| {
                let fix = "name a file of a certificate or key in PEM that this process may read";
                error(path, format!("{file:?} cannot be read: {cause}"), fix)
            })
        }
    };
    let Certificate { chain, chain_file, key, key_file } = certificate;
    let key = key.as_ref().map(|key| key.reveal());
    let (chain_path, chain) = text("chain", chain.as_deref(), chain_file.as_deref())?;
    let (key_path, key) = text("key", key, key_file.as_deref())?;

    let unread = |cause: &dyn std::fmt::Display| {
        let fix = "set it to a chain in PEM, the server's own certificate first";
        error(chain_path.clone(), format!("a certificate in it cannot be read: {cause}"), fix)
    };
    // A mark before the first line would hide the first certificate.
    let chain = trim_byte_order_mark(&chain).as_bytes();
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .map_err(|cause| unread(&pem_error(&cause)))?;
    if chain.is_empty() {
        return Err(unread(&"it holds no certificate"));
    }
    let parsed: Vec<X509Certificate<'_>> = chain
        .iter()
        .map(|der| x509_parser::parse_x509_certificate(der).map(|(_, parsed)| parsed))
        .collect::<Result<_, _>>()
        .map_err(|cause| unread(&cause))?;
    if let Some(at) = parsed.windows(2).position(|pair| pair[0].issuer() != pair[1].subject()) {
        let sentence = format!("certificate {} has not signed the one before it", at + 2);
        let fix = "put the server's own certificate first, then each that signed the one before";
        return Err(error(chain_path, sentence, fix));
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    for certificate in &parsed {
        let validity = certificate.validity();
        let day = |time: x509_parser::time::ASN1Time| time.to_datetime().date();
        let sentence = if now_s > validity.not_after.timestamp() {
            format!("{} expired on {}", certificate.subject(), day(validity.not_after))
        } else if now_s < validity.not_before.timestamp() {
            format!("{} is valid from {} on", certificate.subject(), day(validity.not_before))
        } else {
            continue;
        };
        return Err(error(chain_path, sentence, "renew it, or set the clock of this machine"));
    }
    let names = names(&parsed[0]);
    let not_after_s = parsed[0].validity().not_after.timestamp();
    let key =
        PrivateKeyDer::from_pem_slice(trim_byte_order_mark(&key).as_bytes()).map_err(|cause| {
            let fix = "set it to the private key in PEM, without a passphrase";
            error(key_path.clone(), format!("it cannot be read: {}", pem_error(&cause)), fix)
        })?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
    let certified = certified.map_err(|cause| match cause {
        rustls::Error::InconsistentKeys(_) => {
            error(key_path, "it is not the key of the certificate".into(), "give both of one pair")
        }
        cause => error(
            key_path,
            format!("it cannot be used: {cause}"),
            "take an ECDSA, Ed25519 or RSA key",
        ),
    })?;
    Ok(OpenedCertificate { name: name.into(), certified: Arc::new(certified), names, not_after_s })
}

/// Whether a change makes this process open files by name.
pub(crate) fn names_files(before: &Config, after: &Config) -> bool {
    let mut changed = after.tls.certificates.changes_from(&before.tls.certificates);
    changed.any(|(_, _, after)| {
        after.is_some_and(|of| of.chain_file.is_some() || of.key_file.is_some())
    })
}

/// Returns the DNS names of a certificate. Clients never request one by IP address (RFC 6066 §3).
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let dns = names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    dns.collect()
}

fn error(path: Path, sentence: String, fix: &str) -> ConfigError {
    ConfigError { path, line: None, message: sentence, fix: Some(fix.to_owned()) }
}

#[cfg(test)]
mod tests;
