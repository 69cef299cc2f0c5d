//! The WebSocket opening handshake on the loop, server and client side.

use std::io;

use dunlin_wire::http1::{self, Decoded, HeaderSlots, Method};
use dunlin_wire::websocket::handshake::{
    self, ClientConfig, ClientHandshake, ServerConfig, encode_rejection,
};

use super::WebSocketHandler;
use super::protocol::Protocol;
use crate::core::config::ConnectConfig;
use crate::core::connection::ConnId;
use crate::core::context::{Context, Profile};
use crate::core::error::WriteError;
use crate::core::url::Url;
use crate::http::{Request, RequestId};
use crate::websocket::{
    Agreed, ClientHandshakeError, Connection, Handshake, HandshakeError, NewHandshake,
    ProtocolError, WebSocketConfig,
};

/// Why a request was not upgraded to a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// The request is not an acceptable handshake. A response with the error's status was sent.
    #[error("{0}")]
    Handshake(HandshakeError),
    /// The response could not be written.
    #[error("{0}")]
    Write(WriteError),
}

impl<D: Default> Context<D> {
    /// Accepts a WebSocket handshake: responds to the request with 101 and switches the connection to
    /// WebSocket. Returns the chosen subprotocol.
    ///
    /// # Errors
    ///
    /// [`UpgradeError::Handshake`] if the handshake is invalid; a response with the error's status and text was then
    /// sent. [`UpgradeError::Write`] if this request has been answered, the connection is stale, or the handler does not
    /// support WebSocket.
    pub fn upgrade_websocket<'a>(
        &mut self,
        id: RequestId,
        request: &Request<'a>,
        config: &WebSocketConfig<'_>,
    ) -> Result<Option<&'a str>, UpgradeError> {
        self.expect_websocket().map_err(UpgradeError::Write)?;
        let (conn, mut http) = self.exchange(id).map_err(UpgradeError::Write)?;
        http.expect_answer().map_err(|error| UpgradeError::Write(error.into()))?;
        let server = ServerConfig { protocols: config.protocols, deflate: config.deflate };
        let accepted = match handshake::accept(&request.head, &server) {
            Ok(accepted) => accepted,
            Err(error) => {
                let keep_alive = http.keeps_alive();
                self.write_with(conn, 256, |out| encode_rejection(out, error, keep_alive))
                    .map_err(UpgradeError::Write)?;
                http.handle_answered();
                self.answered(conn, &http);
                return Err(UpgradeError::Handshake(error));
            }
        };
        let profile = self.slab.at(conn.index()).profile;
        let profile = self.profile(&Profile {
            agreed: Agreed { limits: config.limits, deflate: accepted.deflate() },
            ..self.profile_at(profile).with_idle_timeout(config.idle_timeout_ms)
        });
        // A loop supports at most 65,536 different sets of limits.
        let profile = profile.map_err(|_| UpgradeError::Write(WriteError::OutOfTurn))?;
        self.write_with(conn, 256, |out| accepted.encode_response(out, &[]))
            .map_err(UpgradeError::Write)?;
        self.becomes_websocket(conn, &Connection::server(), profile);
        Ok(accepted.protocol)
    }

    /// Connects a WebSocket to a `ws://` or `wss://` URL. The host name is resolved, its addresses are raced (RFC
    /// 8305), and `wss://` uses TLS. `on_websocket`, `on_connect_failed` or `on_websocket_error` reports the result.
    /// `target` and `host` of `new` are replaced by those of the URL.
    ///
    /// ```no_run
    /// # fn example(cx: &mut dunlin_net::Context<()>) -> std::io::Result<()> {
    /// use dunlin_net::ConnectConfig;
    /// use dunlin_net::websocket::NewHandshake;
    ///
    /// cx.connect_websocket("wss://chat.example/room", &NewHandshake::default(), &ConnectConfig::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `url` is not a valid URL; [`WriteError::NotPlugged`] in an `io::Error` if the handler does not
    /// support WebSocket; otherwise those of [`Context::connect_url`].
    pub fn connect_websocket(
        &mut self,
        url: &str,
        new: &NewHandshake<'_>,
        config: &ConnectConfig,
    ) -> io::Result<ConnId> {
        self.expect_websocket().map_err(io::Error::other)?;
        let url: Url = url.parse()?;
        let conn = self.connect_url(&url, config)?;
        let new = NewHandshake { target: &url.target, host: &url.authority, ..*new };
        self.websocket_handshake(conn, &new).map_err(io::Error::other)?;
        Ok(conn)
    }

    /// Sends a WebSocket handshake on an outgoing connection, which may still be connecting. `on_websocket` follows, or
    /// `on_websocket_error` if the server rejects it. There is no timeout; the handler may set a deadline.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfTurn`] if the connection is not raw TCP; [`WriteError::NotPlugged`] if the handler does not
    /// support WebSocket; [`WriteError::Stale`].
    pub fn websocket_handshake(
        &mut self,
        conn: ConnId,
        new: &NewHandshake<'_>,
    ) -> Result<(), WriteError> {
        self.expect_websocket()?;
        let record = self.slab.get(conn).ok_or(WriteError::Stale)?;
        if record.protocol != Protocol::Tcp {
            return Err(WriteError::OutOfTurn);
        }
        let handshake = ClientHandshake::new(self.random.take());
        let client = ClientConfig { protocols: new.protocols, deflate: new.deflate };
        self.write_with(conn, 256, |out| {
            handshake.encode_request(out, new.target, new.host, new.headers, &client);
        })?;
        let record = self.slab.at_mut(conn.index());
        record.protocol = Protocol::WebSocketHandshake;
        record.spill.get_or_insert_with(|| self.pool.borrow()).upper.handshake =
            Some(Box::new(Handshake {
                handshake,
                protocols: new.protocols.iter().map(|&protocol| protocol.to_owned()).collect(),
                deflate: new.deflate,
                limits: new.limits,
                idle_timeout_ms: new.idle_timeout_ms,
            }));
        Ok(())
    }

    /// Reads the response to a client's handshake. Returns the number of bytes consumed.
    pub(crate) fn handshake_input<H: WebSocketHandler<Data = D>>(
        &mut self,
        handler: &mut H,
        conn: ConnId,
        bytes: &[u8],
    ) -> usize {
        let record = self.slab.at(conn.index());
        let profile = record.profile;
        let limits = self.limits(profile).http;
        let mut at = 0;
        loop {
            let (unfolded, mut slots, mut slots_unfolded);
            slots = HeaderSlots::new();
            let rest = &bytes[at..];
            let mut decoded = http1::decode_response(rest, &mut slots, &limits, Method::Get);
            if let Err(http1::Error::Folded) = decoded {
                unfolded = http1::unfolded(rest);
                slots_unfolded = HeaderSlots::new();
                decoded =
                    http1::decode_response(&unfolded, &mut slots_unfolded, &limits, Method::Get);
            }
            let (head, consumed) = match decoded {
                Ok(Decoded::NeedMore) => return at,
                Ok(Decoded::Head(head, consumed)) => (head, consumed),
                Err(error) => {
                    self.websocket_error(handler, conn, &ProtocolError::Response(error));
                    return bytes.len();
                }
            };
            at += consumed;
            if head.is_interim() {
                continue;
            }
            let record = self.slab.at_mut(conn.index());
            let Some(asked) = record.spill.as_mut().and_then(|spill| spill.upper.handshake.take())
            else {
                return bytes.len();
            };
            let protocols: Vec<&str> = asked.protocols.iter().map(String::as_str).collect();
            let client = ClientConfig { protocols: &protocols, deflate: asked.deflate };
            let agreed = asked.handshake.check_response(&head, &client).and_then(|connected| {
                let profile = Profile {
                    agreed: Agreed { limits: asked.limits, deflate: connected.deflate },
                    ..self.profile_at(profile).with_idle_timeout(asked.idle_timeout_ms)
                };
                let profile = self.profile(&profile);
                let profile = profile.map_err(|_| ClientHandshakeError::Extensions)?;
                Ok((connected.protocol, profile))
            });
            match agreed {
                Ok((protocol, profile)) => {
                    self.becomes_websocket(conn, &Connection::client(), profile);
                    handler.on_websocket(self, conn, protocol);
                    return at;
                }
                Err(error) => {
                    self.websocket_error(handler, conn, &ProtocolError::Handshake(error));
                    return bytes.len();
                }
            }
        }
    }

    /// Rejects handlers without [`WebSocketHandler`], which could not receive messages.
    fn expect_websocket(&self) -> Result<(), WriteError> {
        if self.plugged.websocket { Ok(()) } else { Err(WriteError::NotPlugged) }
    }

    fn becomes_websocket(&mut self, conn: ConnId, websocket: &Connection, profile: u16) {
        let record = self.slab.at_mut(conn.index());
        (record.protocol, record.profile) = (Protocol::WebSocket(websocket.state()), profile);
        self.schedule_idle(conn, self.limits(profile).idle_timeout_ms);
    }
}
