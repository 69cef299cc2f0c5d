//! Proxies of what expires: whether a connection or a subscription that a backend has granted until a time goes on.

use std::sync::Arc;

use dunlin_hub::SessionId;
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{Disconnect, DisconnectCode, UnsubscribeCode};

use super::backends::BackendResult;
use super::clients::Clients;
use super::connect::one_line;
use super::link::{Link, Role};
use super::parts::{Grant, GrantKey, GrantSource, GrantToken, ProxyCall, TokenFacts};
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use crate::auth::Allow;
use crate::auth::revocation::TokenId;
use crate::proxy::{BackendDecision, Event, ProxyError, Question, RefreshResult};

/// How long what has expired goes on while its backend is asked, and where it does not decide, until it is asked again; as in
/// Centrifugo.
const ANSWER_GRACE_S: u64 = 60;

/// What the backend has decided.
enum Renewal {
    /// It goes on, until this Unix second.
    Renewed {
        expire_at_s: Option<u64>,
        result: RefreshResult,
    },
    Expired,
    Disconnect(Disconnect<'static>),
    /// There is no decision.
    Fault(ProxyError),
}

fn renewal(answer: BackendResult, unix_ms: u64) -> Renewal {
    let decision = answer.and_then(|answered| {
        let mut decision = answered.read::<RefreshResult>()?;
        if let BackendDecision::Granted(result) = &mut decision {
            result.decode()?;
        }
        Ok(decision)
    });
    match decision {
        Ok(BackendDecision::Granted(result)) => {
            let expire_at_s = (result.expire_at > 0).then_some(result.expire_at);
            let is_over = expire_at_s.is_some_and(|at_s| at_s.saturating_mul(1000) <= unix_ms);
            match result.expired || is_over {
                true => Renewal::Expired,
                false => Renewal::Renewed { expire_at_s, result },
            }
        }
        Ok(BackendDecision::Disconnect(disconnect)) => Renewal::Disconnect(disconnect),
        Ok(BackendDecision::Nothing | BackendDecision::Error(_)) => Renewal::Expired,
        Err(fault) => Renewal::Fault(fault),
    }
}

impl Clients {
    /// Asks whether a session that has expired goes on. False: nobody is asked.
    pub(super) fn ask_refresh(
        &mut self,
        turn: &mut Turn<'_, '_>,
        conn: ConnId,
        session: SessionId,
    ) -> bool {
        if !self.sessions.renews(turn.core, session) {
            return false;
        }
        let now_s = turn.now().unix_ms / 1000;
        let facts = TokenFacts::of_proxy(now_s, Some(now_s + ANSWER_GRACE_S));
        self.sessions.heartbeat.set_token(session, Some(facts));
        if self.deciders.has_authorizer() {
            let call = self.call((conn, session, None), Event::Refresh, &Arc::from(""), "", b"");
            if self.consult(turn, call, &Question::Refresh).is_none() {
                return true;
            }
        }
        let Some(proxy) = turn.core.settings.config.client.proxy.refresh.clone() else {
            return false;
        };
        let call = self.call((conn, session, None), Event::Refresh, &proxy, "", b"");
        if let Some((call, answer)) =
            self.deciders.ask(turn, &self.sessions, call, &Question::Refresh)
        {
            self.refresh_decided(turn, &call, answer);
        }
        true
    }

    pub(super) fn refresh_decided(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        answer: BackendResult,
    ) {
        let &ProxyCall { conn, session, .. } = call;
        let Some(view) = turn.core.hub.session(session).filter(|view| !view.closing) else {
            return;
        };
        let now = turn.core.clock.now();
        let is_blocked = turn
            .core
            .state
            .revocations
            .refuses(TokenId::NONE, view.user, Some(now.unix_ms / 1000), now.unix_ms)
            .is_some();
        match renewal(answer, now.unix_ms) {
            Renewal::Renewed { expire_at_s, result } if !is_blocked => {
                let facts = TokenFacts::of_proxy(now.unix_ms / 1000, expire_at_s);
                self.sessions.heartbeat.set_token(session, Some(facts));
                if let Some(info) = result.info.as_deref() {
                    turn.core.hub.set_conn_info(session, one_line(info));
                }
                if let Some(meta) = result.meta.as_deref() {
                    self.sessions.forwarded.keep_meta(conn, Some(one_line(meta)));
                    self.compare_grants(turn, session, None);
                }
                self.sessions.schedule_expiry(turn, conn, session);
            }
            Renewal::Renewed { .. } | Renewal::Expired => {
                self.disconnect(turn, conn, &DisconnectCode::Expired.into());
            }
            Renewal::Disconnect(disconnect) => self.disconnect(turn, conn, &disconnect),
            Renewal::Fault(fault) => self.deciders.report_fault(turn, &call.proxy, &fault),
        }
    }

