//! The webhooks thread: drives the machine of [`dunlin_webhooks`] over sockets.

mod checks;
mod sender;

pub(crate) use self::sender::{FINISH_TIMEOUT, WebhooksThread};
