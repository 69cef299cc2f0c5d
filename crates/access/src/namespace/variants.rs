//! The rules and options of each kind of channel in a namespace that belongs to a Pusher app. They apply to clients of
//! every protocol.

use dunlin_config::{ChannelOptions as Rules, Config, PusherApp};
use dunlin_hub::{ChannelOptions, RecoveryMode};
use dunlin_protocol::pusher::ChannelKind;

/// The bounds by which channel variants of a namespace differ from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelVariants {
    presence_users_max: u32,
    cache_ttl_ms: u64,
}

impl ChannelVariants {
    /// Returns the variants of a tenant's namespace, or of one without a tenant; `None` unless it belongs to an app. If
    /// several apps share it, the larger bounds apply.
    pub fn of(tenant: Option<&str>, namespace: &str, config: &Config) -> Option<ChannelVariants> {
        let is_its =
            |app: &&PusherApp| *app.namespace == *namespace && app.tenant.as_deref() == tenant;
        let apps = || config.pusher.apps.values().filter(is_its);
        let largest = |bound: fn(&PusherApp) -> u64| apps().map(bound).max();
        Some(ChannelVariants {
            presence_users_max: u32::try_from(largest(|app| app.presence_members_max.into())?)
                .unwrap_or(u32::MAX),
            cache_ttl_ms: largest(|app| app.cache_ttl_ms)?,
        })
    }

    /// Number of variants beside the namespace itself.
    pub(crate) const VARIANTS: usize = 5;

    /// Returns the variant of a channel by its name without the namespace; `None`: the namespace itself.
    pub(crate) fn variant(name: &str) -> Option<usize> {
        let kind = match ChannelKind::of(name) {
            ChannelKind::Public => 0,
            ChannelKind::Private | ChannelKind::User => 1,
            ChannelKind::Presence => 2,
        };
        (2 * kind + usize::from(ChannelKind::is_cache(name))).checked_sub(1)
    }

    /// Derives a variant's rules and options from those of the namespace.
    pub(crate) fn derive(
        self,
        variant: usize,
        rules: &Rules,
        options: &ChannelOptions,
    ) -> (Rules, ChannelOptions) {
        let (kind, is_cache) = (variant.div_ceil(2), variant.is_multiple_of(2));
        let rules = if kind == 0 { rules.clone() } else { closed(rules) };
        let mut options = options.clone();
        if kind == 2 {
            options.presence = true;
            options.join_leave = true;
            options.presence_users_max = Some(self.presence_users_max);
        }
        if is_cache {
            options.history_size = options.history_size.max(1);
            options.history_ttl_ms = options.history_ttl_ms.max(self.cache_ttl_ms);
            options.history_meta_ttl_ms = match options.history_meta_ttl_ms {
                0 => 0,
                ttl_ms => ttl_ms.max(options.history_ttl_ms),
            };
            options.recovery_mode = RecoveryMode::Cache;
        }
        (rules, options)
    }
}

/// Returns the rules without any permission for clients.
fn closed(rules: &Rules) -> Rules {
    Rules {
        allow_subscribe_for_client: false,
        allow_subscribe_for_anonymous: false,
        allow_publish_for_client: false,
        allow_publish_for_anonymous: false,
        allow_history_for_client: false,
        allow_history_for_anonymous: false,
        allow_presence_for_client: false,
        allow_presence_for_anonymous: false,
        allow_user_limited_channels: false,
        ..rules.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_channel_has_its_own_rules_and_options() {
        let mut config = Config::development();
        let app = PusherApp { namespace: "chat".into(), ..PusherApp::default() };
        config.pusher.apps.insert("shop", app);
        let kinds = ChannelVariants::of(None, "chat", &config).unwrap();
        assert_eq!(ChannelVariants::of(None, "other", &config), None);
        assert_eq!(ChannelVariants::of(Some("acme"), "chat", &config), None);
        let rules = config.channel.without_namespace.clone();
        let own = ChannelOptions::default();
        assert_eq!(ChannelVariants::variant("news"), None);
        for (name, open, presence, kept) in [
            ("cache-news", true, false, 1),
            ("private-a", false, false, 0),
            ("private-cache-a", false, false, 1),
            ("private-encrypted-cache-a", false, false, 1),
            ("presence-a", false, true, 0),
            ("presence-cache-a", false, true, 1),
            ("#server-to-user-1", false, false, 0),
        ] {
            let variant = ChannelVariants::variant(name).unwrap();
            assert!(variant < ChannelVariants::VARIANTS);
            let (rules, options) = kinds.derive(variant, &rules, &own);
            assert_eq!(rules.allow_subscribe_for_client, open, "{name}");
            assert_eq!((options.presence, options.join_leave), (presence, presence), "{name}");
            assert_eq!(options.presence_users_max, presence.then_some(100), "{name}");
            assert_eq!((options.history_size, options.keeps_history()), (kept, kept > 0), "{name}");
        }
    }
}
