//! Channel options that one subscription overrides.

use dunlin_hub::ChannelOptions;
use serde::{Deserialize, Deserializer};

/// Channel options overridden for one subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionsOverride {
    /// List the subscriber in presence.
    pub presence: Option<bool>,
    /// Announce the subscriber's joins and leaves to others.
    pub join_leave: Option<bool>,
    /// Announce the joins and leaves of others to the subscriber.
    pub force_push_join_leave: Option<bool>,
    /// Track the subscriber's position.
    pub force_positioning: Option<bool>,
    /// Allow recovery.
    pub force_recovery: Option<bool>,
}

impl OptionsOverride {
    /// Whether no option is overridden.
    pub fn is_empty(&self) -> bool {
        *self == OptionsOverride::default()
    }

    /// Applies the overrides to the channel's options. A wildcard's options stay as they are.
    pub fn apply(&self, options: &ChannelOptions) -> ChannelOptions {
        if options.wildcard {
            return options.clone();
        }
        ChannelOptions {
            presence: self.presence.unwrap_or(options.presence),
            join_leave: self.join_leave.unwrap_or(options.join_leave),
            force_push_join_leave: self
                .force_push_join_leave
                .unwrap_or(options.force_push_join_leave),
            force_positioning: self.force_positioning.unwrap_or(options.force_positioning),
            force_recovery: self.force_recovery.unwrap_or(options.force_recovery),
            ..options.clone()
        }
    }
}

/// Each `{"value": true}`.
pub fn overrides<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OptionsOverride, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Overrides {
        presence: Option<Boolean>,
        join_leave: Option<Boolean>,
        #[serde(alias = "recover")]
        force_recovery: Option<Boolean>,
        #[serde(alias = "position")]
        force_positioning: Option<Boolean>,
        force_push_join_leave: Option<Boolean>,
    }
    #[derive(Deserialize)]
    struct Boolean {
        #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
        value: bool,
    }
    let of = Option::<Overrides>::deserialize(deserializer)?.unwrap_or_default();
    let value = |option: Option<Boolean>| option.map(|boolean| boolean.value);
    Ok(OptionsOverride {
        presence: value(of.presence),
        join_leave: value(of.join_leave),
        force_push_join_leave: value(of.force_push_join_leave),
        force_positioning: value(of.force_positioning),
        force_recovery: value(of.force_recovery),
    })
}
