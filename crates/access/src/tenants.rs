//! The tenants, the tenant of a token, user or channel, and the usage of each.
//!
//! Inside the server, names of a tenant's users and channels have a prefix ([`dunlin_hub::tenant`]), so that tenants never
//! share anything stored by name. A removed tenant is swept: each worker ends its sessions; when all workers have done so,
//! they delete its channels. A new tenant of the same name opens only after that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dunlin_config::{Config, Map, Snapshot};
use dunlin_hub::{WORKERS_MAX, tenant};
use serde_json::{Value, json};

use crate::auth::{Identity, Verifier, key_id};
use crate::limits::budget::Rates;
use crate::namespace::ChannelVariants;
use crate::namespace::{Namespace, find_namespace, inboxes_among, namespace};

/// One tenant as the data plane needs it.
pub struct Tenant {
    /// Its name.
    pub name: Arc<str>,
    /// The prefix of the names of its channels and users; also names its budget and its share of channels and history.
    pub prefix: Arc<str>,
    /// Its settings.
    pub config: Arc<dunlin_config::Tenant>,
    /// Verifies its tokens, of both kinds.
    pub verifier: Arc<Verifier>,
    /// What it uses.
    pub figures: Arc<TenantUsage>,
    /// Its namespaces whose inboxes connections are subscribed to.
    pub inboxes: Arc<[Arc<str>]>,
    without_namespace: Arc<Namespace>,
    namespaces: Map<Namespace>,
    /// The sweep of a removed tenant of the same name.
    after: Option<Arc<Sweep>>,
}

/// All tenants of one revision of the settings, and the sweeps of removed tenants that are in progress.
#[derive(Default)]
pub struct Tenants {
    all: Map<Tenant>,
    /// The sweeps in progress.
    pub sweeps: Vec<Arc<Sweep>>,
    /// Whether an expression of a tenant reads the `meta` of connections, or has done so since the start.
    pub look_at_meta: bool,
}

impl Tenants {
    /// Returns the tenants of a new configuration, updated by its differences from the old one.
    pub fn next(&self, old: &Config, new: &Config, all_anew: bool) -> Tenants {
        let mut all = self.all.clone();
        let mut sweeps: Vec<_> = self.sweeps.iter().filter(|of| !of.is_over()).cloned().collect();
        let none = Map::new();
        for (name, _, after) in new.tenants.changes_from(&old.tenants) {
            if after.is_none() {
                all.remove(name);
                sweeps.push(Arc::new(Sweep::new(name)));
            }
        }
        let mut look_at_meta = self.look_at_meta;
        let compared = if all_anew { &none } else { &old.tenants };
        for (name, _, after) in new.tenants.changes_from(compared) {
            let Some(config) = after else { continue };
            let made = Tenant::new(name, config, new, self.all.get(name), &sweeps);
            look_at_meta |= made.looks_at_meta();
            all.insert(Arc::clone(name), made);
        }
        Tenants { all, sweeps, look_at_meta }
    }

    /// Whether there is no tenant.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the tenant of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.all.get_shared(name)
    }

    /// Returns the tenant of a user or a channel, by its name inside the server.
    pub fn of(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.get(tenant::split(name).0?)
    }

    /// Returns the tenant whose key a token names.
    pub fn of_token(&self, token: &str, snapshot: &Snapshot) -> Option<&Arc<Tenant>> {
        if self.all.is_empty() {
            return None;
        }
        self.get(snapshot.tenant_of_token_key(&key_id(token)?)?)
    }

    /// `GET /status/tenants`.
    pub fn status(&self) -> Value {
        let all = self.all.iter().map(|(name, tenant)| (name.to_owned(), tenant.figures.status()));
        json!({ "tenants": all.collect::<serde_json::Map<_, _>>() })
    }
}

