//! Tenants on a worker: qualified names, admission, usage figures, and the removal of deleted tenants.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dunlin_hub::tenant::{self, MARK, NO_CONTROL, has_control};
use dunlin_hub::{ChannelSummary, Info, SessionId};
use dunlin_net::ConnId;
use dunlin_protocol::centrifuge::{DisconnectCode, Error, ErrorCode, Request};

use super::api::{Api, Scope};
use super::clients::Clients;
use super::turn::{Core, Turn};

use super::parts::{CallId, CommandPlace, KeyScope, TenantSweep};
use crate::api::connections::ChannelPage;
use crate::api::{self, ApiError, ApiErrorCode, CommandOutcome, CommandResult, Method};
use crate::tenants::{Sweep, Tenant, add};

/// The sessions, or channels at home here, scanned in one turn.
const STEPS: u32 = 1_024;

impl Core<'_> {
    /// Returns the tenant of a user or a channel.
    pub(super) fn tenant_of(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.settings.tenants.of(name)
    }

    /// Replaces the channel name of a client's request by its internal name.
    ///
    /// # Errors
    /// Names from outside must not have the mark of tenants.
    pub(super) fn admit_channel(
        &self,
        session: SessionId,
        request: &mut Request<'_>,
    ) -> Result<(), Error<'static>> {
        let Some(channel) = request.channel_mut() else { return Ok(()) };
        let user = self.hub.session(session).map_or("", |view| view.user);
        self.qualify(user, channel)
    }

    /// The same for a client with this user name.
    pub(super) fn qualify(
        &self,
        user: &str,
        channel: &mut Cow<'_, str>,
    ) -> Result<(), Error<'static>> {
        if has_control(channel) {
            return Err(ErrorCode::UnknownChannel.into());
        }
        if let Some(tenant) = tenant::split(user).0 {
            *channel = Cow::Owned(tenant::qualify(tenant, channel));
        }
        Ok(())
    }

    /// Whether a user's tenant and the bound on the user's connections have room for one more. If the caller then opens no
    /// session, it must call [`population_changed`](Self::population_changed).
    pub(super) fn has_room_for(&self, user: &str) -> bool {
        (!user.starts_with(MARK) || self.tenant_of(user).is_some_and(|tenant| tenant.has_room()))
            && self.admits_user(user)
    }

    /// Called after a session of this user was opened or closed.
    pub(super) fn population_changed(&mut self, user: &str) {
        self.user_changed(user);
        let Some(tenant) = self.tenant_of(user) else { return };
        let (sessions, users) = self.hub.population(&tenant.name);
        let figures = tenant.figures.of(self.index, self.state.workers());
        figures.connections.store(sessions.into(), Ordering::Relaxed);
        figures.users.store(users.into(), Ordering::Relaxed);
    }
}

impl Clients {
    /// Publishes the figures of tenants, once a second.
    pub(super) fn publish_tenant_figures(&mut self, core: &mut Core<'_>) {
        if core.settings.tenants.is_empty() {
            return drop(core.hub.take_traffic());
        }
        let (tenants, workers) = (&core.settings.tenants, core.state.workers());
        for (name, traffic) in core.hub.take_traffic() {
            let Some(tenant) = tenants.get(&name) else { continue };
            let figures = tenant.figures.of(core.index, workers);
            add(&figures.publications, traffic.publications);
            add(&figures.published_bytes, traffic.published_bytes);
            add(&figures.deliveries, traffic.deliveries);
            add(&figures.delivered_bytes, traffic.delivered_bytes);
        }
        let (shares, next) = core.hub.namespaces_page(self.sweeps.shares_from(), STEPS);
        self.sweeps.continue_shares(next);
        for share in shares {
            let Some(tenant) = tenants.of(&share.name) else { continue };
            let figures = tenant.figures.of(core.index, workers);
            figures.channels.store(share.channels.into(), Ordering::Relaxed);
            figures.history_bytes.store(share.history_bytes as u64, Ordering::Relaxed);
        }
    }

