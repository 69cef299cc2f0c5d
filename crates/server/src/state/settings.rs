//! The immutable snapshot that workers run: the configuration and what is derived from it.

use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_config::{
    ApiKey, Config, Effect, Effects, Inbox, Ingress, Keys, Map, MapChange, Pacing, Serves, Snapshot,
};
use dunlin_hub::{Durability, tenant};

use crate::auth::{Jwks, Verifier};
use crate::limits::user_connections::UserConnections;
use crate::namespace::{
    ChannelVariants, Namespace, durability, find_namespace, inboxes_among, namespace,
};
use crate::pusher::Apps;
use crate::state::memory::MemoryBounds;
use crate::state::node_name::default_name;
use crate::tenants::{Tenant, Tenants};
use crate::tls::Tls;
use dunlin_webhooks::EventFilter;

/// The options of a namespace in the configuration.
type Rules = dunlin_config::ChannelOptions;

/// All namespaces are compiled anew, for each depends on what has changed.
const ALL_NAMESPACES: Effects =
    Effects::of(&[Effect::Namespaces, Effect::Engines, Effect::PusherApps]);

/// One revision of all settings.
///
/// Derived from the previous revision where there is one: unchanged parts are shared, so that a change of one namespace among ten
/// thousand costs one namespace.
pub(crate) struct Settings {
    pub(crate) revision: u64,
    pub(crate) config: Config,
    /// Verifies connection tokens.
    pub(crate) verifier: Arc<Verifier>,
    /// Verifies subscription tokens; the same where they have no keys of their own.
    pub(crate) subscription_verifier: Arc<Verifier>,
    /// Which events the hooks subscribe to.
    pub(crate) event_filter: Arc<EventFilter>,
    /// The apps of the Pusher protocol.
    pub(crate) pusher: Arc<Apps>,
    /// The tenants of this server.
    pub(crate) tenants: Arc<Tenants>,
    /// Counts the connections of each user, if they are bounded.
    pub(crate) user_connections: Option<Arc<UserConnections>>,
    /// The certificates and settings of listeners with TLS.
    pub(crate) tls: Arc<Tls>,
    /// The bounds in bytes that follow from the memory of this process.
    pub(crate) memory: MemoryBounds,
    snapshot: Arc<Snapshot>,
    node_name: Arc<str>,
    without_namespace: Arc<Namespace>,
    namespaces: Map<Namespace>,
    /// Rates of the namespaces that have any. Few have, so workers find changes here without comparing all namespaces.
    pub(crate) pacings: Map<Pacing>,
    /// Engines of the namespaces that have one; the empty name is the namespace of channels without one.
    pub(crate) engines: Map<EngineOf>,
    /// Namespaces whose inboxes connections are subscribed to.
    inboxes: Arc<[Arc<str>]>,
    /// An expression reads the `meta` of connections, or one did since the start.
    pub(crate) looks_at_meta: bool,
    /// An address serves only a part of the endpoints: see [`Settings::serves`].
    pub(crate) serves_apart: bool,
    /// An address for clients has an access log.
    pub(crate) has_access_log: bool,
}

impl Settings {
    /// Derives a snapshot from a validated configuration.
    pub(crate) fn new(snapshot: Arc<Snapshot>) -> Self {
        let config = snapshot.config.clone();
        let verifier = Arc::new(Verifier::new(config.client.token.rules()));
        let without_namespace =
            Arc::new(namespace("", &config.channel.without_namespace, &config, None));
        let namespaces = all_namespaces(&config);
        let tenants = Arc::new(Tenants::default().next(&Config::default(), &config, false));
        Self {
            looks_at_meta: tenants.look_at_meta
                || namespaces.values().any(Namespace::looks_at_meta)
                || without_namespace.looks_at_meta(),
            revision: snapshot.revision,
            node_name: node_name(&config),
            subscription_verifier: subscription_verifier(&config, &verifier, None),
            verifier,
            without_namespace,
            namespaces,
            pacings: pacings(&config),
            engines: engines(&config),
            inboxes: inboxes_among(&config.channel.namespaces),
            serves_apart: serves_apart(&config),
            has_access_log: has_access_log(&config),
            event_filter: Arc::new(EventFilter::of(&config.webhooks.hooks)),
            pusher: Arc::new(Apps::of(&config.pusher.apps)),
            tenants,
            user_connections: user_connections(&config, None),
            tls: Tls::of(&config, None),
            memory: MemoryBounds::of(&config.limits),
            snapshot,
            config,
        }
    }

