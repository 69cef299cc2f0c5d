//! Adopts a new snapshot of the settings, between turns of the loop, and brings about what has changed.
//!
//! A worker adopts the newest snapshot when it wakes, before anything else, and at the end of each turn while it is awake. So a
//! change wakes no worker, unless it requires immediate work. [`dunlin_bus::Rollout`] explains why no older snapshot is used
//! after a change was acknowledged.

use std::num::NonZeroU32;
use std::sync::Arc;

use dunlin_config::{Config, Effect, Effects, TENANT_BYTES_MAX};
use dunlin_hub::tenant::MARK;
use dunlin_hub::{CheckedSubscription, HubConfig};
use dunlin_net::{ConnId, Context};
use dunlin_protocol::centrifuge::DisconnectCode;

use super::Worker;
use super::clients::Clients;
use super::link::{Link, Role};
use super::permission::Standings;
use super::turn::{Core, Turn};
use crate::crash;
use crate::message::admin::AdminMessage;
use crate::state::ServerState;
use crate::state::settings::Settings;

/// The number of boots that session ids distinguish; each restart of a worker uses the next one.
const BOOTS: u32 = dunlin_hub::BOOTS_MAX as u32;
/// Subscriptions that are checked in one turn; that takes some tenths of a millisecond.
const WITHDRAWAL_STEPS: u32 = 1_024;

