//! Opens HTTP/2 connections to a name.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use dunlin_wire::dial::{ATTEMPT_DELAY_MS, Next, Race, interleave};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, InvalidMessage};
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::connect::{Connect, ConnectError, ConnectFault, Connecting, Io, Stage};
use crate::origin::{Origin, OriginError};
use crate::{names, tunnel};

/// Time limit for the response of an address.
const ADDRESS_WITHIN: Duration = Duration::from_secs(5);
/// Time limit for a proxy, which has to connect itself.
const PROXY_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for a TLS handshake.
const TLS_WITHIN: Duration = Duration::from_secs(10);
/// Most unsent bytes in the kernel, where they can no longer be reordered.
const KERNEL_UNSENT_BYTES: u32 = 64 << 10;

/// Connects to an [`Origin`]: name lookup, TCP, proxy, TLS.
pub struct Dialer {
    origin: Origin,
    tls: TlsConnector,
    server: ServerName<'static>,
    turn: AtomicUsize,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Dialer {
    /// Creates a dialer for an origin.
    ///
    /// # Errors
    ///
    /// Returns an error if its certificates or its name are invalid.
    pub fn new(origin: Origin) -> Result<Dialer, OriginError> {
        let tls = TlsConnector::from(Arc::new(origin.tls()?));
        let server = ServerName::try_from(origin.host.clone())
            .map_err(|_| OriginError(format!("{:?} is no host name", origin.host)))?;
        Ok(Dialer { origin, tls, server, turn: AtomicUsize::new(0) })
    }

    async fn dial(&self, stage: Stage) -> Result<Io, ConnectError> {
        let origin = &self.origin;
        let mut tcp = match &origin.proxy {
            Some(proxy) => {
                let at = format!("{}:{}", proxy.host, proxy.port);
                let as_proxy = |error: ConnectError| {
                    ConnectError::new(ConnectFault::Proxy, format!("proxy: {error}"))
                };
                let tcp = self.tcp(&at, &stage).await.map_err(as_proxy)?;
                let (host, port) = origin.reached_at();
                let silent = tunnel::silence(proxy, host, port);
                let tunnel = tunnel::open(tcp, proxy, host, port);
                stage.within(PROXY_WITHIN, ConnectFault::Proxy, silent, tunnel).await??
            }
            None => match &origin.address {
                Some(address) => self.tcp(address, &stage).await?,
                None => self.tcp(&format!("{}:{}", origin.host, origin.port), &stage).await?,
            },
        };
        // Send each push at once instead of waiting to fill a packet.
        let _ = tcp.set_nodelay(true);
        let _ = SockRef::from(&tcp).set_tcp_notsent_lowat(KERNEL_UNSENT_BYTES);
        let _ = tcp.flush().await;
        let silent = format!(
            "{} takes connections and does not answer a TLS handshake; is there a firewall that lets only some \
             traffic pass?",
            origin.host
        );
        let handshake = self.tls.connect(self.server.clone(), tcp);
        let tls = stage.within(TLS_WITHIN, ConnectFault::Tls, silent, handshake).await?;
        let tls = tls.map_err(|error| tls_error(&origin.host, &error))?;
        if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            let why = format!(
                "{} does not speak HTTP/2: something else answers there, a proxy perhaps",
                origin.host
            );
            return Err(ConnectError::new(ConnectFault::Http2, why));
        }
        Ok(Box::new(tls))
    }

    async fn tcp(&self, name: &str, stage: &Stage) -> Result<TcpStream, ConnectError> {
        let mut addresses = names::look_up(name, stage).await?;
        // Distribute connections over the addresses of a name.
        let turn = self.turn.fetch_add(1, Relaxed) % addresses.len().max(1);
        addresses.rotate_left(turn);
        let mut race = Race::new(interleave(addresses), ATTEMPT_DELAY_MS);
        let mut error = format!("{name} has no address; is the name right?");
        let mut fault = ConnectFault::Dns;
        // Dropping the set cancels the other attempts.
        let mut attempts = JoinSet::new();
        let began = Instant::now();
        loop {
            let ended = match race.poll(began.elapsed().as_millis() as u64) {
                Next::Connect(address) => {
                    let shown = match name.parse::<std::net::SocketAddr>() {
                        Ok(_) => name.to_owned(),
                        Err(_) => format!("{name} ({address})"),
                    };
                    let silent = format!("{shown} does not answer; is a firewall in the way?");
                    fault = ConnectFault::Address;
                    stage.wait(fault, silent.clone());
                    attempts.spawn(async move {
                        let answered = timeout(ADDRESS_WITHIN, TcpStream::connect(address)).await;
                        let tcp = answered.map_err(|_| silent)?;
                        tcp.map_err(|error| format!("{shown} cannot be reached: {error}"))
                    });
                    continue;
                }
                Next::Wait(None) => attempts.join_next().await,
                Next::Wait(Some(at_ms)) => {
                    let at = began + Duration::from_millis(at_ms);
                    timeout_at(at, attempts.join_next()).await.unwrap_or_default()
                }
                Next::Failed => return Err(ConnectError::new(fault, error)),
            };
            // No attempt has ended: try the next address.
            let Some(ended) = ended else { continue };
            match ended.unwrap_or_else(|panicked| Err(panicked.to_string())) {
                Ok(tcp) => return Ok(tcp),
                Err(why) => error = why,
            }
            race.handle_failure();
        }
    }
}

impl Connect for Dialer {
    fn connect(&self, stage: Stage) -> Connecting<'_> {
        Box::pin(self.dial(stage))
    }
}

/// Returns whether an error is an alert of a peer that does not complete the handshake. In TLS 1.3 our side is done before
/// the peer has seen our certificate, so such an alert may follow what we have sent meanwhile.
pub(crate) fn is_handshake_alert(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(
        inner,
        Some(rustls::Error::AlertReceived(
            AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError
                | AlertDescription::HandshakeFailure
        ))
    )
}

/// Returns the TLS error with its fix.
pub(crate) fn tls_error(host: &str, error: &io::Error) -> ConnectError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let why = match inner {
        // An authority with the name of a trusted one, but another key, causes a bad signature.
        Some(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => {
            let why = format!(
                "the certificate of {host} is not signed by anybody we trust: if something here opens TLS \
                 connections, name its root certificate; otherwise this is not {host}"
            );
            return ConnectError::new(ConnectFault::Untrusted, why);
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => format!(
            "the certificate of {host} is not valid now; is the clock of this machine right?"
        ),
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => {
            format!("the certificate is for another name than {host}: something else answers there")
        }
        Some(rustls::Error::AlertReceived(
            AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        )) => format!(
            "{host} does not accept our client certificate ({error}); is it expired or revoked?"
        ),
        Some(rustls::Error::NoApplicationProtocol)
        | Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => {
            return ConnectError::new(ConnectFault::Http2, format!("{host} does not speak HTTP/2"));
        }
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => format!(
            "{host} does not speak TLS: something else answers there, a proxy or a login page perhaps"
        ),
        None if matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
        ) =>
        {
            format!(
                "{host} ends the connection in the TLS handshake; is something in the way that does not let it pass?"
            )
        }
        _ => format!("no TLS with {host}: {error}"),
    };
    ConnectError::new(ConnectFault::Tls, why)
}
