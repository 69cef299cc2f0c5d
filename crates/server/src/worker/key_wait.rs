//! Commands with a token whose key is not known yet: they wait in the backlog of their connection until the key set was
//! fetched.

use dunlin_net::{ConnId, Context};
use dunlin_protocol::centrifuge::{CommandError, DisconnectCode, ErrorCode};

use super::Worker;
use super::link::Link;
use crate::auth;
use crate::message::bus::BusMessage;
use crate::metrics::Metric;

/// After this a command that waits is looked at again, whatever was heard of the key.
const LOOK_MS: u64 = 1_000;
/// Of a connection that has no session yet no more is kept than a connect takes.
const CONNECT_BYTES_MAX: usize = 20 << 10;

/// Why a token says nothing.
pub(super) enum Unverified {
    /// It is refused.
    Refused(CommandError),
    /// Its key is being fetched, and the command waits.
    KeyPending,
}

impl From<CommandError> for Unverified {
    fn from(error: CommandError) -> Unverified {
        Unverified::Refused(error)
    }
}

impl Unverified {
    /// What a token's error means for a client; `invalid` where the token itself is at fault.
    pub(super) fn of(
        error: &auth::Error,
        invalid: impl FnOnce(&auth::Error) -> CommandError,
    ) -> Unverified {
        match error {
            auth::Error::Pending => Unverified::KeyPending,
            auth::Error::Expired => CommandError::Reply(ErrorCode::TokenExpired.into()).into(),
            // The client comes back: its token may be good.
            auth::Error::Unavailable => {
                CommandError::Reply(ErrorCode::Internal.with_reason(error)).into()
            }
            error => invalid(error).into(),
        }
    }
}

/// What became of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Handled {
    Done,
    /// It comes again.
    AwaitsKey,
}

impl Worker<'_> {
    /// The first of these commands of a connection waits for its key. When it is looked at again at the latest; `None`: it
    /// is sent away, for as much waits as may.
    pub(super) fn await_key(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        commands: &[u8],
    ) -> Option<u64> {
        self.count(Metric::KeysAwaited);
        self.want_keys();
        let link = cx.data(conn)?;
        let is_new = link.session().is_none();
        if is_new {
            link.protocol_state.postponed();
        }
        if is_new && commands.len() > CONNECT_BYTES_MAX || !self.backlogs.await_key(conn) {
            self.key_timed_out(cx, conn);
            return None;
        }
        Some(cx.now_ms() + LOOK_MS)
    }

    /// Has the control thread look which keys are asked for.
    pub(super) fn want_keys(&mut self) {
        if !self.backlogs.awaits_keys() {
            // If its ring is full, it looks by itself, only later.
            let _ = self.endpoint.send(self.state.control_endpoint(), BusMessage::WantKeys);
        }
    }

    /// A key set was fetched, or could not be: who waits goes on.
    pub(super) fn keys_fetched(&mut self, cx: &mut Context<Link>) {
        self.backlogs.handle_keys(cx.now_ms());
    }

    /// A connection has waited for its key for too long, or may not wait. It may come again.
    pub(super) fn key_timed_out(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let why = DisconnectCode::ServerError.with_reason(auth::Error::Unavailable);
        self.disconnect(cx, conn, &why);
    }
}