impl Tenant {
    fn new(
        name: &Arc<str>,
        config: &Arc<dunlin_config::Tenant>,
        all: &Config,
        before: Option<&Tenant>,
        sweeps: &[Arc<Sweep>],
    ) -> Tenant {
        let prefix: Arc<str> = tenant::qualify(name, "").into();
        let namespace = |rules: &dunlin_config::ChannelOptions, kinds: Option<ChannelVariants>| {
            // One budget and one share for all of the tenant's channels.
            let rules = dunlin_config::ChannelOptions {
                budget: config.budget,
                channels_max: config.channels_max,
                history_bytes_max: config.history_bytes_max,
                ..rules.clone()
            };
            namespace(&prefix, &rules, all, kinds)
        };
        let named = config.namespaces.iter_shared();
        let verifier = match before {
            Some(before) if before.config.token_keys == config.token_keys => {
                Arc::clone(&before.verifier)
            }
            _ => Arc::new(Verifier::new(config.token_rules())),
        };
        Tenant {
            inboxes: inboxes_among(&config.namespaces),
            without_namespace: Arc::new(namespace(&config.without_namespace, None)),
            namespaces: named
                .map(|(of, rules)| {
                    let kinds = ChannelVariants::of(Some(name), of, all);
                    (Arc::clone(of), namespace(rules, kinds))
                })
                .collect(),
            verifier,
            figures: before.map_or_else(Arc::default, |before| Arc::clone(&before.figures)),
            after: match before {
                Some(before) => before.after.clone(),
                None => sweeps.iter().find(|of| of.name == *name).cloned(),
            },
            name: Arc::clone(name),
            config: Arc::clone(config),
            prefix,
        }
    }

    /// Returns the name inside the server of one of its channels or users.
    pub fn qualify(&self, bare: &str) -> String {
        [&*self.prefix, bare].concat()
    }

    /// Returns the namespace of a channel, by its name without the prefix.
    pub fn namespace(&self, bare: &str) -> Option<&Namespace> {
        find_namespace(&self.namespaces, None, &self.without_namespace, bare)
    }

    fn looks_at_meta(&self) -> bool {
        self.without_namespace.looks_at_meta()
            || self.namespaces.values().any(Namespace::looks_at_meta)
    }

    /// Whether it accepts clients and calls: the sweep of an earlier tenant of its name, if any, is over.
    pub fn is_open(&self) -> bool {
        self.after.as_ref().is_none_or(|sweep| sweep.is_over())
    }

    /// Whether it has room for one more connection.
    pub fn has_room(&self) -> bool {
        let max = u64::from(self.config.connections_max);
        max == 0 || self.figures.sum(|of| &of.connections) < max
    }

    /// Returns the rates that its clients and keys share.
    pub fn rates(&self) -> Rates {
        Rates::from(&self.config.budget)
    }

    /// Adds the tenant's prefix to the names in an identity from one of its tokens.
    pub fn adopt(&self, identity: &mut Identity) {
        identity.user = self.qualify(&identity.user);
        let subscriptions = std::mem::take(&mut identity.subscriptions);
        identity.subscriptions = subscriptions
            .into_iter()
            .map(|(channel, options)| (self.qualify(&channel), options))
            .collect();
        if let Some(token) = &mut identity.token {
            token.jti = token.jti.take().map(|jti| self.qualify(&jti));
        }
    }
}

/// The usage of a tenant, by worker; each part is written by its worker alone.
#[derive(Default)]
pub struct TenantUsage(OnceLock<Box<[WorkerUsage]>>);

/// The part of one worker.
#[derive(Default)]
pub struct WorkerUsage {
    /// Open connections.
    pub connections: AtomicU64,
    /// Users with a session.
    pub users: AtomicU64,
    /// Channels at home on the worker.
    pub channels: AtomicU64,
    /// Bytes of the histories of these channels.
    pub history_bytes: AtomicU64,
    /// Publications since the start.
    pub publications: AtomicU64,
    /// Their bytes.
    pub published_bytes: AtomicU64,
    /// Deliveries since the start.
    pub deliveries: AtomicU64,
    /// Their bytes.
    pub delivered_bytes: AtomicU64,
}

impl TenantUsage {
    /// The part of a worker, of so many.
    pub fn of(&self, worker: usize, workers: usize) -> &WorkerUsage {
        let all = self.0.get_or_init(|| (0..workers).map(|_| WorkerUsage::default()).collect());
        &all[worker]
    }

    /// Returns the sum of one figure over all workers.
    pub fn sum(&self, figure: impl Fn(&WorkerUsage) -> &AtomicU64) -> u64 {
        let all = self.0.get().into_iter().flatten();
        all.map(|of| figure(of).load(Ordering::Relaxed)).sum()
    }