    /// Derives the snapshot of another revision from this one, by their differences.
    pub(crate) fn next(&self, snapshot: Arc<Snapshot>) -> Self {
        let config = snapshot.config.clone();
        let (old, new) = (&self.config, &config);
        let effects = old.effects(new);
        let has = |effect| effects.contains(effect);
        let verifier = match has(Effect::ConnectionTokens) {
            false => Arc::clone(&self.verifier),
            true => Arc::new(Verifier::next(new.client.token.rules(), Some(&self.verifier))),
        };
        let subscription_verifier = match has(Effect::SubscriptionTokens) {
            false => Arc::clone(&self.subscription_verifier),
            true => subscription_verifier(new, &verifier, Some(&self.subscription_verifier)),
        };
        let changed: Vec<_> =
            new.channel.namespaces.changes_from(&old.channel.namespaces).collect();
        let pusher = match has(Effect::PusherApps) {
            false => Arc::clone(&self.pusher),
            true => Arc::new(Apps::of(&new.pusher.apps)),
        };
        let all_anew = effects.intersects(ALL_NAMESPACES);
        let tenants = match has(Effect::Tenants) || all_anew && !new.tenants.is_empty() {
            false => Arc::clone(&self.tenants),
            true => Arc::new(self.tenants.next(old, new, all_anew)),
        };
        let namespaces = match all_anew {
            false => with_namespaces(&self.namespaces, new, &changed),
            true => all_namespaces(new),
        };
        let pacings = with_pacings(self.pacings.clone(), &changed);
        let engines = match has(Effect::EngineOfChannels) || has(Effect::Engines) {
            false => self.engines.clone(),
            true => engines(new),
        };
        let has_inbox = |rules: &Option<&Arc<Rules>>| {
            rules.is_some_and(|rules| rules.inbox == Inbox::Subscribed)
        };
        let inboxes = match changed.iter().any(|(_, old, new)| has_inbox(old) != has_inbox(new)) {
            false => Arc::clone(&self.inboxes),
            true => inboxes_among(&new.channel.namespaces),
        };
        let without_namespace = match has(Effect::WithoutNamespace) || all_anew {
            false => Arc::clone(&self.without_namespace),
            true => Arc::new(namespace("", &new.channel.without_namespace, new, None)),
        };
        let mut new_ones = changed.iter().filter_map(|(name, ..)| namespaces.get(name));
        let looks_at_meta = self.looks_at_meta
            || tenants.look_at_meta
            || new_ones.any(Namespace::looks_at_meta)
            || without_namespace.looks_at_meta();
        let node_name = match has(Effect::Name) {
            false => Arc::clone(&self.node_name),
            true => node_name(new),
        };
        let event_filter = match has(Effect::Hooks) {
            false => Arc::clone(&self.event_filter),
            true => Arc::new(EventFilter::of(&new.webhooks.hooks)),
        };
        let tls = match has(Effect::Tls) {
            false => Arc::clone(&self.tls),
            true => Tls::of(new, Some((old, &self.tls))),
        };
        Self {
            revision: snapshot.revision,
            looks_at_meta,
            node_name,
            verifier,
            subscription_verifier,
            event_filter,
            without_namespace,
            namespaces,
            pacings,
            engines,
            inboxes,
            serves_apart: serves_apart(&config),
            has_access_log: has_access_log(&config),
            pusher,
            tenants,
            user_connections: user_connections(new, self.user_connections.as_ref()),
            tls,
            memory: MemoryBounds::of(&config.limits),
            snapshot,
            config,
        }
    }

