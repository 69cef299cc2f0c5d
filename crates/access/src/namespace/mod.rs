//! A namespace, prepared for the data plane: its rules, and what is derived from them.

pub mod bounded_regex;
pub mod expression;
pub mod meta;
mod variants;

use std::sync::Arc;

use crate::namespace::bounded_regex::BoundedRegex;
use crate::namespace::expression::Expressions;
use dunlin_config::{
    Ack, Config, DeltaType, EngineDurability, Inbox, Map, Overflow, RecoveryMode, split_channel,
};
use dunlin_engine::nats::RawSubjects;
use dunlin_hub::wildcard::NameKind;
use dunlin_hub::{AckOptions, ChannelOptions, Durability, glob};

pub use self::variants::ChannelVariants;

/// The options of a namespace in the configuration.
type Rules = dunlin_config::ChannelOptions;

/// A namespace, prepared for the data plane.
#[derive(Clone, PartialEq)]
pub struct Namespace {
    /// The permissions and options of the configuration.
    pub rules: Rules,
    /// Permissions by expressions, in addition to those of `rules`.
    pub expressions: Option<Arc<Expressions>>,
    /// The `channel_regex` that names of its channels must match.
    regex: Option<BoundedRegex>,
    /// The options for the hub, shared by all operations on its channels.
    pub options: Arc<ChannelOptions>,
    /// For the namespace of a Pusher app: its variants for channels whose names have a special prefix.
    variants: Option<Arc<[Namespace; ChannelVariants::VARIANTS]>>,
    /// For a raw engine: how channel names map to subjects.
    subjects: Option<Arc<RawSubjects>>,
    /// If wildcards are allowed: the namespace as it applies to them.
    wildcard: Option<Arc<Namespace>>,
}

impl Namespace {
    /// Returns the namespace that applies to a name with NATS syntax; `None` if the name is invalid.
    fn of_nats(&self, name: &str) -> Option<&Namespace> {
        let wildcard = match (&self.wildcard, NameKind::of(name)) {
            (_, NameKind::Channel) | (None, NameKind::Wildcard) => None,
            (Some(wildcard), NameKind::Wildcard) => Some(&**wildcard),
            (_, NameKind::Invalid) => return None,
        };
        let is_subject = |of: &RawSubjects| of.of(name, wildcard.is_some()).is_some();
        self.subjects.as_deref().is_none_or(is_subject).then_some(wildcard.unwrap_or(self))
    }

    /// Whether one of its expressions uses the `meta` of connections.
    pub fn looks_at_meta(&self) -> bool {
        self.expressions.as_ref().is_some_and(|all| all.look_at_meta())
    }
}

/// Finds the namespace of a channel: by its prefix in `named`, or `any` if the prefix is unknown, or `without` if it has
/// none.
pub fn find_namespace<'n>(
    named: &'n Map<Namespace>,
    any: Option<&'n Namespace>,
    without: &'n Namespace,
    channel: &str,
) -> Option<&'n Namespace> {
    let (namespace, name) = match split_channel(channel) {
        (Some(name), rest) => match named.get(name) {
            Some(of) => (of, rest),
            None => (any?, channel),
        },
        (None, _) => (without, channel),
    };
    let pattern = namespace.rules.name_pattern.as_ref();
    let admits = pattern.is_none_or(|pattern| glob::matches(pattern.as_str(), name))
        && namespace.regex.as_ref().is_none_or(|regex| regex.is_match(name));
    if namespace.wildcard.is_some() || namespace.subjects.is_some() {
        return namespace.of_nats(channel).filter(|_| admits);
    }
    let variants = namespace.variants.as_ref().filter(|_| admits);
    let variant = variants.and_then(|of| Some(&of[ChannelVariants::variant(name)?]));
    admits.then_some(variant.unwrap_or(namespace))
}

/// Converts what a publication survives for the hub.
pub fn durability(of: EngineDurability) -> Durability {
    match of {
        EngineDurability::Written => Durability::Written,
        EngineDurability::Synced => Durability::Synced,
    }
}

/// Creates a namespace from its settings; `kinds` is set for the namespace of a Pusher app.
pub fn namespace(
    name: &str,
    rules: &Rules,
    config: &Config,
    kinds: Option<ChannelVariants>,
) -> Namespace {
    let regex = rules.channel_regex.as_deref();
    let regex = regex.map(|text| {
        BoundedRegex::of_setting(format_args!("channel_regex of namespace {name:?}"), text)
    });
    let options = channel_options(name, rules, config);
    let variants = kinds.map(|kinds| {
        let variant = |variant| {
            let (rules, options) = kinds.derive(variant, rules, &options);
            let expressions = None;
            Namespace {
                rules,
                expressions,
                regex: None,
                options: Arc::new(options),
                variants: None,
                subjects: None,
                wildcard: None,
            }
        };
        Arc::new(std::array::from_fn(variant))
    });
    let rules = rules.clone();
    let expressions = Expressions::of(name, &rules);
    let wildcard = rules.wildcards.then(|| {
        Arc::new(Namespace {
            rules: rules.clone(),
            expressions: expressions.clone(),
            regex: None,
            options: Arc::new(options.of_wildcard()),
            variants: None,
            subjects: None,
            wildcard: None,
        })
    });
    let engine = rules.engine.as_ref().and_then(|name| config.engines.get(name));
    let subjects = engine.and_then(raw_subjects).map(Arc::new);
    let options = Arc::new(options);
    Namespace { rules, expressions, regex, options, variants, subjects, wildcard }
}