    fn status(&self) -> Value {
        json!({
            "connections": self.sum(|of| &of.connections),
            "users": self.sum(|of| &of.users),
            "channels": self.sum(|of| &of.channels),
            "history_bytes": self.sum(|of| &of.history_bytes),
            "publications": self.sum(|of| &of.publications),
            "published_bytes": self.sum(|of| &of.published_bytes),
            "deliveries": self.sum(|of| &of.deliveries),
            "delivered_bytes": self.sum(|of| &of.delivered_bytes),
        })
    }
}

/// Adds to a figure that this thread alone writes.
pub fn add(figure: &AtomicU64, by: u64) {
    figure.store(figure.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The end of a tenant that was taken away.
pub struct Sweep {
    /// Its name.
    pub name: Arc<str>,
    sessions: Workers,
    channels: Workers,
    is_over: AtomicBool,
}

impl Sweep {
    fn new(name: &Arc<str>) -> Sweep {
        let (sessions, channels) = Default::default();
        Sweep { name: Arc::clone(name), sessions, channels, is_over: AtomicBool::new(false) }
    }

    /// A worker has none of its sessions any more.
    pub fn sessions_ended(&self, worker: usize) {
        self.sessions.insert(worker);
    }

    /// No worker has.
    pub fn has_no_sessions(&self, workers: usize) -> bool {
        self.sessions.len() == workers
    }

    /// A worker has forgotten its channels.
    pub fn channels_forgotten(&self, worker: usize, workers: usize) {
        self.channels.insert(worker);
        if self.channels.len() == workers {
            self.is_over.store(true, Ordering::Release);
        }
    }

    /// Whether a worker has ended its sessions.
    pub fn is_forgotten_by(&self, worker: usize) -> bool {
        self.channels.contains(worker)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

/// A set of workers.
#[derive(Default)]
struct Workers([AtomicU64; WORKERS_MAX.div_ceil(64)]);

impl Workers {
    fn insert(&self, worker: usize) {
        self.0[worker / 64].fetch_or(1 << (worker % 64), Ordering::AcqRel);
    }

    fn contains(&self, worker: usize) -> bool {
        self.0[worker / 64].load(Ordering::Acquire) & 1 << (worker % 64) != 0
    }

    fn len(&self) -> usize {
        self.0.iter().map(|bits| bits.load(Ordering::Acquire).count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(names: &[&str]) -> Config {
        let mut config = Config::default();
        for name in names {
            config.tenants.insert(*name, dunlin_config::Tenant::default());
        }
        config
    }

    #[test]
    fn a_tenant_that_comes_again_waits_for_the_end_of_the_one_before() {
        let (none, acme) = (config(&[]), config(&["acme"]));
        let first = Tenants::default().next(&none, &acme, false);
        assert!(first.get("acme").unwrap().is_open());
        let gone = first.next(&acme, &none, false);
        assert!(gone.get("acme").is_none());
        let again = gone.next(&none, &acme, false);
        assert!(!again.get("acme").unwrap().is_open());
        let sweep = &again.sweeps[0];
        for worker in 0..2 {
            assert!(!sweep.has_no_sessions(2));
            sweep.sessions_ended(worker);
            sweep.sessions_ended(worker);
        }
        assert!(sweep.has_no_sessions(2));
        sweep.channels_forgotten(1, 2);
        assert!(!again.get("acme").unwrap().is_open());
        sweep.channels_forgotten(0, 2);
        assert!(again.get("acme").unwrap().is_open());
        assert!(again.next(&acme, &acme, false).sweeps.is_empty());
    }

    #[test]
    fn claims_are_those_of_the_tokens_tenant() {
        let tenants = Tenants::default().next(&config(&[]), &config(&["acme"]), false);
        let acme = tenants.get("acme").unwrap();
        let mut identity = Identity { user: "42".into(), ..Identity::default() };
        identity.subscriptions.insert("news".into(), Default::default());
        acme.adopt(&mut identity);
        assert!(Arc::ptr_eq(tenants.of(&identity.user).unwrap(), acme));
        assert!(identity.subscriptions.keys().all(|channel| tenants.of(channel).is_some()));
        assert!(tenants.of("42").is_none() && tenants.of("\u{1}globex\u{1}42").is_none());
    }
}