    /// Returns what a change to a newer snapshot brings about: what its keys declare, without what the values spare.
    pub(crate) fn effects(&self, newer: &Settings) -> Effects {
        let mut effects = self.config.effects(&newer.config);
        let tenants = !Arc::ptr_eq(&self.tenants, &newer.tenants);
        let verifier = !Arc::ptr_eq(&self.subscription_verifier, &newer.subscription_verifier);
        for (effect, is_due) in [
            (Effect::ExpressionData, self.looks_at_meta != newer.looks_at_meta),
            (Effect::EngineOfChannels, self.engines != newer.engines),
            (Effect::PusherApps, !Arc::ptr_eq(&self.pusher, &newer.pusher)),
            (Effect::Tenants, tenants),
            (Effect::SubscriptionTokens, tenants || verifier),
            // What is permitted takes nothing away.
            (Effect::Anonymous, self.withdraws_anonymous(newer)),
            (
                Effect::Permissions,
                effects.contains(Effect::Permissions) && self.withdraws_permissions(newer),
            ),
        ] {
            effects.set(effect, is_due);
        }
        effects
    }

    /// Returns what is served at a local address.
    pub(crate) fn serves(&self, local: SocketAddr) -> Serves {
        let listener = self.config.listeners.get(self.listener_at(local));
        listener.map_or(self.config.server.client_serves, |listener| listener.serves)
    }

    /// Returns the name of the listener at a local address; empty for that of `server.client_addr`. If two have the same port,
    /// the kernel prefers the one with the exact address.
    pub(crate) fn listener_at(&self, local: SocketAddr) -> &str {
        let closeness = |addr: SocketAddr| {
            let is_any = addr.ip().is_unspecified() && addr.port() == local.port();
            (addr == local, is_any && addr.is_ipv4() == local.is_ipv4(), is_any)
        };
        let listeners = self.config.listeners.iter().map(|(name, of)| (name, of.addr));
        // Of several that match equally well, the last one: without a match, that of the clients.
        let all = listeners.chain([("", self.config.server.client_addr)]);
        all.max_by_key(|(_, addr)| closeness(*addr)).map_or("", |(name, _)| name)
    }

    /// Returns the settings of a listener's address, by its name.
    pub(crate) fn ingress_of(&self, listener: &str) -> &Ingress {
        let named = self.config.listeners.get(listener);
        named.map_or(&self.config.server.client_ingress, |listener| &listener.ingress)
    }

    /// Whether a newer snapshot withdraws a permission to subscribe, or to receive joins and leaves.
    pub(crate) fn withdraws_permissions(&self, newer: &Settings) -> bool {
        let (old, new) = (&self.config.channel, &newer.config.channel);
        let withdraws = |old: &Rules, new: Option<&Rules>| {
            withdraws_subscribing(old, new) || withdraws_presence(old, new)
        };
        let old_fallback = old.any_namespace.then_some(&old.without_namespace);
        let new_fallback = new.any_namespace.then_some(&new.without_namespace);
        old.any_namespace && !new.any_namespace
            // What an app's namespace permits to clients of other protocols depends on the names of its channels.
            || !newer.config.pusher.apps.is_same(&self.config.pusher.apps)
            || newer
                .config
                .tenants
                .changes_from(&self.config.tenants)
                .any(|(_, before, after)| before.is_some() && after.is_some())
            || withdraws(&old.without_namespace, Some(&new.without_namespace))
            || new.namespaces.changes_from(&old.namespaces).any(|(_, before, after)| {
                let before = before.map(|of| &**of).or(old_fallback);
                let after = after.map(|of| &**of).or(new_fallback);
                before.is_some_and(|before| withdraws(before, after))
            })
    }

    /// Whether this snapshot accepts clients without a token, and a newer one does not.
    pub(crate) fn withdraws_anonymous(&self, newer: &Settings) -> bool {
        self.config.client.anonymous && !newer.config.client.anonymous
    }

