//! From a name to a connection that speaks HTTP/2.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::origin::{Origin, OriginError, Proxy, ProxyKind};

/// One address may take so long before the next one is tried.
const ADDRESS_WITHIN: Duration = Duration::from_secs(5);
/// Bytes that the kernel may hold unsent: more is a queue out of our sight.
const KERNEL_UNSENT_BYTES: u32 = 64 << 10;
const PROXY_HEAD_BYTES_MAX: usize = 8 << 10;

/// A byte stream whose other end speaks HTTP/2.
pub type Io = Box<dyn Stream>;

/// What a connection is made of.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes connections. The error says in a sentence what is in the way.
pub trait Connect: Send + Sync + 'static {
    /// A new one.
    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<Io, String>> + Send + '_>>;
}

/// Connects to an [`Origin`]: fresh name look-up, TCP, proxy, TLS.
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
    /// Prepares for connections to an origin.
    ///
    /// # Errors
    ///
    /// What is wrong with its certificates or its name.
    pub fn new(origin: Origin) -> Result<Dialer, OriginError> {
        let tls = TlsConnector::from(Arc::new(origin.tls()?));
        let server = ServerName::try_from(origin.host.clone())
            .map_err(|_| OriginError(format!("{:?} is no host name", origin.host)))?;
        Ok(Dialer { origin, tls, server, turn: AtomicUsize::new(0) })
    }

    async fn dial(&self) -> Result<Io, String> {
        let origin = &self.origin;
        let mut tcp = match &origin.proxy {
            Some(proxy) => {
                let tcp = self.tcp(&format!("{}:{}", proxy.host, proxy.port)).await?;
                tunnel(tcp, proxy, &origin.host, origin.port).await?
            }
            None => match &origin.address {
                Some(address) => self.tcp(address).await?,
                None => self.tcp(&format!("{}:{}", origin.host, origin.port)).await?,
            },
        };
        // A push that waits for others to fill its packet arrives late.
        let _ = tcp.set_nodelay(true);
        let _ = SockRef::from(&tcp).set_tcp_notsent_lowat(KERNEL_UNSENT_BYTES);
        let _ = tcp.flush().await;
        let tls = self
            .tls
            .connect(self.server.clone(), tcp)
            .await
            .map_err(|error| tls_fault(&origin.host, &error))?;
        if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(format!(
                "{} does not speak HTTP/2: something else answers there, a proxy perhaps",
                origin.host
            ));
        }
        Ok(Box::new(tls))
    }

    async fn tcp(&self, address: &str) -> Result<TcpStream, String> {
        let found = lookup_host(address).await;
        let addresses: Vec<_> = found
            .map_err(|error| {
                format!("{address} cannot be looked up ({error}); is the DNS working?")
            })?
            .collect();
        // Connections spread over the addresses of a name.
        let turn = self.turn.fetch_add(1, Relaxed);
        let mut last = format!("{address} has no address");
        for index in 0..addresses.len() {
            let address = addresses[(turn + index) % addresses.len()];
            match timeout(ADDRESS_WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(tcp)) => return Ok(tcp),
                Ok(Err(error)) => last = format!("{address} cannot be reached: {error}"),
                Err(_) => last = format!("{address} does not answer; is a firewall in the way?"),
            }
        }
        Err(last)
    }
}

impl Connect for Dialer {
    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<Io, String>> + Send + '_>> {
        Box::pin(self.dial())
    }
}

/// What TLS did not like, with what to do about it.
fn tls_fault(host: &str, error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        // A bad signature is what an authority of a trusted one's name leaves.
        Some(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => format!(
            "the certificate of {host} is not signed by anybody we trust: if something here opens TLS \
             connections, name its root certificate; otherwise this is not {host}"
        ),
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
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired,
        )) => format!(
            "{host} does not accept our client certificate ({error}); is it expired or revoked?"
        ),
        Some(rustls::Error::NoApplicationProtocol)
        | Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => {
            format!("{host} does not speak HTTP/2")
        }
        _ => format!("no TLS with {host}: {error}"),
    }
}

