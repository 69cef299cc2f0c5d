//! The snapshot of the settings that a worker runs, and what a switch to another one asks of it.

use std::ops::Deref;
use std::sync::Arc;

use crate::state::settings::Settings;

/// The snapshot that a worker runs.
pub(crate) struct RunningSettings {
    snapshot: Arc<Settings>,
    /// The publication it was part of.
    generation: u64,
}

/// What a switch changes beside what is compared where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingsEffect {
    /// The thread is bound to a core, or to none any more.
    Pinning,
    Limits,
    Cluster,
    Proxies,
    /// The members of proxies' upstreams.
    Upstreams,
    Engines,
    /// Sessions may have come with a key that is gone, or without one where one is needed.
    ConnectionTokens,
    PusherApps,
    Tenants,
    /// Subscriptions may rest on a key that is gone.
    SubscriptionTokens,
    /// Some may not subscribe any more, or see who is present.
    Permissions,
}

impl RunningSettings {
    pub(crate) fn new(generation: u64, snapshot: Arc<Settings>) -> RunningSettings {
        RunningSettings { snapshot, generation }
    }

    /// The snapshot, to be kept while others are asked.
    pub(crate) fn snapshot(&self) -> Arc<Settings> {
        Arc::clone(&self.snapshot)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The worker has switched to what was published with this generation, or has refused it.
    pub(crate) fn handle_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Switches to another snapshot. Gives what is to be done, in this order.
    pub(crate) fn switch(
        &mut self,
        newest: &Arc<Settings>,
    ) -> impl Iterator<Item = SettingsEffect> + use<> {
        let before = std::mem::replace(&mut self.snapshot, Arc::clone(newest));
        effects(&before, newest)
    }
}

impl Deref for RunningSettings {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.snapshot
    }
}

fn effects(before: &Settings, newest: &Settings) -> impl Iterator<Item = SettingsEffect> + use<> {
    let (old, new) = (&before.config, &newest.config);
    let tenants = !Arc::ptr_eq(&before.tenants, &newest.tenants);
    let verifiers = !Arc::ptr_eq(&before.subscription_verifier, &newest.subscription_verifier);
    let all = [
        (old.server.pin_workers != new.server.pin_workers, SettingsEffect::Pinning),
        (old.limits != new.limits, SettingsEffect::Limits),
        (old.cluster != new.cluster, SettingsEffect::Cluster),
        (
            old.proxies != new.proxies || before.looks_at_meta != newest.looks_at_meta,
            SettingsEffect::Proxies,
        ),
        (old.webhooks.upstreams != new.webhooks.upstreams, SettingsEffect::Upstreams),
        (old.engines != new.engines || before.engines != newest.engines, SettingsEffect::Engines),
        (
            old.client.token != new.client.token || before.withdraws_anonymous(newest),
            SettingsEffect::ConnectionTokens,
        ),
        (!Arc::ptr_eq(&before.pusher, &newest.pusher), SettingsEffect::PusherApps),
        (tenants, SettingsEffect::Tenants),
        (tenants || verifiers, SettingsEffect::SubscriptionTokens),
        (before.withdraws_permissions(newest), SettingsEffect::Permissions),
    ];
    all.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, effect)| effect)
}

#[cfg(test)]
mod tests {
    use dunlin_config::{Config, Snapshot};

    use super::*;

    fn next(running: &RunningSettings, change: impl FnOnce(&mut Config)) -> Arc<Settings> {
        let mut config = running.config.clone();
        change(&mut config);
        let snapshot = Snapshot::new(running.revision + 1, config).unwrap();
        Arc::new(running.next(Arc::new(snapshot)))
    }

    #[test]
    fn a_switch_asks_for_what_has_changed_and_for_nothing_else() {
        let first = Arc::new(Snapshot::new(1, Config::default()).unwrap());
        let mut running = RunningSettings::new(7, Arc::new(Settings::new(first)));
        let mut switch = |change: fn(&mut Config)| {
            let newest = next(&running, change);
            running.switch(&newest).collect::<Vec<_>>()
        };
        assert_eq!(switch(|config| config.log.level = dunlin_config::LogLevel::Debug), []);
        assert_eq!(
            switch(|config| {
                config.limits.channels_max += 1;
                config.server.pin_workers ^= true;
                config.channel.without_namespace.allow_subscribe_for_client = true;
            }),
            [SettingsEffect::Pinning, SettingsEffect::Limits],
            "what is allowed takes nothing away"
        );
        assert_eq!(
            switch(|config| config.channel.without_namespace.allow_subscribe_for_client = false),
            [SettingsEffect::Permissions]
        );
        assert_eq!(running.generation(), 7, "until the worker says that it runs the next");
        running.handle_generation(8);
        assert_eq!(running.generation(), 8);
    }
}
