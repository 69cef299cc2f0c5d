//! The immutable snapshot workers run: the configuration and what is derived from it once.

use std::sync::Arc;

use dunlin_config::{Config, Overflow};
use dunlin_hub::ChannelOptions;
use hashbrown::HashMap;

use crate::auth::Verifier;

/// A namespace as the data plane needs it.
pub(crate) struct Namespace {
    /// Who may do what.
    pub(crate) rules: dunlin_config::ChannelOptions,
    /// What the hub needs to know; shared by every operation on its channels.
    pub(crate) options: Arc<ChannelOptions>,
}

/// One revision of everything that can be set.
pub(crate) struct Settings {
    pub(crate) config: Config,
    /// Judges connection tokens.
    pub(crate) verifier: Verifier,
    without_namespace: Namespace,
    namespaces: HashMap<Box<str>, Namespace>,
}

impl Settings {
    /// Derives what workers need from a validated configuration.
    pub(crate) fn new(config: Config) -> Self {
        let namespace = |name: &str, rules: &dunlin_config::ChannelOptions| Namespace {
            rules: rules.clone(),
            options: Arc::new(channel_options(name, rules, &config)),
        };
        Self {
            verifier: Verifier::new(&config.client.token),
            without_namespace: namespace("", &config.channel.without_namespace),
            namespaces: config
                .channel
                .namespaces
                .iter()
                .map(|(name, rules)| (name.into(), namespace(name, rules)))
                .collect(),
            config,
        }
    }

    /// The namespace of a channel, by the part of its name before the first `:`; `None` when it does not exist.
    pub(crate) fn namespace(&self, channel: &str) -> Option<&Namespace> {
        match channel.split_once(':') {
            Some((name, _)) => self.namespaces.get(name),
            None => Some(&self.without_namespace),
        }
    }

    /// `server.name`, or the client address.
    pub(crate) fn node_name(&self) -> String {
        let server = &self.config.server;
        if !server.name.is_empty() {
            return server.name.clone();
        }
        let uname = rustix::system::uname();
        format!("{}:{}", uname.nodename().to_string_lossy(), server.client_addr.port())
    }
}

fn channel_options(
    name: &str,
    rules: &dunlin_config::ChannelOptions,
    config: &Config,
) -> ChannelOptions {
    ChannelOptions {
        namespace: name.into(),
        history_size: rules.history_size,
        history_ttl_ms: rules.history_ttl_ms,
        history_meta_ttl_ms: rules.history_meta_ttl_ms,
        presence: rules.presence,
        join_leave: rules.join_leave,
        force_push_join_leave: false,
        force_positioning: rules.positioned,
        force_recovery: rules.recover,
        overflow: match rules.overflow {
            Overflow::Disconnect => dunlin_hub::Overflow::Disconnect,
            Overflow::DropOldest => dunlin_hub::Overflow::DropOldest,
            Overflow::KeepLatest => dunlin_hub::Overflow::KeepLatest,
        },
        publication_bytes_max: u32::try_from(config.limits.publication_bytes_max)
            .unwrap_or(u32::MAX),
        recovery_publications_max: config.limits.recovery_messages_max,
    }
}