/// Has a proxy connect us through.
async fn tunnel(
    mut tcp: TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<TcpStream, String> {
    let name = format!("proxy {}:{}", proxy.host, proxy.port);
    let result = match proxy.kind {
        ProxyKind::Http => http_connect(&mut tcp, proxy, host, port).await,
        ProxyKind::Socks5 => socks5_connect(&mut tcp, proxy, host, port).await,
    };
    match result {
        Ok(()) => Ok(tcp),
        Err(TunnelError::Io(error)) => Err(format!("{name}: {error}")),
        Err(TunnelError::Refused(why)) => Err(format!("{name}: {why}")),
    }
}

enum TunnelError {
    Io(io::Error),
    Refused(String),
}

impl From<io::Error> for TunnelError {
    fn from(error: io::Error) -> TunnelError {
        TunnelError::Io(error)
    }
}

async fn http_connect(
    tcp: &mut TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<(), TunnelError> {
    let mut head = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some((user, password)) = &proxy.login {
        let login = BASE64_STANDARD.encode(format!("{user}:{password}"));
        head += &format!("Proxy-Authorization: Basic {login}\r\n");
    }
    head += "\r\n";
    tcp.write_all(head.as_bytes()).await?;
    // Byte by byte: what follows the head belongs to TLS.
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= PROXY_HEAD_BYTES_MAX {
            return Err(TunnelError::Refused(
                "its answer has no end; is it an HTTP proxy?".to_owned(),
            ));
        }
        answer.push(tcp.read_u8().await?);
    }
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    match line.split(' ').nth(1) {
        Some("200") => Ok(()),
        Some("407") => {
            Err(TunnelError::Refused("it wants a login: http://USER:PASSWORD@HOST:PORT".to_owned()))
        }
        _ => Err(TunnelError::Refused(format!("it answered {line:?}"))),
    }
}

async fn socks5_connect(
    tcp: &mut TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<(), TunnelError> {
    let refused = |why: &str| TunnelError::Refused(why.to_owned());
    let method = if proxy.login.is_some() { 2 } else { 0 };
    tcp.write_all(&[5, 1, method]).await?;
    let mut chosen = [0; 2];
    tcp.read_exact(&mut chosen).await?;
    match (chosen, &proxy.login) {
        ([5, 0], _) => {}
        ([5, 2], Some((user, password))) => {
            let (Ok(user_bytes), Ok(password_bytes)) =
                (u8::try_from(user.len()), u8::try_from(password.len()))
            else {
                return Err(refused("user or password have more than 255 bytes"));
            };
            let mut login = vec![1, user_bytes];
            login.extend_from_slice(user.as_bytes());
            login.push(password_bytes);
            login.extend_from_slice(password.as_bytes());
            tcp.write_all(&login).await?;
            let mut answer = [0; 2];
            tcp.read_exact(&mut answer).await?;
            if answer[1] != 0 {
                return Err(refused("it does not accept the login"));
            }
        }
        ([5, 0xff], _) => {
            return Err(refused("it wants a login: socks5://USER:PASSWORD@HOST:PORT"));
        }
        _ => return Err(refused("it does not speak SOCKS5")),
    }
    let Ok(host_bytes) = u8::try_from(host.len()) else {
        return Err(refused("the host's name has more than 255 bytes"));
    };
    let mut request = vec![5, 1, 0, 3, host_bytes];
    request.extend_from_slice(host.as_bytes());
    request.extend_from_slice(&port.to_be_bytes());
    tcp.write_all(&request).await?;
    let mut answer = [0; 4];
    tcp.read_exact(&mut answer).await?;
    if answer[1] != 0 {
        let why = match answer[1] {
            2 => "its rules forbid the connection",
            3 => "it cannot reach the network",
            4 => "it cannot reach the host, or look up its name",
            5 => "the host refuses the connection",
            _ => "it cannot connect",
        };
        return Err(refused(why));
    }
    // The address it bound, which nobody needs.
    let bytes = match answer[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(tcp.read_u8().await?),
        _ => return Err(refused("it does not speak SOCKS5")),
    };
    let mut bound = vec![0; bytes + 2];
    tcp.read_exact(&mut bound).await?;
    Ok(())
}