    /// Returns the API key that a caller has sent; `None` if it is unknown.
    pub(crate) fn api_key(&self, shown: &str) -> Option<&ApiKey> {
        self.snapshot.api_key(shown)
    }

    /// Returns the tenant that the key id of a token belongs to.
    pub(crate) fn tenant_of_token(&self, token: &str) -> Option<&Arc<Tenant>> {
        self.tenants.of_token(token, &self.snapshot)
    }

    /// Whether connection tokens signed with the key of this number are accepted.
    pub(crate) fn keeps_key(&self, user: &str, key: u64) -> bool {
        match tenant::split(user).0 {
            Some(name) => self.tenants.get(name).is_some_and(|of| of.verifier.keeps(key)),
            None => self.verifier.keeps(key),
        }
    }

    /// The namespace of a channel, by the part of its name before the first `:`; `None` when it does not
    /// exist, or does not admit the rest of the name. See [`any_namespace`](dunlin_config::Channel::any_namespace).
    pub(crate) fn namespace(&self, channel: &str) -> Option<&Namespace> {
        if let (Some(name), bare) = tenant::split(channel) {
            return self.tenants.get(name)?.namespace(bare);
        }
        let any = self.config.channel.any_namespace.then_some(&*self.without_namespace);
        find_namespace(&self.namespaces, any, &self.without_namespace, channel)
    }

    /// Returns the inboxes that each connection of a user is subscribed to.
    pub(crate) fn inboxes_of(&self, user: &str) -> Vec<String> {
        let (tenant, bare) = tenant::split(user);
        if bare.is_empty() {
            return Vec::new();
        }
        match tenant {
            None => self.inboxes.iter().map(|name| format!("{name}:{bare}")).collect(),
            Some(name) => self.tenants.get(name).map_or_else(Vec::new, |of| {
                of.inboxes.iter().map(|name| of.qualify(&format!("{name}:{bare}"))).collect()
            }),
        }
    }

    /// Returns the key sets that verify tokens, each once.
    pub(crate) fn key_sets(&self) -> impl Iterator<Item = Arc<Jwks>> {
        let own = self.subscription_verifier.jwks();
        let sets =
            [self.verifier.jwks(), own.filter(|_| self.config.client.subscription_token.enabled)];
        sets.map(|jwks| jwks.map(Arc::clone)).into_iter().flatten()
    }

    /// Returns `server.name`, or host name and port.
    pub(crate) fn node_name(&self) -> &Arc<str> {
        &self.node_name
    }

    /// Returns the revision that this was derived from.
    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
}

/// Whether the newer rules withdraw a permission to subscribe; `None`: the namespace was removed.
pub(crate) fn withdraws_subscribing(old: &Rules, new: Option<&Rules>) -> bool {
    new.is_none_or(|new| {
        old.allow_subscribe_for_client && !new.allow_subscribe_for_client
            || old.allow_subscribe_for_anonymous && !new.allow_subscribe_for_anonymous
            || old.subscribe_cel.is_some() && old.subscribe_cel != new.subscribe_cel
            || old.allow_user_limited_channels != new.allow_user_limited_channels
            || new.subscribe_proxy.is_some() && old.subscribe_proxy.is_none()
            || new.name_pattern.is_some() && old.name_pattern != new.name_pattern
            || new.channel_regex.is_some() && old.channel_regex != new.channel_regex
            || old.wildcards && !new.wildcards
            || old.inbox == Inbox::Off && new.inbox != Inbox::Off
    })
}

fn subscription_verifier(
    config: &Config,
    verifier: &Arc<Verifier>,
    before: Option<&Verifier>,
) -> Arc<Verifier> {
    match config.client.subscription_token.enabled {
        true => Arc::new(Verifier::next(config.client.subscription_token.rules(), before)),
        false => Arc::clone(verifier),
    }
}

