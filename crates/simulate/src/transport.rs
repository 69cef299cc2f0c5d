//! Between the bytes of the socket and those of HTTP/2: TLS, or nothing.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

/// A connection's TLS, if it has one. Does no I/O.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain,
    Tls(Box<ServerConnection>),
}

/// The peer's TLS is at fault; an alert may be waiting to be sent.
#[derive(Debug)]
pub(crate) struct TlsError(pub(crate) rustls::Error);

impl Transport {
    pub(crate) fn new(tls: Option<&Arc<ServerConfig>>) -> Result<Transport, rustls::Error> {
        let Some(config) = tls else { return Ok(Transport::Plain) };
        let mut connection = ServerConnection::new(Arc::clone(config))?;
        // What waits to be sent is bounded by the loop, which stops reading.
        connection.set_buffer_limit(None);
        Ok(Transport::Tls(Box::new(connection)))
    }

    /// Takes bytes of the socket; `plain` is called with what they say. Its bytes may be none.
    pub(crate) fn receive(
        &mut self,
        mut bytes: &[u8],
        scratch: &mut [u8],
        mut plain: impl FnMut(&[u8]),
    ) -> Result<(), TlsError> {
        let Transport::Tls(tls) = self else {
            plain(bytes);
            return Ok(());
        };
        while !bytes.is_empty() {
            // Reading from memory fails only when the plain text was not taken out, which it is below.
            match tls.read_tls(&mut bytes) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            let state = tls.process_new_packets().map_err(TlsError)?;
            if state.plaintext_bytes_to_read() > 0 {
                let mut reader = tls.reader();
                while let Ok(length @ 1..) = reader.read(scratch) {
                    plain(&scratch[..length]);
                }
            }
        }
        Ok(())
    }

    /// Takes bytes of HTTP/2 and gives those of the socket, with what TLS has to say by itself.
    pub(crate) fn send(&mut self, plain: &mut Vec<u8>, out: &mut Vec<u8>) {
        match self {
            Transport::Plain => out.append(plain),
            Transport::Tls(tls) => {
                // Until the handshake is over there is nobody to say it to.
                if !plain.is_empty() && !tls.is_handshaking() {
                    // Writing to memory without a limit does not fail.
                    let _ = tls.writer().write_all(plain);
                    plain.clear();
                }
                while tls.wants_write() && tls.write_tls(out).is_ok() {}
            }
        }
    }

    /// Whether HTTP/2 may be spoken: there is no TLS, or its handshake has agreed on `h2`. `None`: not yet known.
    pub(crate) fn speaks_http2(&self) -> Option<bool> {
        match self {
            Transport::Plain => Some(true),
            Transport::Tls(tls) if tls.is_handshaking() => None,
            Transport::Tls(tls) => Some(tls.alpn_protocol() == Some(b"h2")),
        }
    }

    /// The client's certificate in DER.
    pub(crate) fn client_certificate(&self) -> Option<&[u8]> {
        match self {
            Transport::Plain => None,
            Transport::Tls(tls) => Some(tls.peer_certificates()?.first()?.as_ref()),
        }
    }

    /// Says that nothing follows.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        if let Transport::Tls(tls) = self {
            tls.send_close_notify();
            while tls.wants_write() && tls.write_tls(out).is_ok() {}
        }
    }
}
