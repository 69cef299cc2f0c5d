//! Commands with a token whose key is not known yet: they wait in the backlog of their connection until the key set was
//! fetched.

use dunlin_net::{ConnId, Context};
use dunlin_protocol::centrifuge::{CommandError, DisconnectCode, ErrorCode};

use super::Worker;
use super::link::Link;
use crate::auth;
use crate::bus_message::BusMessage;
use crate::metrics::Metric;

/// After this a command that waits is looked at again, whatever was heard of the key.
const LOOK_MS: u64 = 1_000;
/// Connections that are looked at as soon as the set is there. Others are within [`LOOK_MS`].
const WAITERS_MAX: usize = 16_384;

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
    /// A connection's next command waits for its key. When it is looked at again at the latest.
    pub(super) fn await_key(&mut self, cx: &mut Context<Link>, conn: ConnId) -> u64 {
        self.count(Metric::KeysAwaited);
        self.want_keys();
        if self.key_waiters.len() < WAITERS_MAX {
            self.key_waiters.push(conn);
        }
        if let Some(link) = cx.data(conn)
            && link.session().is_none()
        {
            link.protocol_state.postponed();
        }
        cx.now_ms() + LOOK_MS
    }

    /// Has the control thread look which keys are asked for.
    pub(super) fn want_keys(&mut self) {
        if self.key_waiters.is_empty() {
            // If its ring is full, it looks by itself, only later.
            let _ = self.endpoint.send(self.state.control_endpoint(), BusMessage::WantKeys);
        }
    }

    /// A key set was fetched, or could not be: who waits goes on.
    pub(super) fn keys_fetched(&mut self, cx: &mut Context<Link>) {
        for conn in std::mem::take(&mut self.key_waiters) {
            self.backlogs.make_ready(conn, cx.now_ms());
        }
    }

    /// The connect of a connection has waited for its key for too long.
    pub(super) fn key_timed_out(&mut self, cx: &mut Context<Link>, conn: ConnId) {
        let why = DisconnectCode::ServerError.with_reason(auth::Error::Unavailable);
        self.disconnect(cx, conn, &why);
    }
}