    /// Asks whether a subscription goes on that a backend had granted until now. False: nobody is asked.
    pub(super) fn ask_sub_refresh(&mut self, turn: &mut Turn<'_, '_>, place: &GrantKey) -> bool {
        let (session, channel) = (place.0, &*place.1);
        let Ok(namespace) = turn.core.namespace_of(channel) else { return false };
        let proxy = namespace.rules.sub_refresh_proxy.clone();
        if proxy.is_none() && !self.deciders.has_authorizer() {
            return false;
        }
        let Some(view) = turn.core.hub.session(session).filter(|view| !view.closing) else {
            return false;
        };
        let conn = ConnId::from_u64(view.tag);
        let now_s = turn.now().unix_ms / 1000;
        self.sessions.renew_grant(turn, session, channel, Some(now_s + ANSWER_GRACE_S));
        let question = Question::SubRefresh { channel };
        if self.deciders.has_authorizer() {
            let program = Arc::from("");
            let caller = (conn, session, None);
            let call = self.call(caller, Event::SubRefresh, &program, channel, b"");
            if self.consult(turn, call, &question).is_none() {
                return true;
            }
        }
        let Some(proxy) = proxy else { return false };
        let call = self.call((conn, session, None), Event::SubRefresh, &proxy, channel, b"");
        if let Some((call, answer)) = self.deciders.ask(turn, &self.sessions, call, &question) {
            self.sub_refresh_decided(turn, &call, answer);
        }
        true
    }

    pub(super) fn sub_refresh_decided(
        &mut self,
        turn: &mut Turn<'_, '_>,
        call: &ProxyCall,
        answer: BackendResult,
    ) {
        let (session, channel) = (call.session, &*call.channel);
        // It may have ended meanwhile, and another have begun, by a token say.
        if !turn.core.hub.is_subscribed(session, channel)
            || !self.sessions.grants.is_by_backend(session, channel)
        {
            return;
        }
        match renewal(answer, turn.core.clock.now().unix_ms) {
            Renewal::Renewed { expire_at_s, result } => {
                self.sessions.renew_grant(turn, session, channel, expire_at_s);
                if let Some(info) = result.info.as_deref() {
                    let now = turn.now();
                    turn.core.hub.set_chan_info(now, session, channel, one_line(info));
                }
            }
            Renewal::Expired => {
                let code = UnsubscribeCode::Expired;
                self.end_subscriptions(
                    turn,
                    vec![(session, channel.into())],
                    code.code(),
                    code.text(),
                );
            }
            Renewal::Disconnect(disconnect) => self.disconnect(turn, call.conn, &disconnect),
            Renewal::Fault(fault) => self.deciders.report_fault(turn, &call.proxy, &fault),
        }
    }
}

impl Sessions {
    /// How long a session goes on after its token has ended: its client may come with a new one. A backend is asked at once.
    pub(super) fn grace_ms(&self, core: &Core<'_>, session: SessionId) -> u64 {
        match self.renews(core, session) {
            true => 0,
            false => core.settings.config.client.token.refresh_grace_ms,
        }
    }

    /// Whether a backend is asked when the session expires.
    fn renews(&self, core: &Core<'_>, session: SessionId) -> bool {
        let is_asked = core.settings.config.client.proxy.refresh.is_some() || self.has_authorizer;
        is_asked && self.is_by_proxy(Some(session))
    }

    /// A session goes on until another time, by the server API; its client is notified.
    pub(super) fn session_refreshed(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        conn: ConnId,
        expire_at_s: Option<u64>,
    ) {
        let Some(&mut Link { role: Role::Client(encoding), .. }) = turn.cx.data(conn) else {
            return;
        };
        let now_s = turn.core.clock.now().unix_ms / 1000;
        let facts = match self.heartbeat.token(session) {
            Some(facts) => Some(facts.until(expire_at_s)),
            None => expire_at_s.map(|_| TokenFacts::of_proxy(now_s, expire_at_s)),
        };
        self.heartbeat.set_token(session, facts);
        self.schedule_expiry(turn, conn, session);
        let left_s = expire_at_s.map_or(0, |at_s| at_s.saturating_sub(now_s).max(1));
        let ttl_s = u32::try_from(left_s).unwrap_or(u32::MAX);
        let encoder = &mut turn.core.encoder;
        turn.core.hub.push(session, |out| encoder.refresh_push(encoding, ttl_s, out));
    }

    /// A backend's grant is good until then.
    pub(super) fn renew_grant(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        channel: &str,
        expire_at_s: Option<u64>,
    ) {
        let now_s = turn.now().unix_ms / 1000;
        let expire_at_s = self.asked_at_s(turn.core, channel, expire_at_s);
        let facts = TokenFacts::of_proxy(now_s, expire_at_s);
        // The decision about its end leaves what the one about its beginning overrides.
        let before = self.grants.get(session, channel);
        let mut overrides = before.map(|of| of.overrides).unwrap_or_default();
        if before.and_then(Grant::token).is_none() {
            overrides.force_push_join_leave = Some(true);
        }
        let source = GrantSource::Token(GrantToken { facts, key: None, allow: Allow::NONE });
        self.grants.insert(session, channel, Grant { source, overrides, data: None });
    }
}

impl Sessions {
    /// What is kept as the end of a grant, so that its backend is asked at `expire_at_s` and not after the grace, which is for
    /// clients that bring a new token.
    pub(super) fn asked_at_s(
        &self,
        core: &Core<'_>,
        channel: &str,
        expire_at_s: Option<u64>,
    ) -> Option<u64> {
        let is_asked = self.has_authorizer
            || core.namespace_of(channel).is_ok_and(|of| of.rules.sub_refresh_proxy.is_some());
        let grace_s = core.settings.config.client.subscription_token.refresh_grace_ms / 1000;
        expire_at_s.map(|at_s| if is_asked { at_s.saturating_sub(grace_s) } else { at_s })
    }
}
