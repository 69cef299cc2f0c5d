//! A non-blocking socket, plain or with TLS.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketType, sockopt,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection};

use crate::reactor::NONBLOCKING;

/// TLS parameters of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) socket: OwnedFd,
    tls: Option<Box<Connection>>,
    /// Bytes (ciphertext with TLS) that the socket has not accepted yet.
    unsent: Vec<u8>,
}

/// Why a transport ended.
#[derive(Debug)]
pub(crate) enum Broken {
    /// FIN, or the close_notify of TLS.
    End,
    Reset,
    Io(io::Error),
    Tls(rustls::Error),
}

impl From<Errno> for Broken {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::CONNRESET | Errno::PIPE => Self::Reset,
            errno => Self::Io(errno.into()),
        }
    }
}

/// Address to open a connection to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PeerAddr<'a> {
    Network(SocketAddr),
    Unix(&'a Path),
}

/// Starts to connect a socket, which becomes writable once it is connected or has failed.
pub(crate) fn begin(at: PeerAddr<'_>) -> io::Result<OwnedFd> {
    let family = match at {
        PeerAddr::Network(address) if address.is_ipv4() => AddressFamily::INET,
        PeerAddr::Network(_) => AddressFamily::INET6,
        PeerAddr::Unix(_) => AddressFamily::UNIX,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, NONBLOCKING, None)?;
    let outcome = match at {
        PeerAddr::Network(address) => {
            sockopt::set_tcp_nodelay(&socket, true)?;
            rustix::net::connect(&socket, &address)
        }
        PeerAddr::Unix(path) => rustix::net::connect(&socket, &SocketAddrUnix::new(path)?),
    };
    match outcome {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

impl Transport {
    pub(crate) fn connect(at: PeerAddr<'_>, tls: Option<&Tls>) -> io::Result<Self> {
        let socket = begin(at)?;
        let tls = match tls {
            None => None,
            Some(tls) => {
                let connection = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone());
                Some(connection.map_err(io::Error::other)?.into())
            }
        };
        Ok(Self::new(socket, tls))
    }

    /// Wraps a connected socket, with its TLS session if it has one.
    pub(crate) fn new(socket: OwnedFd, tls: Option<Connection>) -> Self {
        Self { socket, tls: tls.map(Box::new), unsent: Vec::new() }
    }

    /// Returns whether the TLS handshake is complete, or not needed.
    pub(crate) fn is_open(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking())
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.unsent.len()
    }

    /// Reads plaintext. Returns `None` if there is none now, otherwise the length and whether more may be available.
    #[inline]
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<Option<(usize, bool)>, Broken> {
        match &mut self.tls {
            None => match rustix::net::recv(&self.socket, &mut *into, RecvFlags::empty()) {
                Ok((_, 0)) => Err(Broken::End),
                Ok((_, length)) => Ok(Some((length, length == into.len()))),
                Err(Errno::AGAIN | Errno::INTR) => Ok(None),
                Err(error) => Err(error.into()),
            },
            Some(_) => self.read_tls(into),
        }
    }

    fn read_tls(&mut self, into: &mut [u8]) -> Result<Option<(usize, bool)>, Broken> {
        struct Socket<'a>(&'a OwnedFd);
        impl Read for Socket<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                Ok(rustix::net::recv(self.0, into, RecvFlags::empty())?.1)
            }
        }
        let Some(tls) = &mut self.tls else { return Ok(None) };
        loop {
            match tls.reader().read(into) {
                Ok(0) => return Err(Broken::End),
                Ok(length) => return Ok(Some((length, true))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Broken::End),
            }
            match tls.read_tls(&mut Socket(&self.socket)) {
                Ok(0) => return Err(Broken::End),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(Broken::Reset);
                }
                Err(error) => return Err(Broken::Io(error)),
            }
            if let Err(error) = tls.process_new_packets() {
                // The alert carries the reason to the server; its delivery does not matter.
                let _ = self.flush();
                return Err(Broken::Tls(error));
            }
        }
        self.flush()?;
        Ok(None)
    }

    /// Sends bytes, and buffers those that the socket does not accept. [`has_unsent`](Self::has_unsent) then returns
    /// true until [`flush`](Self::flush) has sent them.
    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        match &mut self.tls {
            None => {
                let mut sent = 0;
                if self.unsent.is_empty() {
                    match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                        Ok(length) => sent = length,
                        Err(Errno::AGAIN | Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                if sent < bytes.len() {
                    self.unsent.extend_from_slice(&bytes[sent..]);
                }
                Ok(())
            }
            Some(tls) => {
                tls.set_buffer_limit(None);
                tls.writer().write_all(bytes).map_err(Broken::Io)?;
                self.flush()
            }
        }
    }

    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut self.unsent).map_err(Broken::Io)?;
            }
        }
        let mut sent = 0;
        while sent < self.unsent.len() {
            match rustix::net::send(&self.socket, &self.unsent[sent..], SendFlags::NOSIGNAL) {
                Ok(length) => sent += length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.unsent.drain(..sent);
        Ok(())
    }

    /// Returns the result of the connect.
    pub(crate) fn connected(&self) -> Result<(), io::Error> {
        match sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) | Err(error) => Err(error.into()),
        }
    }

    /// Ends the stream: TLS close_notify, and FIN.
    pub(crate) fn finish(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // If the peer is gone, the error does not matter.
            let _ = self.flush();
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Closes with a reset: no state lingers in the kernel, and the server notices at once.
    pub(crate) fn abort(self) {
        // Fails only on a dead socket.
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
    }
}