    /// Begins to remove what belongs to deleted tenants and deleted keys.
    pub(super) fn end_tenants(&mut self, turn: &mut Turn<'_, '_>) {
        let settings = turn.core.settings.snapshot();
        self.end_polls(turn, |user, key| {
            !user.starts_with(MARK) || key.is_some_and(|key| settings.keeps_key(user, key))
        });
        self.sweeps.begin_tenants();
    }

    /// Continues that, one step a turn.
    pub(super) fn continue_tenant_sweep(&mut self, turn: &mut Turn<'_, '_>) {
        let sweep = self.sweeps.tenants();
        if !sweep.is_due() {
            return;
        }
        let own: Vec<_> = turn
            .core
            .settings
            .tenants
            .sweeps
            .iter()
            .filter(|of| !of.is_forgotten_by(turn.core.index))
            .map(Arc::clone)
            .collect();
        let next = match sweep {
            TenantSweep::Sessions(from) => self.end_tenant_sessions(turn, &own, from),
            TenantSweep::Channels(from) => self.forget_tenant_channels(turn, &own, from),
            idle => idle,
        };
        self.sweeps.set_tenants(next);
    }

    fn end_tenant_sessions(
        &mut self,
        turn: &mut Turn<'_, '_>,
        own: &[Arc<Sweep>],
        from: u32,
    ) -> TenantSweep {
        let (sessions, next) = turn.core.hub.sessions_page(from, STEPS);
        for session in sessions {
            self.end_session_of_tenant(turn, session, |name| {
                own.iter().any(|of| *of.name == *name)
            });
        }
        if let Some(next) = next {
            return TenantSweep::Sessions(next);
        }
        own.iter().for_each(|of| of.sessions_ended(turn.core.index));
        TenantSweep::Waiting
    }

    fn forget_tenant_channels(
        &mut self,
        turn: &mut Turn<'_, '_>,
        own: &[Arc<Sweep>],
        from: u32,
    ) -> TenantSweep {
        let workers = turn.core.state.workers();
        if own.iter().any(|of| !of.has_no_sessions(workers)) {
            return TenantSweep::Waiting;
        }
        if own.iter().any(|of| !turn.core.hub.forget_keys(&tenant::qualify(&of.name, ""), STEPS)) {
            return TenantSweep::Channels(from);
        }
        if !own.is_empty() {
            let now = turn.now();
            let next = turn.core.hub.forget_channels(now, from, STEPS, |channel| {
                let tenant = tenant::split(channel).0;
                tenant.is_some_and(|tenant| own.iter().any(|of| *of.name == *tenant))
            });
            self.drain_events(turn);
            if let Some(next) = next {
                return TenantSweep::Channels(next);
            }
        }
        own.iter().for_each(|of| of.channels_forgotten(turn.core.index, workers));
        TenantSweep::Done
    }

    fn end_session_of_tenant(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        is_gone: impl Fn(&str) -> bool,
    ) {
        let Some(view) = turn.core.hub.session(session).filter(|view| !view.closing) else {
            return;
        };
        let Some(tenant) = tenant::split(view.user).0 else { return };
        let (user, conn, is_poll) = (view.user, ConnId::from_u64(view.tag), view.poll);
        let why = if is_gone(tenant) || turn.core.settings.tenants.get(tenant).is_none() {
            DisconnectCode::PermissionDenied.with_reason("the tenant was taken away")
        } else {
            let params =
                turn.cx.data(conn).and_then(|link| self.sessions.heartbeat.params(link.params()));
            let key = params.and_then(|params| params.key);
            if key.is_none_or(|key| turn.core.settings.keeps_key(user, key)) {
                return;
            }
            DisconnectCode::Expired.with_reason("the key of its token was revoked")
        };
        if is_poll {
            return self.answer_poll(turn, session);
        }
        self.disconnect(turn, conn, &why);
    }
}