/// Whether the newer rules withdraw a permission to read presence.
fn withdraws_presence(old: &Rules, new: Option<&Rules>) -> bool {
    new.is_none_or(|new| {
        old.allow_presence_for_client && !new.allow_presence_for_client
            || old.allow_presence_for_subscriber && !new.allow_presence_for_subscriber
            || old.allow_presence_for_anonymous && !new.allow_presence_for_anonymous
            || old.presence_cel.is_some() && old.presence_cel != new.presence_cel
    })
}

/// Returns the table of a configuration; an existing table is kept.
fn user_connections(
    config: &Config,
    before: Option<&Arc<UserConnections>>,
) -> Option<Arc<UserConnections>> {
    let is_counted = config.limits.connections_per_user_max > 0 || config.cluster.engine.is_some();
    is_counted.then(|| before.map_or_else(Arc::default, Arc::clone))
}

fn has_access_log(config: &Config) -> bool {
    config.server.client_ingress.access_log
        || config.listeners.values().any(|listener| listener.ingress.access_log)
}

fn serves_apart(config: &Config) -> bool {
    config.server.client_serves != Serves::All
        || config.listeners.values().any(|listener| listener.serves != Serves::All)
}

fn node_name(config: &Config) -> Arc<str> {
    let server = &config.server;
    if !server.name.is_empty() {
        return server.name.as_str().into();
    }
    let uname = rustix::system::uname();
    default_name(&uname.nodename().to_string_lossy(), server.client_addr).into()
}

fn all_namespaces(config: &Config) -> Map<Namespace> {
    let namespaces = config.channel.namespaces.iter_shared();
    namespaces.map(|(name, rules)| (Arc::clone(name), named(name, rules, config))).collect()
}

fn named(name: &str, rules: &Rules, config: &Config) -> Namespace {
    namespace(name, rules, config, ChannelVariants::of(None, name, config))
}

/// Updates the namespaces to those of `config`, which differ in `changed`.
fn with_namespaces(
    older: &Map<Namespace>,
    config: &Config,
    changed: &[MapChange<'_, Rules>],
) -> Map<Namespace> {
    let mut namespaces = older.clone();
    for (name, _, after) in changed {
        match after {
            Some(rules) => namespaces.insert(Arc::clone(name), named(name, rules, config)),
            None => drop(namespaces.remove(name)),
        }
    }
    namespaces
}

fn pacings(config: &Config) -> Map<Pacing> {
    let none = Map::new();
    with_pacings(Map::new(), &config.channel.namespaces.changes_from(&none).collect::<Vec<_>>())
}

/// Updates the rates of the namespaces in `changed`.
fn with_pacings(mut pacings: Map<Pacing>, changed: &[MapChange<'_, Rules>]) -> Map<Pacing> {
    for (name, _, after) in changed {
        match after.map(|rules| rules.pacing).filter(|pacing| *pacing != Pacing::default()) {
            Some(pacing) => pacings.insert(Arc::clone(*name), pacing),
            None => drop(pacings.remove(name)),
        }
    }
    pacings
}

/// The engine of a namespace.
#[derive(Clone, PartialEq)]
pub(crate) struct EngineOf {
    pub(crate) name: Arc<str>,
    /// The namespace has wildcards.
    pub(crate) wildcards: bool,
    /// What a publication survives before it is delivered, if the namespace says it.
    pub(crate) durability: Option<Durability>,
}

fn engines(config: &Config) -> Map<EngineOf> {
    let Config { channel, engines, .. } = config;
    if engines.is_empty() {
        return Map::new();
    }
    let without: Arc<str> = "".into();
    let named = channel.namespaces.iter_shared().map(|(name, rules)| (name, &**rules));
    named
        .chain(std::iter::once((&without, &channel.without_namespace)))
        .filter_map(|(name, rules)| {
            let engine = Arc::clone(rules.engine.as_ref()?);
            let durability = rules.durability.of_namespace().map(durability);
            let of = EngineOf { name: engine, wildcards: rules.wildcards, durability };
            Some((Arc::clone(name), Arc::new(of)))
        })
        .collect()
}
