//! What a change of a key brings about, declared at the key.

use crate::map::Map;
use crate::schema::Applies;

macro_rules! effects {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// What a change of a key brings about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Effect {
            $($(#[doc = $doc])* $name,)*
        }

        impl Effect {
            /// Every effect, in the order in which a worker brings them about.
            pub const ALL: &[Effect] = &[$(Effect::$name),*];

            /// Returns its name, as in the code.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Effect::$name => stringify!($name),)*
                }
            }
        }
    };
}

effects! {
    /// None: it is read where it is used.
    Read,
    /// None for connections that are open: it is read when one is opened.
    NewConnections,
    /// It is read at the next start.
    NextStart,
    /// Listeners of the client ports open, move, close, or trust other proxies.
    Listeners,
    /// The certificates of listeners are opened.
    Certificates,
    /// The TLS of all listeners is built anew.
    Tls,
    /// Listeners have other bounds on requests.
    RequestLimits,
    /// Session ids have another node number.
    Node,
    /// The node has another name.
    Name,
    /// All namespaces are compiled anew.
    Namespaces,
    /// The rules of channels without a namespace are compiled anew.
    WithoutNamespace,
    /// Workers gather what they write for another time.
    Coalescing,
    /// The connections of each user are counted, or not any more.
    UserCounts,
    /// Messages go out at other rates.
    Pacing,
    /// Hooks want other events, or get them in another way.
    Hooks,
    /// Workers' threads are bound to cores, or to none any more.
    Pinning,
    /// Hubs and loops of workers have other bounds.
    Limits,
    /// The rings between threads have another size.
    BusSlots,
    /// The node joins a cluster, leaves it, or speaks to it in another way.
    Cluster,
    /// Backends of proxies are called in another way.
    Proxies,
    /// Programs start, end, or run other code.
    Programs,
    /// Expressions may read other data of connections.
    ExpressionData,
    /// Upstreams have other members.
    Upstreams,
    /// Connections to engines are opened and closed.
    Engines,
    /// Channels move to another engine.
    EngineOfChannels,
    /// Sessions end whose token's key is gone.
    ConnectionTokens,
    /// Sessions without a token end, if they need one now.
    Anonymous,
    /// Sessions end whose app is gone or has another key.
    PusherApps,
    /// Sessions and channels of tenants that are gone end, and the others' rules are compiled anew.
    Tenants,
    /// Subscriptions end whose token's key is gone.
    SubscriptionTokens,
    /// Subscriptions end that are not permitted any more.
    Permissions,
    /// The admin port moves, or accepts other requests.
    AdminPort,
    /// Watchers of the settings show their token again.
    AdminTokens,
    /// The log has another level or form.
    Log,
    /// Traces and metrics go to another collector, or to none.
    Otlp,
    /// Senders of pushes start and stop.
    PushSenders,
    /// Links to peers begin, end, or are treated in another way.
    Federation,
}

/// A set of effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects(u64);

const _: () = assert!(Effect::ALL.len() <= 64);

impl Effects {
    /// Those for which workers that sleep are woken: connections, subscriptions or messages must not wait for them, or
    /// a worker may have to refuse the change.
    pub const OF_SLEEPERS: Effects = Effects::of(&[
        Effect::Listeners,
        Effect::Node,
        Effect::Pinning,
        Effect::Engines,
        Effect::EngineOfChannels,
        Effect::ConnectionTokens,
        Effect::Anonymous,
        Effect::PusherApps,
        Effect::Tenants,
        Effect::SubscriptionTokens,
        Effect::Permissions,
        Effect::Programs,
    ]);

    /// Builds a set.
    pub const fn of(effects: &[Effect]) -> Effects {
        let (mut bits, mut at) = (0, 0);
        while at < effects.len() {
            bits |= 1 << effects[at] as u8;
            at += 1;
        }
        Effects(bits)
    }

    /// Returns whether it has this effect.
    pub const fn contains(self, effect: Effect) -> bool {
        self.intersects(Effects::of(&[effect]))
    }

    /// Returns whether both have an effect in common.
    pub const fn intersects(self, other: Effects) -> bool {
        self.0 & other.0 != 0
    }

    /// Adds effects.
    pub fn insert(&mut self, effects: Effects) {
        self.0 |= effects.0;
    }

