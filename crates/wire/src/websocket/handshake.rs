//! The opening handshake (RFC 6455 §4) of server and client.

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::deflate::{self, Agreement, DeflateConfig, DeflateParams};
use crate::http1::{Method, RequestHead, RequestWriter, ResponseHead, ResponseWriter, Version};

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Accepts keys with stray bits after the 16th byte; the bits are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

/// What a server accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerConfig<'c> {
    /// Subprotocols of the server. The first one in the client's list that is also here is chosen.
    pub protocols: &'c [&'c str],
    /// Terms for permessage-deflate; `None` declines it.
    pub deflate: Option<DeflateConfig>,
}

/// Why a handshake request is rejected, and how to respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[error("{}", self.message())]
pub enum HandshakeError {
    /// The method is not `GET`.
    Method,
    /// The request is not HTTP/1.1, or has a body.
    Request,
    /// `Upgrade: websocket` or `Connection: upgrade` is missing: a plain request for a WebSocket
    /// path.
    UpgradeMissing,
    /// `Sec-WebSocket-Version` is not 13.
    Version,
    /// `Sec-WebSocket-Key` is missing, repeated, or not 16 bytes in base64.
    Key,
    /// `Sec-WebSocket-Protocol` is not a list of distinct tokens.
    Protocol,
    /// `Sec-WebSocket-Extensions` is malformed.
    Extensions,
}

impl HandshakeError {
    /// Returns the status code of the response.
    pub fn status(self) -> u16 {
        match self {
            HandshakeError::Method => 405,
            HandshakeError::UpgradeMissing | HandshakeError::Version => 426,
            _ => 400,
        }
    }

    /// Returns the additional headers of the response.
    pub fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            HandshakeError::Method => &[("Allow", "GET")],
            HandshakeError::UpgradeMissing | HandshakeError::Version => &[
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Version", "13"),
            ],
            _ => &[],
        }
    }

    /// Returns one sentence for the response body that says what to correct.
    pub fn message(self) -> &'static str {
        match self {
            HandshakeError::Method => "A WebSocket handshake is a GET request.",
            HandshakeError::Request => "A WebSocket handshake is HTTP/1.1 without a body.",
            HandshakeError::UpgradeMissing => {
                "This address speaks WebSocket: send Connection: Upgrade and Upgrade: websocket."
            }
            HandshakeError::Version => "Only WebSocket version 13 is spoken here.",
            HandshakeError::Key => "Sec-WebSocket-Key must be 16 bytes in base64, given once.",
            HandshakeError::Protocol => "Sec-WebSocket-Protocol is malformed.",
            HandshakeError::Extensions => "Sec-WebSocket-Extensions is malformed.",
        }
    }
}

/// An accepted handshake; the response is 101.
#[derive(Clone, Debug)]
pub struct Accepted<'a> {
    accept: AcceptKey,
    /// The chosen subprotocol.
    pub protocol: Option<&'a str>,
    deflate: Option<Agreement>,
}

/// Checks a client's handshake (RFC 6455 §4.2.1) and negotiates subprotocol and compression.
///
/// # Errors
///
/// [`HandshakeError`], which has status, headers and body of the response.
pub fn accept<'a>(
    head: &RequestHead<'a>,
    config: &ServerConfig<'_>,
) -> Result<Accepted<'a>, HandshakeError> {
    if head.method != Method::Get {
        return Err(HandshakeError::Method);
    }
    if head.version != Version::Http11 || !head.body.is_done() {
        return Err(HandshakeError::Request);
    }
    if !head.upgrade || !head.headers.has_token("upgrade", "websocket") {
        return Err(HandshakeError::UpgradeMissing);
    }
    let mut versions = head.headers.get_all("sec-websocket-version");
    if versions.next() != Some(b"13") || versions.next().is_some() {
        return Err(HandshakeError::Version);
    }
    let mut keys = head.headers.get_all("sec-websocket-key");
    let key = keys.next().filter(|key| is_key(key)).ok_or(HandshakeError::Key)?;
    if keys.next().is_some() {
        return Err(HandshakeError::Key);
    }
    let mut protocol = None;
    for offered in head.headers.list("sec-websocket-protocol") {
        let offered = str::from_utf8(offered).map_err(|_| HandshakeError::Protocol)?;
        if protocol.is_none() && config.protocols.contains(&offered) {
            protocol = Some(offered);
        }
    }
    let deflate = match &config.deflate {
        Some(config) => deflate::negotiate(head.headers, config),
        None => Ok(None),
    }
    .map_err(|_| HandshakeError::Extensions)?;
    Ok(Accepted { accept: accept_key(key), protocol, deflate })
}

