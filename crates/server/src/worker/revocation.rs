//! Token revocation: requested by API callers, executed by the admin thread, followed by the end of the sessions that used the
//! tokens.

use dunlin_hub::{SessionId, code::reconnects};
use dunlin_net::{ConnId, Context};
use dunlin_protocol::centrifuge::DisconnectCode;

use super::Worker;
use super::link::Link;
use super::parts::{CommandPlace, Pending, TokenFacts};
use crate::api::{ApiError, ApiErrorCode, CommandOutcome};
use crate::auth::revocation::{
    NAME_BYTES_MAX, Revocation, RevocationError, Revoked, TokenId, TokenRevoked, concerns,
};
use crate::message::bus::BusMessage;
use crate::metrics::Metric;

const REVOKED: &str = "the token was revoked";

impl Worker<'_> {
    /// Asks the admin thread to revoke tokens. `Err`: the command is answered already.
    pub(super) fn revoke(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        revocation: Revocation,
    ) -> Result<(), ApiError> {
        let token = self.api_token(cx, place)?;
        let (worker, revocation) = (self.index, Box::new(revocation));
        self.tell_revocations(token, BusMessage::Revoke { worker, token, revocation })
    }

    /// Asks the admin thread to unblock a user. `Err`: the command is answered already.
    pub(super) fn unblock(
        &mut self,
        cx: &mut Context<Link>,
        place: CommandPlace,
        user: &str,
    ) -> Result<(), ApiError> {
        let token = self.api_token(cx, place)?;
        let worker = self.index;
        self.tell_revocations(token, BusMessage::Unblock { worker, token, user: user.into() })
    }

    fn tell_revocations(&mut self, token: u64, message: BusMessage) -> Result<(), ApiError> {
        if self.endpoint.send(self.state.admin_endpoint(), message).is_err() {
            self.count(Metric::BusRefused);
            self.pending.take(token);
            return Err(dunlin_hub::Error::Overloaded.into());
        }
        Ok(())
    }

    /// Handles the admin thread's reply to such a request.
    pub(super) fn handle_revoke_reply(
        &mut self,
        cx: &mut Context<Link>,
        token: u64,
        result: Result<(), RevocationError>,
    ) {
        // The requester may have been answered with a timeout.
        let Some(Pending::Api(place)) = self.pending.take(token) else { return };
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
        self.api_answered(cx, place, answer);
    }

    /// Ends the sessions of revoked tokens: those of a user now, those of a token within a second, because that takes a scan of
    /// all sessions.
    pub(super) fn handle_revoked(&mut self, cx: &mut Context<Link>, revocation: &Revocation) {
        match &revocation.of {
            Revoked::Jti(jti) => {
                self.sweeps.revoke(self.state.revocations.id_of_jti(jti));
            }
            Revoked::User { user, .. } | Revoked::Blocked(user) => {
                let concerned = |session: &SessionId| {
                    let token = self.heartbeat.token(*session);
                    token.is_some_and(|token| concerns(revocation, token.issued_at_s()))
                };
                let sessions: Vec<SessionId> = self.hub.sessions_of(user).collect();
                let is_it = |issued_at_s| concerns(revocation, issued_at_s);
                let subscriptions =
                    sessions.iter().flat_map(|of| self.grants.issued(*of, is_it)).collect();
                let ended = sessions.into_iter().filter(concerned).collect();
                self.end_revoked(cx, ended);
                self.invalidate_subscriptions(cx, subscriptions, REVOKED);
            }
        }
    }

    /// Ends the sessions with a token that was revoked since the last call, once a second.
    pub(super) fn end_revoked_tokens(&mut self, cx: &mut Context<Link>) {
        let Some(revoked) = self.sweeps.take_revoked() else { return };
        self.end_tokens(cx, |_, _, token| revoked.contains(&token.id));
    }

    /// Tokens were revoked, and this worker was not notified which.
    pub(super) fn handle_revoked_unseen(&mut self, cx: &mut Context<Link>) {
        let now_ms = self.clock.now().unix_ms;
        self.end_tokens(cx, |worker, session, token| {
            let user = worker.hub.session(session).map_or("", |view| view.user);
            let revocations = &worker.state.revocations;
            let refusal = revocations.refuses(token.id, user, token.issued_at_s(), now_ms);
            refusal == Some(TokenRevoked::Revoked)
        });
    }

    /// Ends the sessions and the subscriptions based on such a token, by a scan of all.
    fn end_tokens(
        &mut self,
        cx: &mut Context<Link>,
        is_such: impl Fn(&Self, SessionId, &TokenFacts) -> bool,
    ) {
        let is_such = |session, token: &TokenFacts| is_such(self, session, token);
        let sessions = self.heartbeat.sessions_with(self.hub.sessions(), is_such);
        let subscriptions = self.grants.with_tokens(is_such);
        self.end_revoked(cx, sessions);
        self.invalidate_subscriptions(cx, subscriptions, REVOKED);
    }

    fn end_revoked(&mut self, cx: &mut Context<Link>, sessions: Vec<SessionId>) {
        let why = DisconnectCode::InvalidToken.with_reason(REVOKED);
        for session in sessions {
            let Some(view) = self.hub.session(session) else { continue };
            if view.poll {
                let now = self.now(cx);
                self.hub.disconnect_session(now, session, u32::from(why.code), &why.reason);
                self.drain_events(cx);
                continue;
            }
            self.disconnect(cx, ConnId::from_u64(view.tag), &why);
        }
    }

    /// A user is to be disconnected by the server API: what tokens he has had until now let nobody in for a while, on whatever
    /// worker they come, if his clients are not to come back. Called before any worker hears of it, so that no connect slips
    /// through between two.
    pub(super) fn bar_user(&self, user: &str, code: u32) {
        if !reconnects(code) {
            let settings = &self.settings.config.client.token;
            self.state.revocations.bar_user(user, settings, self.clock.now().unix_ms);
        }
    }

    /// A session was disconnected by the server API: its token lets nobody in for a while, if its client is not to come
    /// back.
    pub(super) fn bar(&self, session: SessionId, code: u32) {
        let token = &self.settings.config.client.token;
        if token.bar_after_disconnect_ms == 0 || reconnects(code) {
            return;
        }
        if let Some(facts) = self.heartbeat.token(session).filter(|facts| facts.id != TokenId::NONE)
        {
            let now_ms = self.clock.now().unix_ms;
            let until_ms = now_ms.saturating_add(token.bar_after_disconnect_ms);
            let max = token.revocations_max as usize;
            self.state.revocations.bar(facts.id, until_ms, now_ms, max);
            if self.is_in_cluster() {
                self.state.revocations.tell_others(facts.id, until_ms, max);
            }
        }
    }
}