impl Api {
    /// Returns the scope of a tenant's own API keys: everything of the tenant.
    pub(super) fn scope_of(&self, core: &Core<'_>, tenant: &Arc<Tenant>) -> Scope {
        let rates = tenant.rates();
        let budget_key = rates.is_limited().then(|| core.state.budgets.namespace(&tenant.prefix));
        let budget = budget_key.map(|budget_key| (budget_key, rates));
        Some(KeyScope { may: Arc::default(), tenant: Some(Arc::clone(tenant)), budget })
    }

    /// Replaces the names in an API command by internal names.
    ///
    /// # Errors
    /// A name has a control character, or a former tenant of this name is still being removed.
    pub(super) fn admit_request(
        &self,
        call: CallId,
        request: &mut api::Request<'_>,
    ) -> Result<(), ApiError> {
        if self.api_calls.is_of_cluster(call) {
            return Ok(());
        }
        match self.api_calls.tenant(call) {
            Some(tenant) if !tenant.is_open() => {
                let why = "a tenant of this name is being taken away; try again";
                Err(ApiErrorCode::Internal.with_reason(why))
            }
            tenant => request.names(|name| {
                if has_control(name) {
                    return Err(ApiErrorCode::BadRequest.with_reason(NO_CONTROL));
                }
                if let Some(tenant) = tenant {
                    *name = Cow::Owned(tenant.qualify(name));
                }
                Ok(())
            }),
        }
    }

    /// Reduces an answer to what the caller may see, with external names.
    pub(super) fn outward(&self, place: CommandPlace, answer: CommandResult) -> CommandResult {
        // An app asks for its own channels only.
        if self.api_calls.is_of_cluster(place.call) || self.api_calls.is_of_pusher(place.call) {
            return answer;
        }
        let tenant = self.api_calls.tenant(place.call);
        let of = tenant.map(|tenant| &*tenant.name);
        let own = |channels: Vec<ChannelSummary>| -> Vec<ChannelSummary> {
            let own = channels.into_iter().filter_map(|ChannelSummary { name, clients }| {
                let (tenant, bare) = tenant::split(&name);
                let name = if tenant.is_some() { bare.into() } else { Arc::clone(&name) };
                (tenant == of).then_some(ChannelSummary { name, clients })
            });
            own.collect()
        };
        let listed = match answer {
            Ok(CommandOutcome::ChannelPage(page)) => {
                let channels = own(page.channels);
                return Ok(CommandOutcome::ChannelPage(ChannelPage { channels, ..page }));
            }
            Ok(CommandOutcome::Channels(all)) => all,
            Ok(CommandOutcome::Json(json))
                if self.api_calls.method(place) == Some(Method::Channels) =>
            {
                let own = own_channels(&json, of).ok_or(ApiErrorCode::Internal)?;
                return Ok(CommandOutcome::Json(own));
            }
            answer => return answer,
        };
        let own = own(listed);
        Ok(match (tenant, self.api_calls.method(place)) {
            (Some(tenant), Some(Method::Info)) => CommandOutcome::Info(Info {
                clients: tenant.figures.sum(|of| &of.connections),
                users: tenant.figures.sum(|of| &of.users),
                channels: own.len() as u64,
                subscriptions: own.iter().map(|channel| channel.clients).sum(),
            }),
            _ => CommandOutcome::Channels(own),
        })
    }
}

/// Reduces the combined answer of all nodes to the channels of a tenant, or of no tenant, with external names. Other members,
/// such as the nodes without an answer, are kept.
fn own_channels(json: &[u8], tenant: Option<&str>) -> Option<Box<[u8]>> {
    let mut result: serde_json::Value = serde_json::from_slice(json).ok()?;
    let all = std::mem::take(result["channels"].as_object_mut()?);
    let own = all.into_iter().filter_map(|(name, channel)| {
        let (of, bare) = tenant::split(&name);
        (of == tenant).then(|| (bare.to_owned(), channel))
    });
    let own = serde_json::Value::Object(own.collect());
    result["channels"] = own;
    serde_json::to_vec(&result).ok().map(Vec::into_boxed_slice)
}
