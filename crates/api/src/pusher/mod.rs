//! The apps of the Pusher protocol, their signatures, and the calls of their HTTP API. No I/O: the worker serves their
//! clients (`worker::pusher`) and their HTTP API.

mod app;
mod call;
mod plan;

pub use self::app::{App, Apps};
pub use self::call::{Call, CallHead, PusherError, RequestedInfo, TriggeredEvent, split_path};
pub use self::plan::{ChannelAttribute, Plan, PlanStep, ResponseShape};