impl Accepted<'_> {
    /// Returns the negotiated compression parameters; `None`: no message is compressed.
    pub fn deflate(&self) -> Option<DeflateParams> {
        self.deflate.as_ref().map(|agreement| agreement.params)
    }

    /// Appends the 101 response, with further headers from the caller.
    pub fn encode_response(&self, out: &mut Vec<u8>, headers: &[(&str, &str)]) {
        out.extend_from_slice(
            b"HTTP/1.1 101 Switching Protocols\r\n\
              Upgrade: websocket\r\n\
              Connection: Upgrade\r\n\
              Sec-WebSocket-Accept: ",
        );
        out.extend_from_slice(&self.accept);
        out.extend_from_slice(b"\r\n");
        for (name, value) in [
            ("Sec-WebSocket-Protocol", self.protocol),
            ("Sec-WebSocket-Extensions", self.deflate.as_ref().map(Agreement::header_value)),
        ] {
            if let Some(value) = value {
                crate::http1::write_field(out, name, value.as_bytes());
            }
        }
        for (name, value) in headers {
            crate::http1::write_field(out, name, value.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Returns the value of `Sec-WebSocket-Accept`.
    pub fn accept_key(&self) -> &AcceptKey {
        &self.accept
    }
}

/// The value of `Sec-WebSocket-Accept`.
pub type AcceptKey = [u8; 28];

/// Computes the accept value for a key (RFC 6455 §4.2.2, step 5.4).
///
/// ```
/// use dunlin_wire::websocket::handshake::accept_key;
///
/// assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), *b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
/// ```
pub fn accept_key(key: &[u8]) -> AcceptKey {
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key);
    hash.update(GUID);
    let mut accept = [0; 28];
    let encoded = BASE64.encode_slice(hash.digest().bytes(), &mut accept);
    debug_assert_eq!(encoded, Ok(28), "20 bytes are 28 characters");
    accept
}

fn is_key(key: &[u8]) -> bool {
    let mut bytes = [0; 18];
    key.len() == 24 && BASE64.decode_slice(key, &mut bytes) == Ok(16)
}

/// What a client requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientConfig<'c> {
    /// Subprotocols to offer, best first.
    pub protocols: &'c [&'c str],
    /// Terms for permessage-deflate; `None` does not offer it.
    pub deflate: Option<DeflateConfig>,
}

/// A client's side of one handshake.
#[derive(Clone, Copy, Debug)]
pub struct ClientHandshake {
    key: [u8; 24],
}

/// What a server accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected<'a> {
    /// The subprotocol that the server chose.
    pub protocol: Option<&'a str>,
    /// The negotiated compression parameters.
    pub deflate: Option<DeflateParams>,
}

/// Why a response does not establish a connection (RFC 6455 §4.1); the client must close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ClientHandshakeError {
    /// A status other than 101; head and body of the response may have details.
    #[error("the server answered with status {0} instead of 101")]
    Status(u16),
    /// `Upgrade: websocket` or `Connection: upgrade` is missing.
    #[error("the response does not upgrade to websocket")]
    Upgrade,
    /// `Sec-WebSocket-Accept` does not match the key of the request.
    #[error("Sec-WebSocket-Accept does not answer the key")]
    AcceptKey,
    /// The server chose a subprotocol that was not offered.
    #[error("the server chose a subprotocol not offered")]
    Protocol,
    /// The server chose an extension that was not offered, or different parameters.
    #[error("the server chose an extension not offered")]
    Extensions,
}

impl ClientHandshake {
    /// Creates a handshake with a nonce, which should be random (RFC 6455 §4.1).
    pub fn new(nonce: [u8; 16]) -> ClientHandshake {
        let mut key = [0; 24];
        let encoded = BASE64.encode_slice(nonce, &mut key);
        debug_assert_eq!(encoded, Ok(24), "16 bytes are 24 characters");
        ClientHandshake { key }
    }

    /// Appends the request, with further headers from the caller.
    pub fn encode_request(
        &self,
        out: &mut Vec<u8>,
        target: &str,
        host: &str,
        headers: &[(&str, &str)],
        config: &ClientConfig<'_>,
    ) {
        let mut request = RequestWriter::new(out, "GET", target, host)
            .header("Upgrade", "websocket")
            .header("Connection", "Upgrade")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", str::from_utf8(&self.key).unwrap_or_default());
        if !config.protocols.is_empty() {
            request = request.header("Sec-WebSocket-Protocol", &config.protocols.join(", "));
        }
        if let Some(config) = &config.deflate {
            request = request.header("Sec-WebSocket-Extensions", &deflate::offer(config));
        }
        request.headers(headers).no_body();
    }

    /// Checks the server's response against the request.
    ///
    /// # Errors
    ///
    /// [`ClientHandshakeError`]. After [`Status`](ClientHandshakeError::Status) the response can be
    /// read like any other.
    pub fn check_response<'a>(
        &self,
        head: &ResponseHead<'a>,
        config: &ClientConfig<'_>,
    ) -> Result<Connected<'a>, ClientHandshakeError> {
        if head.status != 101 {
            return Err(ClientHandshakeError::Status(head.status));
        }
        if !head.headers.has_token("upgrade", "websocket")
            || !head.headers.has_token("connection", "upgrade")
        {
            return Err(ClientHandshakeError::Upgrade);
        }
        if head.headers.get("sec-websocket-accept") != Some(&accept_key(&self.key)) {
            return Err(ClientHandshakeError::AcceptKey);
        }
        let protocol = match head.headers.get("sec-websocket-protocol") {
            None => None,
            Some(chosen) => Some(
                str::from_utf8(chosen)
                    .ok()
                    .filter(|chosen| config.protocols.contains(chosen))
                    .ok_or(ClientHandshakeError::Protocol)?,
            ),
        };
        let deflate = deflate::confirm(head.headers, config.deflate.as_ref())
            .map_err(|_| ClientHandshakeError::Extensions)?;
        Ok(Connected { protocol, deflate })
    }
}

/// Appends the response to a rejected request, with the error's message as body. `keep_alive` is
/// the request's.
pub fn encode_rejection(out: &mut Vec<u8>, error: HandshakeError, keep_alive: bool) {
    ResponseWriter::new(out, error.status())
        .headers(error.headers())
        .header("Content-Type", "text/plain; charset=utf-8")
        .keep_alive(keep_alive, Version::Http11)
        .body(error.message().as_bytes());
}
