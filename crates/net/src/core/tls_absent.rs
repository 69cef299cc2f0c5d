//! What stands in the place of TLS in a build without the feature `tls`: types of which no value exists, so that each branch
//! that would encrypt is no code.

use std::io;

use super::connection::ConnId;
use super::context::Context;
use super::handler::Handler;

/// The trusted servers of outgoing connections; nothing has them without the feature `tls`.
#[derive(Clone, Debug)]
pub enum Tls {}

/// The identity of a listener; nothing has one without the feature `tls`.
#[derive(Clone, Debug)]
pub enum ServerTls {}

/// TLS to a server; there is none without the feature `tls`.
#[derive(Clone, Debug)]
pub enum ClientTls {}

#[derive(Debug)]
pub(crate) enum Session {}

impl Tls {
    /// Fails: a URL demands TLS, and this build has none.
    ///
    /// # Errors
    ///
    /// Always; the message names the feature.
    pub fn system() -> io::Result<Tls> {
        let missing = "this program is built without TLS; enable the feature `tls` of dunlin-net";
        Err(io::Error::new(io::ErrorKind::Unsupported, missing))
    }

    /// Returns TLS to the server with this name.
    ///
    /// # Errors
    ///
    /// None: there is no value to call it on.
    pub fn client(&self, _: &str) -> io::Result<ClientTls> {
        match *self {}
    }
}

impl Session {
    pub(crate) fn client(to: &ClientTls) -> io::Result<Session> {
        match *to {}
    }

    pub(crate) fn server(tls: &ServerTls) -> io::Result<Session> {
        match *tls {}
    }

    pub(crate) fn bytes(&self) -> usize {
        match *self {}
    }

    pub(crate) fn send(&mut self, _: &[u8], _: &mut Vec<u8>) -> io::Result<()> {
        match *self {}
    }
}

impl<D: Default> Context<D> {
    pub(crate) fn secure<H: Handler<Data = D>>(&mut self, _: &mut H, _: ConnId, session: Session) {
        match session {}
    }

    pub(crate) fn tls_handshake<H: Handler<Data = D>>(&mut self, _: &mut H, _: ConnId) {}

    pub(crate) fn decrypt(
        &mut self,
        _: ConnId,
        _: usize,
        received: usize,
    ) -> io::Result<(usize, bool)> {
        Ok((received, false))
    }

    pub(crate) fn tls_goodbye(&mut self, _: ConnId) {}

    pub(crate) fn tls_cut(&mut self, _: ConnId) {}
}
