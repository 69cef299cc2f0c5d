#![doc = include_str!("../README.md")]
//!
//! The [`Dispatcher`] takes [`HookEvent`]s and settings, and returns HTTP requests to send ([`Attempt`]). The caller sends
//! them and passes each [`DeliveryResult`] back. Time is an argument.
//!
//! ```
//! use std::sync::Arc;
//!
//! use dunlin_config::{Hook, HookEventKind, Member, Upstream, Webhooks};
//! use dunlin_hub::{Now, SessionId};
//! use dunlin_webhooks::{
//!     DeliveryResult, DeliveryStats, Dispatcher, EventEncoder, HookEvent, HookEventBody,
//! };
//!
//! let member = Member { address: "backend.example:80".into(), ..Member::default() };
//! let pool = Upstream { members: [("a", member)].into_iter().collect(), ..Upstream::default() };
//! let hook = Hook {
//!     upstream: "pool".into(),
//!     events: [HookEventKind::Connect].into(),
//!     ..Hook::default()
//! };
//! let mut settings = Webhooks::default();
//! settings.upstreams.insert("pool", pool);
//! settings.hooks.insert("audit", hook);
//!
//! let stats = Arc::new(DeliveryStats::default());
//! let encoder = EventEncoder::new("3f2a", "node-1");
//! let mut dispatcher = Dispatcher::new(Arc::clone(&stats), encoder, 1);
//! dispatcher.handle_settings(&settings, &dunlin_config::Map::new());
//!
//! let mut now = Now { ms: 0, unix_ms: 1_800_000_000_000 };
//! let session = SessionId::from_u64(42).unwrap();
//! let body = HookEventBody::Connect { session, user: "ada".into(), transport: "websocket" };
//! dispatcher.handle_event(now, &HookEvent { unix_ms: now.unix_ms, body });
//!
//! let first = dispatcher.poll_attempt(now).expect("a request");
//! assert!(first.body.starts_with(br#"[{"id":"3f2a-1","event":"connect""#));
//! // The backend answers 500: the same request is sent again after a back-off.
//! let result = DeliveryResult::from_status(500, None);
//! dispatcher.handle_result(now, first.tag, &result);
//! assert!(dispatcher.poll_attempt(now).is_none());
//! now.ms = dispatcher.poll_timeout().expect("a back-off");
//! dispatcher.handle_timeout(now);
//! let second = dispatcher.poll_attempt(now).expect("the same request");
//! assert_eq!((&second.key, second.number), (&first.key, 2));
//! dispatcher.handle_result(now, second.tag, &DeliveryResult::Delivered);
//! assert_eq!(dispatcher.pending_events(), 0);
//! ```
//!
//! # How it works
//!
//! - The [`EventFilter`] knows which events the hooks select. Without hooks, a producer checks one branch.
//! - The [`EventEncoder`] encodes an event as JSON once for all hooks.
//! - A hook has eight ordered queues, selected by session or channel. A queue has at most one request in flight. Events
//!   that arrive meanwhile are sent together in the next request. In it the owners of events take turns: users, anonymous
//!   sessions, channels.
//! - An [`Upstream`] distributes requests to its members by weight. A failing member gets none while its circuit is
//!   open.
//! - A [`HealthChecker`] checks the members periodically and reports unhealthy ones.
//! - Every hook has a limit in bytes. Beyond it the owner with the most queued events loses its newest. Dropped events are
//!   counted and reported to the backend by a `missed` event, which names their owner.
#![forbid(unsafe_code)]

mod dispatcher;
mod encoder;
mod event;
mod filter;
mod health;
mod hook;
mod owner;
mod queue;
mod result;
mod signature;
mod stats;
#[cfg(test)]
mod tests;
mod upstream;

pub use dispatcher::{Attempt, Dispatcher};
pub use encoder::EventEncoder;
pub use event::{HookEvent, HookEventBody};
pub use filter::{EventFilter, FilterCache};
pub use health::{
    Check, HealthChecker, Unhealthy, UnhealthyMember, UpstreamCounters, UpstreamMetric,
    UpstreamStats,
};
pub use owner::EventOwner;
pub use result::DeliveryResult;
pub use stats::{DeliveryStats, HookMetric};
pub use upstream::{Failure, OpenCircuit, Pools, Selection, Upstream};