    /// Adds or removes an effect.
    pub fn set(&mut self, effect: Effect, is_in: bool) {
        match is_in {
            true => self.0 |= 1 << effect as u8,
            false => self.0 &= !(1 << effect as u8),
        }
    }

    /// Returns the effects in the order of [`Effect::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Effect> {
        Effect::ALL.iter().copied().filter(move |effect| self.contains(*effect))
    }

    /// Returns the set of these names, separated by spaces.
    pub(crate) fn named(names: &str) -> Effects {
        let mut effects = Effects::default();
        for name in names.split_ascii_whitespace() {
            let effect = Effect::ALL.iter().find(|effect| effect.name() == name);
            effects.set(*effect.expect("the schema has no other names"), true);
        }
        effects
    }

    /// Returns when a change with these effects is complete.
    pub(crate) fn applies(self) -> Applies {
        if self.contains(Effect::NextStart) {
            Applies::Restart
        } else if self.contains(Effect::NewConnections) {
            Applies::NewConnections
        } else {
            Applies::Live
        }
    }
}

/// A table, or a map of tables: its keys say what their changes bring about.
#[diagnostic::on_unimplemented(
    message = "a key of type `{Self}` does not say what a change of it brings about",
    label = "write `=> EFFECT` behind the type of the key; `=> Read` if it is read where it is used"
)]
pub trait Keys: Default + PartialEq {
    /// Adds the effects of a change to `after`.
    fn add_effects(&self, after: &Self, effects: &mut Effects);

    /// Returns the effects of a change to `after`. Skips what both share.
    fn effects(&self, after: &Self) -> Effects {
        let mut effects = Effects::default();
        self.add_effects(after, &mut effects);
        effects
    }
}

impl<T: Keys> Keys for Map<T> {
    fn add_effects(&self, after: &Map<T>, effects: &mut Effects) {
        for (_, before, after) in after.changes_from(self) {
            match (before, after) {
                (Some(before), Some(after)) => before.add_effects(after, effects),
                // One that comes or goes differs from the defaults.
                (Some(one), None) | (None, Some(one)) => T::default().add_effects(one, effects),
                (None, None) => {}
            }
        }
    }
}

/// Defines tables of settings. Behind the type of a key stands what a change of it brings about:
///
/// - `key: u64 => Limits & Pacing`: these effects.
/// - `key: Table`: what the keys of the table say.
/// - `key: Map<Table> | Listeners`: what the keys of the tables say, and this effect, also of an entry that comes or goes.
///
/// A key that says nothing does not compile.
macro_rules! settings {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[$key_meta:meta])*
                $key_vis:vis $key:ident: $type:ty $(=> $($effect:ident)&+)? $(| $($also:ident)&+)?
            ),* $(,)?
        }
    )+) => {$(
        $(#[$meta])*
        $vis struct $name {
            $(
                $(#[$key_meta])*
                $(#[schemars(extend("x-effects" = concat!($(stringify!($effect), " "),+)))])?
                $(#[schemars(extend("x-effects" = concat!($(stringify!($also), " "),+)))])?
                $key_vis $key: $type,
            )*
        }

        impl $crate::effect::Keys for $name {
            fn add_effects(&self, after: &Self, effects: &mut $crate::effect::Effects) {
                $($crate::effect::settings!(
                    @key (self, after, effects) $key $(=> $($effect)+)? $(| $($also)+)?
                );)*
            }
        }
    )+};
    (@key ($before:expr, $after:expr, $effects:expr) $key:ident => $($effect:ident)+) => {
        if $before.$key != $after.$key {
            $effects.insert(const {
                $crate::effect::Effects::of(&[$($crate::effect::Effect::$effect),+])
            });
        }
    };
    (@key ($before:expr, $after:expr, $effects:expr) $key:ident) => {
        $crate::effect::Keys::add_effects(&$before.$key, &$after.$key, $effects);
    };
    (@key ($before:expr, $after:expr, $effects:expr) $key:ident | $($also:ident)+) => {
        if $before.$key != $after.$key {
            $effects.insert(const {
                $crate::effect::Effects::of(&[$($crate::effect::Effect::$also),+])
            });
            $crate::effect::Keys::add_effects(&$before.$key, &$after.$key, $effects);
        }
    };
}
pub(crate) use settings;
