//! Connections forwarded by a proxy: a header before all other bytes has the client's address.

use std::io;
use std::net::SocketAddr;

use dunlin_wire::proxy::{Decoded, Error, HEADER_BYTES_MAX, decode};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::connection::{ConnId, Phase};
use super::context::{Context, ListenerId};
use super::handler::Handler;
use super::tls::ServerTls;

/// State of a connection that the handler does not know yet.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) listener: ListenerId,
    pub(crate) peer: Option<SocketAddr>,
    /// TLS, if it follows the header.
    pub(crate) tls: Option<ServerTls>,
}

impl<D: Default> Context<D> {
    /// Waits for the header of a proxy's connection, with a timeout.
    pub(crate) fn await_proxy_header<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        arrival: Arrival,
    ) {
        let record = self.slab.at_mut(conn.index());
        record.spill.get_or_insert_with(|| self.pool.borrow()).arrival = Some(Box::new(arrival));
        let profile = record.profile;
        let timeout_ms = self.limits(profile).handshake_timeout_ms();
        self.schedule_own(conn, timeout_ms);
        self.proxy_header(handler, conn);
    }

    /// Reads the header if it is complete, and not a byte more.
    pub(crate) fn proxy_header<H: Handler<Data = D>>(&mut self, handler: &mut H, conn: ConnId) {
        if self.receive.len() < HEADER_BYTES_MAX {
            self.receive.resize(HEADER_BYTES_MAX, 0);
        }
        let header = &mut self.receive[..HEADER_BYTES_MAX];
        let record = self.slab.at(conn.index());
        let peeked = loop {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            self.stats.reads += 1;
            match rustix::net::recv(record.fd(), &mut *header, flags) {
                Ok((0, _)) => return self.fail_connect(conn, io::ErrorKind::UnexpectedEof.into()),
                Ok((peeked, _)) => break peeked,
                // An event will report further bytes.
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(errno) => return self.fail_connect(conn, errno.into()),
            }
        };
        let decoded = match decode(&header[..peeked]) {
            Ok(Decoded::NeedMore) if peeked == HEADER_BYTES_MAX => Err(Error::TooLong),
            decoded => decoded,
        };
        let (source, length) = match decoded {
            Ok(Decoded::NeedMore) => return,
            Ok(Decoded::Header { source, length }) => (source, length),
            Err(error) => {
                let error = io::Error::new(io::ErrorKind::InvalidData, error);
                return self.fail_connect(conn, error);
            }
        };
        // The whole header is in the socket.
        let taken = rustix::net::recv(record.fd(), &mut header[..length], RecvFlags::DONTWAIT);
        if !matches!(taken, Ok((taken, _)) if taken == length) {
            return self.fail_connect(conn, io::ErrorKind::UnexpectedEof.into());
        }
        self.stats.bytes_in += length as u64;
        self.announced(handler, conn, source);
    }

    /// Passes a connection whose header has arrived to the handler. The header has the client's
    /// address, or none.
    fn announced<H: Handler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        source: Option<SocketAddr>,
    ) {
        let record = self.slab.at_mut(conn.index());
        let arrival = record.spill.as_mut().and_then(|spill| spill.arrival.take());
        self.pool.settle(&mut record.spill);
        let mut data = std::mem::take(&mut record.data);
        let Some(mut arrival) = arrival else { return };
        arrival.peer = source.or(arrival.peer);
        if !self.is_admitted(handler, &arrival, &mut data) {
            return self.release(conn);
        }
        self.slab.at_mut(conn.index()).data = data;
        self.schedule_own(conn, None);
        self.begin(handler, conn, arrival.tls.as_ref());
        if self.slab.get(conn).is_some_and(|record| record.phase == Phase::Open) {
            // No event follows for bytes that arrived with the header.
            self.read(handler, conn, true);
        }
    }
}
