//! TLS that begins on a connection after plain text, at the peer's request (STARTTLS).
//!
//! Plain text that arrives before the handshake may come from an attacker. A protocol that used it as input after the
//! handshake would execute injected commands. So no unprocessed input may exist when the handshake begins.

use super::connection::{ConnId, Flags, Phase};
use super::context::Context;
use super::error::BeginTlsError;
use super::tls::{ClientTls, Session};
use super::upper::{Protocol, Spoken};
use crate::timeout::TimeoutMs;

impl<D: Default> Context<D> {
    /// Begins TLS as the client on an open connection that has used plain text (STARTTLS in many protocols). `unread`
    /// is the input after the peer's message that requests TLS. It must be empty.
    ///
    /// During the handshake, no input is delivered and no output is sent; `on_secure` reports its end. Output written
    /// meanwhile is sent afterwards, encrypted. If the handshake fails or takes longer than `timeout_ms` (`None`:
    /// [`head_timeout_ms`](crate::Limits::head_timeout_ms), or ten seconds if that is unset), `on_tls_failed` reports
    /// it and the connection ends. The loop reads bytes that it has not delivered yet as TLS records, so plain text
    /// among them also ends the connection. The handler's deadline is cleared.
    ///
    /// ```
    /// # use dunlin_net::{BeginTlsError, ConnId, Context, Tls};
    /// # fn example(cx: &mut Context<()>, conn: ConnId, tls: &Tls, line: &[u8]) -> Result<(), BeginTlsError> {
    /// // The server has said "INFO {...}\r\n" and, by that, that it awaits TLS.
    /// let end = line.iter().position(|&byte| byte == b'\n').map_or(line.len(), |at| at + 1);
    /// let to = tls.client("server.example").map_err(BeginTlsError::Invalid)?;
    /// cx.begin_tls(conn, &to, &line[end..], None)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`BeginTlsError`]. The connection is unchanged.
    pub fn begin_tls(
        &mut self,
        conn: ConnId,
        to: &ClientTls,
        unread: &[u8],
        timeout_ms: TimeoutMs,
    ) -> Result<(), BeginTlsError> {
        let record = self.slab.get(conn).ok_or(BeginTlsError::Stale)?;
        match record.phase {
            Phase::Open => {}
            phase if phase.is_opening() => return Err(BeginTlsError::OutOfTurn),
            _ => return Err(BeginTlsError::Stale),
        }
        let ends = Flags::TLS | Flags::SHUTDOWN_WRITE;
        if record.protocol != Protocol::RAW || record.flags.has(ends) {
            return Err(BeginTlsError::OutOfTurn);
        }
        let kept = record.spill.as_ref().map_or(0, |spill| spill.input.len());
        if unread.len() + kept > 0 {
            return Err(BeginTlsError::Unread(unread.len() + kept));
        }
        if record.output_bytes() > 0 {
            self.flush(conn);
            let record = self.slab.at(conn.index());
            match (record.phase, record.output_bytes()) {
                (Phase::Open, 0) => {}
                (Phase::Open, _) => return Err(BeginTlsError::Unsent),
                _ => return Err(BeginTlsError::Stale),
            }
        }
        let session = Session::client(to).map_err(BeginTlsError::Invalid)?;
        let record = self.slab.at_mut(conn.index());
        record.phase = Phase::Upgrading;
        record.flags.set(Flags::TLS);
        record.flags.clear(Flags::READ_PAUSED);
        // Output waits, and `on_secure` is the next event.
        record.flags.set(Flags::SOCKET_FULL);
        let spill = record.spill.get_or_insert_with(|| self.pool.borrow());
        spill.tls = Some(Box::new(session));
        let profile = record.profile;
        let timeout_ms = timeout_ms.or(self.limits(profile).handshake_timeout_ms());
        self.schedule_own(conn, timeout_ms);
        // The handshake begins in the next turn, because no method calls the handler.
        self.queue_read(conn);
        Ok(())
    }
}
