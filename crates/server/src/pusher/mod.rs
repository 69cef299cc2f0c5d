//! The apps of the Pusher protocol: who they are, and what was signed with their secrets. No I/O: the worker serves their
//! clients ([`worker::pusher`](crate::worker)) and their HTTP API.

mod app;
mod call;
mod namespace;
mod plan;

pub(crate) use self::app::{App, Apps};
pub(crate) use self::call::{Call, Head, Info, Publish, PusherError, split_path};
pub(crate) use self::namespace::Kinds;
pub(crate) use self::plan::{ChannelCount, Plan, PlanStep, Shape};