impl Worker<'_> {
    /// Adopts the newest snapshot if it is not in use yet.
    pub(super) fn adopt_newest(&mut self, cx: &mut Context<Link>) {
        let generation = self.core.state.generation();
        if generation == self.core.settings.generation() {
            return;
        }
        crash::reach("adopt");
        let newest = self.core.state.newest_for(self.core.index);
        if let Err(reason) = self.adopt(cx, &newest) {
            tracing::warn!(
                worker = self.core.index,
                revision = newest.revision,
                reason,
                "not adopted"
            );
            self.core.state.reject(self.core.index, generation, reason);
        }
        self.core.settings.handle_generation(generation);
        self.core.state.loop_stats[self.core.index].adopted(self.core.settings.revision);
        let is_awaited = self.core.state.rollout.adopted(self.core.index, generation);
        crash::reach("adopted");
        if is_awaited {
            self.confirm_adoption();
        }
    }

    /// Notifies the admin thread, which waits for this worker to adopt the settings. If its ring is full it checks by itself, only later.
    pub(super) fn confirm_adoption(&mut self) {
        self.core.send_to_admin(AdminMessage::SettingsAdopted);
    }

    /// Continues a count for the admin thread, and replies when it is complete.
    pub(super) fn count_affected(&mut self, cx: &Context<Link>) {
        let counted = self.affected.step(&self.core.hub, |conn| cx.local_addr(conn));
        let Some((request_id, counts)) = counted else { return };
        let (worker, counts) = (self.core.index, Box::new(counts));
        self.core.send_to_admin(AdminMessage::AffectedReply { request_id, worker, counts });
    }

    fn adopt(&mut self, cx: &mut Context<Link>, newest: &Arc<Settings>) -> Result<(), String> {
        if crash::is_refused(self.core.index, &newest.config) {
            return Err("refused by a test".into());
        }
        let (before, state) = (self.core.settings.snapshot(), Arc::clone(&self.core.state));
        let effects = before.effects(newest);
        let applied = self.apply_node(&before.config, &newest.config).and_then(|()| {
            self.front.listeners.apply(cx, &state, (&before, newest), effects, self.drain.is_some())
        });
        if let Err(reason) = applied {
            // No session was opened under another number in the meantime, so the previous number still fits.
            let _ = self.core.hub.set_node(state.node_number(&before.config));
            return Err(reason);
        }
        self.core.settings.adopt(newest);
        for effect in effects.iter() {
            self.apply(cx, effect, effects, &before);
        }
        Ok(())
    }

    /// Brings about an effect of the change from `before` to the adopted settings.
    fn apply(
        &mut self,
        cx: &mut Context<Link>,
        effect: Effect,
        effects: Effects,
        before: &Arc<Settings>,
    ) {
        let turn = &mut self.core.turn(cx);
        match effect {
            Effect::Coalescing => {
                let coalesce_ms = turn.core.settings.config.server.coalesce_ms;
                turn.cx.set_coalesce_ms(u64::from(coalesce_ms));
            }
            Effect::UserCounts => self.clients.apply_user_table(turn.core, before),
            Effect::Pacing => self.fanout.apply_pacing(turn.core, Some(before)),
            Effect::Hooks => turn.core.apply_hooks(),
            Effect::Pinning => {
                let core = turn.core.settings.config.server.pin_workers.then_some(turn.core.index);
                if let Err(error) = dunlin_net::pin(core) {
                    // The worker also runs on another core, and the connections that are open can no longer be undone.
                    tracing::warn!(worker = turn.core.index, %error, "server.pin_workers has no effect");
                }
            }
            Effect::Limits => {
                turn.core.hub.set_limits(&hub_config(
                    turn.core.index,
                    0,
                    &turn.core.state,
                    &turn.core.settings,
                ));
                self.front.bound_unauthenticated(turn);
                self.front.bound_buffers(turn);
            }
            Effect::BusSlots => {
                let slots = turn.core.settings.config.limits.bus_slots as usize;
                turn.core.endpoint.set_ring_slots(slots);
            }
            Effect::Cluster => turn.core.apply_cluster(),
            Effect::Proxies => self.clients.apply_proxies(turn.core),
            Effect::Programs => {
                self.clients.apply_programs(turn);
                self.clients.apply_proxies(turn.core);
            }
            Effect::ExpressionData if effects.contains(Effect::Proxies) => {}
            Effect::ExpressionData => self.clients.apply_proxies(turn.core),
            Effect::Upstreams => self.clients.deciders.apply_upstreams(turn.core),
            Effect::EngineOfChannels if effects.contains(Effect::Engines) => {}
            Effect::Engines | Effect::EngineOfChannels => {
                self.engines.apply_engines(turn);
                self.settle(cx);
            }
            Effect::ConnectionTokens => self.clients.close_revoked(turn),
            Effect::Anonymous if effects.contains(Effect::ConnectionTokens) => {}
            Effect::Anonymous => self.clients.close_revoked(turn),
            Effect::PusherApps => self.clients.end_pusher_apps(turn),
            Effect::Tenants => self.clients.end_tenants(turn),
            Effect::SubscriptionTokens => {
                let settings = turn.core.settings.snapshot();
                let places = self.clients.sessions.grants.without_key(|channel, key| {
                    let tenant = settings.tenants.of(channel);
                    tenant.map_or(&settings.subscription_verifier, |of| &of.verifier).keeps(key)
                });
                self.clients.invalidate_subscriptions(
                    turn,
                    places,
                    "the key of its token was revoked",
                );
            }
            Effect::Permissions => self.clients.sweeps.begin_withdrawal(),
            // Brought about before the settings are adopted, since they may fail.
            Effect::Listeners | Effect::Tls | Effect::RequestLimits | Effect::Node => {}
            // In the settings as they were derived.
            Effect::Certificates | Effect::Name | Effect::Namespaces | Effect::WithoutNamespace => {
            }
            Effect::Read | Effect::NewConnections | Effect::NextStart => return,
            // Of other threads.
            Effect::AdminPort
            | Effect::AdminTokens
            | Effect::Log
            | Effect::Otlp
            | Effect::PushSenders
            | Effect::Federation => return,
        }
        self.core.state.effects.count(effect);
    }

    /// Uses another node number for new session ids; open sessions keep theirs.
    fn apply_node(&mut self, old: &Config, new: &Config) -> Result<(), String> {
        // In a cluster the lease determines the number; it arrives separately.
        if old.server.node == new.server.node || self.core.state.cluster.number().is_some() {
            return Ok(());
        }
        self.core.hub.set_node(new.server.node).map_err(|_| {
            "server.node: sessions of eight former numbers are still open; wait until those of one have ended".into()
        })
    }
}

impl Core<'_> {
    /// If the ring is full, the admin thread reports this worker as unresponsive.
    pub(super) fn send_to_admin(&mut self, message: AdminMessage) {
        let _ = self.endpoint.send(self.state.bus.admin(), message);
    }
}