/// Returns the namespaces whose inboxes connections are subscribed to.
pub fn inboxes_among(namespaces: &Map<Rules>) -> Arc<[Arc<str>]> {
    let subscribed = namespaces.iter_shared().filter(|(_, rules)| rules.inbox == Inbox::Subscribed);
    subscribed.map(|(name, _)| Arc::clone(name)).collect()
}

/// Returns how channel names map to subjects of a raw engine; `None` if the engine is not raw.
pub fn raw_subjects(engine: &dunlin_config::Engine) -> Option<RawSubjects> {
    engine.raw.then(|| RawSubjects {
        prefix: engine.raw_prefix.to_string(),
        separator: engine.raw_separator.chars().next().unwrap_or(':'),
        reserved: engine.prefix.to_string(),
    })
}

fn channel_options(name: &str, rules: &Rules, config: &Config) -> ChannelOptions {
    ChannelOptions {
        namespace: name.into(),
        wildcard: false,
        raw: (rules.engine.as_ref())
            .and_then(|engine| config.engines.get(engine))
            .is_some_and(|engine| engine.raw),
        history_size: rules.history_size,
        history_ttl_ms: rules.history_ttl_ms,
        history_meta_ttl_ms: rules.history_meta_ttl_ms,
        channels_max: (rules.channels_max > 0).then_some(rules.channels_max),
        history_bytes_max: (rules.history_bytes_max > 0)
            .then(|| usize::try_from(rules.history_bytes_max).unwrap_or(usize::MAX)),
        presence: rules.presence,
        join_leave: rules.join_leave,
        presence_users_max: None,
        force_push_join_leave: rules.force_push_join_leave,
        recovery_mode: match rules.force_recovery_mode {
            RecoveryMode::Stream => dunlin_hub::RecoveryMode::Stream,
            RecoveryMode::Cache => dunlin_hub::RecoveryMode::Cache,
        },
        delta: rules.allowed_delta_types.contains(&DeltaType::Fossil),
        delta_publish: rules.delta_publish,
        force_positioning: rules.positioned,
        force_recovery: rules.recover,
        overflow: match rules.overflow {
            Overflow::Disconnect => dunlin_hub::OverflowPolicy::Disconnect,
            Overflow::DropOldest => dunlin_hub::OverflowPolicy::DropOldest,
            Overflow::KeepLatest => dunlin_hub::OverflowPolicy::KeepLatest,
        },
        publication_bytes_max: u32::try_from(config.limits.publication_bytes_max)
            .unwrap_or(u32::MAX),
        recovery_publications_max: config.limits.recovery_messages_max,
        recovery_bytes_max: config.limits.answer_bytes_max.min(config.limits.outbox_bytes_max),
        ack: (rules.ack != Ack::Off).then(|| AckOptions {
            by_user: rules.ack == Ack::User,
            ttl_ms: rules.ack_ttl_ms,
            devices_max: u8::try_from(rules.ack_devices_max).unwrap_or(u8::MAX),
            bytes_max: (rules.ack_bytes_max > 0)
                .then(|| usize::try_from(rules.ack_bytes_max).unwrap_or(usize::MAX)),
            timeout_ms: rules.ack_timeout_ms,
            window: rules.ack_in_flight_max,
            deliveries_max: u8::try_from(rules.ack_deliveries_max).unwrap_or(u8::MAX - 1),
        }),
        inbox: rules.inbox != Inbox::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_regex_that_does_not_compile_admits_no_name() {
        let regex = |text: &str| {
            let rules = Rules { channel_regex: Some(text.into()), ..Rules::default() };
            let namespaces: Map<Namespace> =
                [("chat", namespace("chat", &rules, &Config::development(), None))]
                    .into_iter()
                    .collect();
            let without = namespace("", &Rules::default(), &Config::development(), None);
            let admits = |name: &str| find_namespace(&namespaces, None, &without, name).is_some();
            ["chat:a", "chat:1", "chat:", "chat:[a-z+"].map(admits)
        };
        assert_eq!(regex("^[a-z]+$"), [true, false, false, false]);
        for broken in ["^[a-z+$", "(", "a{1000}{1000}"] {
            assert_eq!(regex(broken), [false; 4], "{broken}");
        }
    }
}
