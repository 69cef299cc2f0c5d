//! A sender on the `h2` crate.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use dunlin_simulate::apns::{Behaviour, Config, Simulator};
use h2::client::{ResponseFuture, SendRequest};
use p256::ecdsa::signature::Signer;
use p256::ecdsa::{Signature, SigningKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;

/// Timeout of a test. No test relies on reaching it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) const TOKEN: &str = "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0";

/// Runs a test in a runtime, with a timeout.
pub(crate) fn scenario<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, story).await.expect("in time") })
}

/// Starts a simulator without TLS.
pub(crate) fn plain(behaviour: Behaviour) -> Simulator {
    Simulator::start(Config { tls: false, behaviour, ..Config::default() }).unwrap()
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Returns a provider token of `team`, issued at `issued_s` in seconds since 1970.
pub(crate) fn provider_token(key: &SigningKey, key_id: &str, team: &str, issued_s: u64) -> String {
    let part = |json: String| URL_SAFE_NO_PAD.encode(json);
    let header = part(format!(r#"{{"alg":"ES256","kid":"{key_id}"}}"#));
    let claims = part(format!(r#"{{"iss":"{team}","iat":{issued_s}}}"#));
    let signed = format!("{header}.{claims}");
    let signature: Signature = key.sign(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
}

/// Returns a deterministic key.
pub(crate) fn key(seed: u8) -> SigningKey {
    SigningKey::from_slice(&[seed; 32]).unwrap()
}

pub(crate) struct Sender {
    pub(crate) requests: SendRequest<Bytes>,
    pub(crate) authorization: String,
    /// Only without TLS.
    pub(crate) ping: Option<h2::PingPong>,
}

/// An answer: status, apns-id, body.
#[derive(Debug)]
pub(crate) struct PushResponse {
    pub(crate) status: u16,
    pub(crate) apns_id: String,
    pub(crate) body: String,
}

impl PushResponse {
    pub(crate) fn reason(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        body["reason"].as_str().unwrap().to_owned()
    }
}

impl Sender {
    pub(crate) async fn connect(simulator: &Simulator) -> Sender {
        let stream = TcpStream::connect(simulator.addr()).await.unwrap();
        let (requests, mut connection) = h2::client::handshake(stream).await.unwrap();
        let ping = connection.ping_pong();
        tokio::spawn(async move { drop(connection.await) });
        Sender { ping, ..Sender::new(requests) }
    }

    /// Connects over TLS, with a client certificate if given.
    pub(crate) async fn connect_tls(
        simulator: &Simulator,
        certificate: Option<(String, String)>,
    ) -> Sender {
        let stream = TcpStream::connect(simulator.addr()).await.unwrap();
        let stream = Sender::open_tls(simulator, certificate, stream).await;
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        Sender::new(requests)
    }

    /// Performs the TLS handshake.
    pub(crate) async fn open_tls(
        simulator: &Simulator,
        certificate: Option<(String, String)>,
        stream: TcpStream,
    ) -> tokio_rustls::client::TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(simulator.ca_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match certificate {
            Some((pem, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
                )
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("api.push.apple.com").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        stream
    }

    fn new(requests: SendRequest<Bytes>) -> Sender {
        let token = provider_token(&key(1), "ABC123DEFG", "DEF123GHIJ", now_s());
        Sender { requests, authorization: format!("bearer {token}"), ping: None }
    }

    /// Begins a push. `headers` replace or extend the default ones; an empty value omits one.
    pub(crate) async fn begin(
        &mut self,
        token: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<ResponseFuture, h2::Error> {
        let path = format!("/3/device/{token}");
        self.request("POST", &path, headers, body).await
    }

    pub(crate) async fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<ResponseFuture, h2::Error> {
        let mut request = http::Request::builder().method(method).uri(format!("http://apns{path}"));
        let authorization = self.authorization.clone();
        let usual = [("authorization", authorization.as_str()), ("apns-topic", "com.example.app")];
        for (name, value) in usual {
            if !headers.iter().any(|(own, _)| *own == name) {
                request = request.header(name, value);
            }
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let mut ready = self.requests.clone().ready().await?;
        let end = body.is_empty();
        let (answer, mut stream) = ready.send_request(request.body(()).unwrap(), end)?;
        if !end {
            stream.send_data(Bytes::copy_from_slice(body), true)?;
        }
        Ok(answer)
    }

    pub(crate) async fn push(&mut self, token: &str, headers: &[(&str, &str)]) -> PushResponse {
        self.push_body(token, headers, br#"{"aps":{"alert":"hello"}}"#).await
    }

    pub(crate) async fn push_body(
        &mut self,
        token: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> PushResponse {
        let answer = self.begin(token, headers, body).await.unwrap();
        read(answer).await.unwrap()
    }
}

/// Reads a complete answer.
pub(crate) async fn read(answer: ResponseFuture) -> Result<PushResponse, h2::Error> {
    let (head, mut stream) = answer.await?.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece?;
        stream.flow_control().release_capacity(piece.len())?;
        body.extend_from_slice(&piece);
    }
    let apns_id =
        head.headers.get("apns-id").map_or(String::new(), |id| id.to_str().unwrap().to_owned());
    Ok(PushResponse {
        status: head.status.as_u16(),
        apns_id,
        body: String::from_utf8(body).unwrap(),
    })
}
