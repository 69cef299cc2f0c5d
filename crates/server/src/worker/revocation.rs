//! Token revocation: requested by API callers, executed by the admin thread, followed by the end of the sessions that used the
//! tokens.

use dunlin_hub::{SessionId, code::reconnects};
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::DisconnectCode;

use super::api::Api;
use super::clients::Clients;
use super::parts::{CommandPlace, Pending, TokenFacts};
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use crate::api::{ApiError, ApiErrorCode, CommandOutcome};
use crate::auth::revocation::{
    NAME_BYTES_MAX, Revocation, RevocationError, Revoked, TokenId, TokenRevoked, concerns,
};
use crate::message::admin::AdminMessage;
use crate::metrics::Metric;

const REVOKED: &str = "the token was revoked";

impl Api {
    /// Asks the admin thread to revoke tokens. `Err`: the command is answered already.
    pub(super) fn revoke(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        revocation: Revocation,
    ) -> Result<(), ApiError> {
        let token = self.api_token(turn, place)?;
        let (worker, revocation) = (turn.core.index, Box::new(revocation));
        self.tell_revocations(turn.core, token, AdminMessage::Revoke { worker, token, revocation })
    }

    /// Asks the admin thread to unblock a user. `Err`: the command is answered already.
    pub(super) fn unblock(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        user: &str,
    ) -> Result<(), ApiError> {
        let token = self.api_token(turn, place)?;
        let worker = turn.core.index;
        self.tell_revocations(
            turn.core,
            token,
            AdminMessage::Unblock { worker, token, user: user.into() },
        )
    }

    fn tell_revocations(
        &mut self,
        core: &mut Core<'_>,
        token: u64,
        message: AdminMessage,
    ) -> Result<(), ApiError> {
        if core.endpoint.send(core.state.bus.admin(), message).is_err() {
            core.count(Metric::BusRefused);
            core.pending.take(token);
            return Err(dunlin_hub::Error::Overloaded.into());
        }
        Ok(())
    }

    /// Handles the admin thread's reply to such a request.
    pub(super) fn handle_revoke_reply(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        token: u64,
        result: Result<(), RevocationError>,
    ) {
        // The requester may have been answered with a timeout.
        let Some(Pending::Api(place)) = turn.core.pending.take(token) else { return };
        let answer = match result {
            Ok(()) => Ok(CommandOutcome::Done),
            Err(RevocationError::Full) => Err(ApiErrorCode::LimitExceeded.with_reason(
                "client.token.revocations_max is reached; give revocations an end (expire_at), or raise it",
            )),
            Err(RevocationError::TooLong) => Err(ApiErrorCode::BadRequest.with_reason(
                format_args!("the id or the user has more than {NAME_BYTES_MAX} bytes"),
            )),
            Err(RevocationError::NotOnDisk) => Err(ApiErrorCode::Internal.with_reason(
                "it is in force, but the disk does not take it: a restart would forget it",
            )),
        };
        self.api_answered(turn, clients, place, answer);
    }
}

impl Clients {
    /// Ends the sessions of revoked tokens: those of a user now, those of a token within a second, because that takes a scan of
    /// all sessions.
    pub(super) fn handle_revoked(&mut self, turn: &mut Turn<'_, '_>, revocation: &Revocation) {
        match &revocation.of {
            Revoked::Jti(jti) => {
                self.sweeps.revoke(turn.core.state.revocations.id_of_jti(jti));
            }
            Revoked::User { user, .. } | Revoked::Blocked(user) => {
                let concerned = |session: &SessionId| {
                    let token = self.sessions.heartbeat.token(*session);
                    token.is_some_and(|token| concerns(revocation, token.issued_at_s()))
                };
                let sessions: Vec<SessionId> = turn.core.hub.sessions_of(user).collect();
                let is_it = |issued_at_s| concerns(revocation, issued_at_s);
                let subscriptions = sessions
                    .iter()
                    .flat_map(|of| self.sessions.grants.issued(*of, is_it))
                    .collect();
                let ended = sessions.into_iter().filter(concerned).collect();
                self.end_revoked(turn, ended);
                self.invalidate_subscriptions(turn, subscriptions, REVOKED);
            }
        }
    }

    /// Ends the sessions with a token that was revoked since the last call, once a second.
    pub(super) fn end_revoked_tokens(&mut self, turn: &mut Turn<'_, '_>) {
        let Some(revoked) = self.sweeps.take_revoked() else { return };
        self.end_tokens(turn, |_, _, token| revoked.contains(&token.id));
    }

    /// Tokens were revoked, and this worker was not notified which.
    pub(super) fn handle_revoked_unseen(&mut self, turn: &mut Turn<'_, '_>) {
        let now_ms = turn.core.clock.now().unix_ms;
        self.end_tokens(turn, |core, session, token| {
            let user = core.hub.session(session).map_or("", |view| view.user);
            let revocations = &core.state.revocations;
            let refusal = revocations.refuses(token.id, user, token.issued_at_s(), now_ms);
            refusal == Some(TokenRevoked::Revoked)
        });
    }

    /// Ends the sessions and the subscriptions based on such a token, by a scan of all.
    fn end_tokens(
        &mut self,
        turn: &mut Turn<'_, '_>,
        is_such: impl Fn(&Core<'_>, SessionId, &TokenFacts) -> bool,
    ) {
        let core = &*turn.core;
        let is_such = |session, token: &TokenFacts| is_such(core, session, token);
        let sessions = self.sessions.heartbeat.sessions_with(core.hub.sessions(), is_such);
        let subscriptions = self.sessions.grants.with_tokens(is_such);
        self.end_revoked(turn, sessions);
        self.invalidate_subscriptions(turn, subscriptions, REVOKED);
    }

    fn end_revoked(&mut self, turn: &mut Turn<'_, '_>, sessions: Vec<SessionId>) {
        let why = DisconnectCode::InvalidToken.with_reason(REVOKED);
        for session in sessions {
            let Some(view) = turn.core.hub.session(session) else { continue };
            if view.poll {
                let now = turn.now();
                turn.core.hub.disconnect_session(now, session, u32::from(why.code), &why.reason);
                self.drain_events(turn);
                continue;
            }
            self.disconnect(turn, ConnId::from_u64(view.tag), &why);
        }
    }
}

impl Sessions {
    /// A session was disconnected by the server API: its token lets nobody in for a while, if its client is not to come
    /// back.
    pub(super) fn bar(&self, core: &Core<'_>, session: SessionId, code: u32) {
        let token = &core.settings.config.client.token;
        if token.bar_after_disconnect_ms == 0 || reconnects(code) {
            return;
        }
        if let Some(facts) = self.heartbeat.token(session).filter(|facts| facts.id != TokenId::NONE)
        {
            let now_ms = core.clock.now().unix_ms;
            let until_ms = now_ms.saturating_add(token.bar_after_disconnect_ms);
            let max = token.revocations_max as usize;
            core.state.revocations.bar(facts.id, until_ms, now_ms, max);
            if core.is_in_cluster() {
                core.state.revocations.tell_others(facts.id, until_ms, max);
            }
        }
    }
}

impl Core<'_> {
    /// A user is to be disconnected by the server API: what tokens he has had until now let nobody in for a while, on whatever
    /// worker they come, if his clients are not to come back. Called before any worker hears of it, so that no connect slips
    /// through between two.
    pub(super) fn bar_user(&self, user: &str, code: u32) {
        if !reconnects(code) {
            let settings = &self.settings.config.client.token;
            self.state.revocations.bar_user(user, settings, self.clock.now().unix_ms);
        }
    }
}
