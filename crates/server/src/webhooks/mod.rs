//! The webhooks thread: connects the state machines of [`dunlin_webhooks`] to sockets.

mod checks;
mod sender;

pub(crate) use self::sender::{FINISH_TIMEOUT, WebhooksThread};
