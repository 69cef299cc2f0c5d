//! Commands with a token whose key is not known yet: they wait in the backlog of their connection until the key set is fetched.

use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{CommandError, DisconnectCode, ErrorCode};

use super::clients::Clients;
use super::turn::{Core, Turn};
use crate::auth;
use crate::message::control::ControlMessage;
use crate::metrics::Metric;

/// A waiting command is tried again after this time, even if no key was fetched.
const LOOK_MS: u64 = 1_000;
/// The most bytes kept for a connection without a session: enough for a connect.
const CONNECT_BYTES_MAX: usize = 20 << 10;

/// Why a token cannot be verified.
pub(super) enum Unverified {
    /// The token is refused.
    Refused(CommandError),
    /// Its key is being fetched; the command waits.
    KeyPending,
}

impl From<CommandError> for Unverified {
    fn from(error: CommandError) -> Unverified {
        Unverified::Refused(error)
    }
}

impl Unverified {
    /// Returns the client's error for a token's error; `invalid` if the token itself is at fault.
    pub(super) fn of(
        error: &auth::Error,
        invalid: impl FnOnce(&auth::Error) -> CommandError,
    ) -> Unverified {
        match error {
            auth::Error::Pending => Unverified::KeyPending,
            auth::Error::Expired => CommandError::Reply(ErrorCode::TokenExpired.into()).into(),
            // The client reconnects: its token may be valid.
            auth::Error::Unavailable => {
                CommandError::Reply(ErrorCode::Internal.with_reason(error)).into()
            }
            error => invalid(error).into(),
        }
    }
}

/// The result of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Handled {
    Done,
    /// The command will be executed again.
    AwaitsKey,
}

impl Clients {
    /// Makes a connection's first command wait for its key. Returns when it is tried again at the latest; `None`: too much waits,
    /// and the client is disconnected.
    pub(super) fn await_key(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        commands: &[u8],
    ) -> Option<u64> {
        turn.core.count(Metric::KeysAwaited);
        self.want_keys(turn.core);
        let link = turn.cx.data(conn)?;
        let is_new = link.session().is_none();
        if is_new {
            link.protocol_state.postponed();
        }
        if is_new && commands.len() > CONNECT_BYTES_MAX || !self.backlogs.await_key(conn) {
            self.key_timed_out(turn, conn);
            return None;
        }
        Some(turn.cx.now_ms() + LOOK_MS)
    }

    /// Asks the control thread to fetch the requested keys.
    pub(super) fn want_keys(&mut self, core: &mut Core<'_>) {
        if !self.backlogs.awaits_keys() {
            // If the ring is full, the control thread notices the request later by itself.
            let _ = core.endpoint.send(core.state.bus.control(), ControlMessage::WantKeys);
        }
    }

    /// Continues the commands that wait for a key: a key set was fetched, or the fetch failed.
    pub(super) fn keys_fetched(&mut self, turn: &mut Turn<'_, '_>) {
        self.backlogs.handle_keys(turn.cx.now_ms());
    }

    /// Disconnects a client that cannot wait for its key any longer. It may reconnect.
    pub(super) fn key_timed_out(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId) {
        let why = DisconnectCode::ServerError.with_reason(auth::Error::Unavailable);
        self.disconnect(turn, conn, &why);
    }
}
