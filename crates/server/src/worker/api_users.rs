//! Commands of the server API about users: selects the sessions and executes the command on them.

use dunlin_hub::{
    ChannelRef, DisconnectUser, RefreshUser, SessionFilter, SessionId, SubscribeOptions,
    SubscribeUser, UnsubscribeUser,
};
use dunlin_protocol::centrifuge::{DisconnectCode, UnsubscribeCode};

use super::api::Api;
use super::clients::Clients;
use super::parts::CommandPlace;
use super::permission::{Entitlement, Source};
use super::turn::{Core, Turn};
use crate::api::request::{
    DisconnectRequest, RefreshRequest, SubscribeRequest, Target, UnsubscribeRequest,
};
use crate::api::{ApiError, ApiErrorCode, CommandOutcome, label_filter};
use crate::auth::{Identity, session_token};

/// The sessions that a command is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sessions {
    All,
    One(SessionId),
    Nobody,
}

impl Clients {
    /// Continues commands about all users, one step a turn.
    pub(super) fn continue_walks(&mut self, turn: &mut Turn<'_, '_>) {
        if turn.core.hub.has_walks() {
            let now = turn.now();
            turn.core.hub.continue_walks(now);
            self.drain_events(turn);
        }
    }
}

impl Api {
    pub(super) fn subscribe_user(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        request: &SubscribeRequest<'_>,
    ) -> Result<(), ApiError> {
        turn.core.channel_options(&request.channel)?;
        self.check_future(turn.core, request.expire_at_s)?;
        let Some(only) = self.selected(turn.core, place, &request.target)? else { return Ok(()) };
        let (user, channel) = (&request.target.user, &request.channel);
        let nobody = Identity::default();
        let entitled = clients
            .sessions
            .claim_of(turn.core, &nobody, channel)
            .and_then(|claim| claim.entitle(Source::Api(&request.options), asked_by_api(request)));
        let Entitlement { options, subscribe, .. } = entitled?;
        let token = self.api_token(turn, place)?;
        let now = turn.now();
        let expire_at_s = (request.expire_at_s > 0).then_some(request.expire_at_s);
        let how = SubscribeUser { only, subscribe, expire_at_s };
        turn.core.hub.handle_subscribe_user(
            now,
            token,
            user,
            ChannelRef::new(channel, &options),
            how,
        );
        Ok(())
    }

    pub(super) fn unsubscribe_user(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        request: &UnsubscribeRequest<'_>,
    ) -> Result<(), ApiError> {
        let Some(only) = self.selected(turn.core, place, &request.target)? else { return Ok(()) };
        let token = self.api_token(turn, place)?;
        let now = turn.now();
        let code = UnsubscribeCode::Server;
        let how = UnsubscribeUser { only, code: code.code(), reason: code.text().into() };
        let (user, channel) = (&request.target.user, &request.channel);
        turn.core.hub.handle_unsubscribe_user(now, token, user, channel, how);
        Ok(())
    }

    pub(super) fn disconnect_user(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        request: &DisconnectRequest<'_>,
    ) -> Result<(), ApiError> {
        let Some(only) = self.selected(turn.core, place, &request.target)? else { return Ok(()) };
        let token = self.api_token(turn, place)?;
        let now = turn.now();
        // If the command is about some sessions of a user, or about all users, each token is barred individually.
        if only == SessionFilter::default() && request.whitelist.is_empty() {
            turn.core.bar_user(&request.target.user, u32::from(request.code));
        }
        let how = DisconnectUser {
            only,
            except: request.whitelist.clone(),
            code: u32::from(request.code),
            reason: (&*request.reason).into(),
        };
        turn.core.hub.handle_disconnect_user(now, token, &request.target.user, how);
        Ok(())
    }

    /// Executes `refresh`: a user's connections expire, or get another expiry.
    pub(super) fn expire(
        &mut self,
        turn: &mut Turn<'_, '_>,
        place: CommandPlace,
        refresh: &RefreshRequest<'_>,
    ) -> Result<(), ApiError> {
        let Some(only) = self.selected(turn.core, place, &refresh.target)? else { return Ok(()) };
        let token = self.api_token(turn, place)?;
        let now = turn.now();
        let expire_at_s = (refresh.expire_at_s > 0).then_some(refresh.expire_at_s as u64);
        let is_over = expire_at_s.is_some_and(|at_s| at_s.saturating_mul(1_000) <= now.unix_ms);
        let user = &refresh.target.user;
        if !refresh.expired && !is_over {
            let conn_info = refresh.info.as_ref().map(|info| info.as_bytes().into());
            let how = RefreshUser { only, expire_at_s, conn_info };
            turn.core.hub.handle_refresh_user(now, token, user, how);
            return Ok(());
        }
        let code = DisconnectCode::Expired;
        let how = DisconnectUser {
            only,
            except: Vec::new(),
            code: u32::from(code.code()),
            reason: code.text().into(),
        };
        turn.core.hub.handle_disconnect_user(now, token, user, how);
        Ok(())
    }

    fn check_future(&self, core: &Core<'_>, expire_at_s: u64) -> Result<(), ApiError> {
        if expire_at_s > 0 && expire_at_s.saturating_mul(1_000) <= core.clock.now().unix_ms {
            return Err(ApiErrorCode::BadRequest.with_reason("expire_at: is over"));
        }
        Ok(())
    }

    /// Selects the sessions of a user that a command is about.
    fn target(&self, core: &Core<'_>, target: &Target<'_>) -> Sessions {
        let of_client = match &*target.client {
            "" => Sessions::All,
            client => client.parse().map_or(Sessions::Nobody, Sessions::One),
        };
        let of_session = match &*target.session {
            "" => Sessions::All,
            token => session_token::verify(&core.state.keys.session_token, token)
                .map_or(Sessions::Nobody, Sessions::One),
        };
        match (of_client, of_session) {
            (Sessions::All, one) | (one, Sessions::All) => one,
            (client, session) if client == session => client,
            _ => Sessions::Nobody,
        }
    }

    /// Selects the sessions that a command is about. `None`: there is nothing to do, because its session id was not issued by
    /// this server: the session may have ended long ago, or belong to another server.
    pub(super) fn selected(
        &mut self,
        core: &mut Core<'_>,
        place: CommandPlace,
        target: &Target<'_>,
    ) -> Result<Option<SessionFilter>, ApiError> {
        let client = match self.target(core, target) {
            Sessions::All => None,
            Sessions::One(session) => Some(session),
            Sessions::Nobody => {
                self.api_calls.handle_answer(place, Ok(CommandOutcome::Done));
                return Ok(None);
            }
        };
        let labels = label_filter(target.label_filter.as_ref())?;
        Ok(Some(SessionFilter { client, labels, all_users: target.all_users }))
    }
}

fn asked_by_api(request: &SubscribeRequest<'_>) -> SubscribeOptions {
    let raw =
        |json: &Option<dunlin_protocol::Json<'_>>| json.as_ref().map(|json| json.as_bytes().into());
    SubscribeOptions {
        recover: request.recover_since,
        chan_info: raw(&request.info),
        data: raw(&request.data),
        ..SubscribeOptions::default()
    }
}
