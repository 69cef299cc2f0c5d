//! Apple's provider API as documented ("Sending notification requests to APNs" and the pages around it), and its faults.

mod account;
mod answer_time;
mod behaviour;
mod channels;
mod config;
mod ledger;
mod provider_token;
mod push_type;
mod reason;
mod request;
mod rules;
mod service;
mod world;

pub use answer_time::{AnswerTime, Distribution, Drift, PeriodicDelay};
pub use behaviour::{Behaviour, BehaviourError, FlipStreams, GoAway, Order, SlowDown, Unavailable};
pub use config::{Config, Environment};
pub use ledger::{Entry, ReplyOutcome};
pub use provider_token::ProviderKey;
pub use reason::Reason;
pub use rules::Rule;
pub use world::Counts;

pub use crate::http2::WindowReturn;
pub use crate::serve::Simulator;

pub(crate) use account::Certificate;
pub(crate) use provider_token::Keyring;
pub(crate) use service::{Effect, Reply, ReplyMode, Service};
pub(crate) use world::{Shared, World};