impl Clients {
    /// Continues to end what clients are no longer permitted: subscriptions, and notifications of joins and leaves.
    pub(super) fn continue_withdrawal(&mut self, turn: &mut Turn<'_, '_>) {
        if !self.sweeps.is_withdrawing() {
            return;
        }
        let settings = turn.core.settings.snapshot();
        let standings = Standings {
            settings: &settings,
            forwarded: &self.sessions.forwarded,
            grants: &self.sessions.grants,
            capabilities: &self.sessions.capabilities,
            renewed: None,
        };
        let (now, reason) =
            (turn.core.clock.set(turn.cx.now_ms()), "the permission to subscribe was withdrawn");
        self.sweeps.continue_withdrawal(|withdrawal| {
            let rights = |of: &CheckedSubscription<'_>| standings.rights(of);
            turn.core.hub.withdraw(now, withdrawal, WITHDRAWAL_STEPS, reason, rights)
        });
        self.drain_events(turn);
    }

    /// Ends the sessions that were accepted with a key that is no longer valid, and those without a token if one is now required.
    /// They may reconnect with a new token.
    fn close_revoked(&mut self, turn: &mut Turn<'_, '_>) {
        let settings = turn.core.settings.snapshot();
        let verifier = &settings.verifier;
        let anonymous_stay = settings.config.client.anonymous;
        self.end_polls(turn, |user, key| {
            key.map_or(anonymous_stay, |key| settings.keeps_key(user, key))
        });
        if anonymous_stay
            && self.sessions.heartbeat.sessions_without(|key| verifier.keeps(key)) == 0
        {
            return;
        }
        let open: Vec<ConnId> = turn.cx.connections().collect();
        for conn in open {
            let Some(&mut link) = turn.cx.data(conn) else { continue };
            // Sessions of the Pusher protocol have no tokens.
            if !matches!(link.role, Role::Client(encoding) if !encoding.is_pusher())
                || link.session().is_none()
            {
                continue;
            }
            let user =
                link.session().and_then(|of| turn.core.hub.session(of)).map(|view| view.user);
            if user.is_some_and(|user| user.starts_with(MARK)) {
                // Its keys belong to its tenant.
                continue;
            }
            let why =
                match self.sessions.heartbeat.params(link.params()).and_then(|params| params.key) {
                    Some(key) if !verifier.keeps(key) => {
                        DisconnectCode::Expired.with_reason("the key of its token was revoked")
                    }
                    None if self.sessions.is_by_proxy(link.session()) => continue,
                    None if !anonymous_stay => DisconnectCode::PermissionDenied
                        .with_reason("clients without a token are not let in any more"),
                    _ => continue,
                };
            self.disconnect(turn, conn, &why);
        }
    }
}

/// The configuration of a hub from the settings; the caller sets its incarnation and seed.
pub(super) fn hub_config(
    index: usize,
    incarnation: u32,
    state: &ServerState,
    settings: &Settings,
) -> HubConfig {
    let limits = &settings.config.limits;
    let workers = state.workers();
    let per_worker = |total: usize| total.div_ceil(workers);
    HubConfig {
        node: state.node_number(&settings.config),
        boot: ((u32::from(state.keys.boot) + incarnation) % BOOTS) as u8,
        worker: index as u8,
        workers: workers as u8,
        hash_seed: state.keys.channel_hash,
        users: Some(Arc::clone(&state.users)),
        subscriptions_per_session_max: limits.subscriptions_per_client_max as u16,
        channels_max: limits.channels_max,
        channels_per_owner_max: limits.channels_per_user_max,
        // A tenant's channel name is prefixed with the tenant's name and two marks.
        channel_name_bytes_max: u16::try_from(limits.channel_bytes_max + TENANT_BYTES_MAX + 2)
            .unwrap_or(u16::MAX),
        request_timeout_ms: limits.bus_request_timeout_ms,
        transmit_bytes_max: limits.bus_backlog_bytes_max,
        pending_bytes_max: per_worker(settings.memory.pending_bytes_max),
        history_bytes_max: per_worker(settings.memory.history_bytes_max),
        filter_bytes_max: per_worker(limits.filter_bytes_max),
        idempotency_keys_max: per_worker(limits.idempotency_keys_max as usize),
        broadcast_quantum: NonZeroU32::new(limits.broadcast_quantum),
        ..HubConfig::default()
    }
}
