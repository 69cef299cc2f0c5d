//! The layer between socket and HTTP/2: TLS, or none.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

/// A connection's TLS session, if any. Does no I/O.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain,
    Tls(Box<ServerConnection>),
}

/// The peer violated TLS; an alert may be pending.
#[derive(Debug)]
pub(crate) struct TlsError(pub(crate) rustls::Error);

impl Transport {
    pub(crate) fn new(tls: Option<&Arc<ServerConfig>>) -> Result<Transport, rustls::Error> {
        let Some(config) = tls else { return Ok(Transport::Plain) };
        let mut connection = ServerConnection::new(Arc::clone(config))?;
        // The connection's loop bounds the pending output: it stops reading.
        connection.set_buffer_limit(None);
        Ok(Transport::Tls(Box::new(connection)))
    }

    /// Decrypts bytes from the socket and passes them to `plain`.
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
            // Reading from memory fails only while plain text is pending; the loop below consumes it.
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

    /// Encrypts bytes of HTTP/2 for the socket, and adds pending TLS messages.
    pub(crate) fn send(&mut self, plain: &mut Vec<u8>, out: &mut Vec<u8>) {
        match self {
            Transport::Plain => out.append(plain),
            Transport::Tls(tls) => {
                // Before the end of the handshake application data cannot be sent.
                if !plain.is_empty() && !tls.is_handshaking() {
                    // Writing to memory without a limit cannot fail.
                    let _ = tls.writer().write_all(plain);
                    plain.clear();
                }
                while tls.wants_write() && tls.write_tls(out).is_ok() {}
            }
        }
    }

    /// Returns whether the connection speaks HTTP/2: it is plain, or ALPN negotiated `h2`. `None`: not yet known.
    pub(crate) fn speaks_http2(&self) -> Option<bool> {
        match self {
            Transport::Plain => Some(true),
            Transport::Tls(tls) if tls.is_handshaking() => None,
            Transport::Tls(tls) => Some(tls.alpn_protocol() == Some(b"h2")),
        }
    }

    /// Returns the client's certificate in DER.
    pub(crate) fn client_certificate(&self) -> Option<&[u8]> {
        match self {
            Transport::Plain => None,
            Transport::Tls(tls) => Some(tls.peer_certificates()?.first()?.as_ref()),
        }
    }

    /// Appends TLS's close_notify.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        if let Transport::Tls(tls) = self {
            tls.send_close_notify();
            while tls.wants_write() && tls.write_tls(out).is_ok() {}
        }
    }
}
